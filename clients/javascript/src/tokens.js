/** Tokens of a generation with their log-probabilities, which are read from the lists of tokens in a job's value. */

import { ProtocolError, TidewireError } from "./errors.js";
import { isInteger } from "./strict_json.js";

/** @import { Token } from "./types.js" */

/** A function that returns the text of a token id, with U+FFFD for bytes that are not a whole character. @param {{tokens: string[]}} vocabulary */
export function textOfTokens({ tokens }) {
  const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  return (/** @type {number} */ id) => {
    if (tokens[id] === undefined) throw new ProtocolError(`the token id ${id} is not in the vocabulary of ${tokens.length} tokens`);
    return utf8.decode(Uint8Array.from(atob(tokens[id]), (char) => char.charCodeAt(0)));
  };
}

/**
 * Convert the columns of a generation's value to tokens, which takes a vocabulary unless the value contains their texts.
 * @param {any} value @param {number} [start] Index of the first token. @param {((id: number) => string) | null} [vocabulary] @returns {Token[]}
 * @throws {TidewireError} The columns are missing or not valid, or the texts are unknown.
 */
export function tokenRows(value, start = 0, vocabulary = null) {
  const ids = value?.token_ids;
  const missing = "Request them with the input: logprobs: true, or top_logprobs: n.";
  if (!Array.isArray(ids)) throw new TidewireError("the job's value has no token columns", { advice: missing });
  /** @param {any} id @param {any} known */
  const textOf = (id, known) => {
    if (!isInteger(id, 0)) throw new ProtocolError(`${JSON.stringify(id)} is not a token id`);
    if (typeof known === "string") return known;
    if (vocabulary) return vocabulary(id);
    const advice = "Submit with token_text: true.";
    throw new TidewireError("the texts of the job's tokens are unknown", { advice });
  };
  return ids.slice(start).map((id, n) => {
    const at = start + n;
    return {
      text: textOf(id, value.token_text?.[at]),
      id,
      // The server sends null for the probability 0.
      logprob: value.logprobs === undefined ? null : value.logprobs[at] ?? -Infinity,
      rank: value.ranks?.[at] ?? null,
      alternatives: (value.top_ids?.[at] ?? []).map((/** @type {number} */ top, /** @type {number} */ k) => ({
        text: textOf(top, value.top_text?.[at]?.[k]), id: top, logprob: value.top_logprobs?.[at]?.[k] ?? -Infinity,
      })),
    };
  });
}
