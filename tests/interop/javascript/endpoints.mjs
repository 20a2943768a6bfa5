// What this server does: three endpoints, their schemas, and the judging of inputs by them.

import { lengthOf } from "./fold.mjs";
import { isInteger, isObject } from "./strict_json.mjs";

export const MAX_ITEMS = 16;
const MAX_TEXT = 100_000; // code points: with it every event stays below max_event_bytes, and every state below max_state_bytes

/** An endpoint failed, and says to its callers why. */
export class Failure extends Error {}

const DELAY = { type: "integer", minimum: 0, maximum: 60_000, default: 0, description: "Milliseconds after each step" };
const TEXT = { type: "string", maxLength: MAX_TEXT };
const object = (properties, required = []) => ({ type: "object", properties, required, additionalProperties: false });

/** A step of `run` is `{ append }`, which grows the text that is the value, or `{ set }`, which gives a whole value. */
export const ENDPOINTS = {
  count: {
    summary: "Counts from 0 to n - 1",
    input: object({ n: { type: "integer", minimum: 1, maximum: 10_000, default: 5 }, delay_ms: DELAY }),
    value: { type: "integer" },
    examples: [{ n: 3 }],
    async *run({ n = 5, delay_ms = 0 }, sleep) {
      for (let number = 0; number < n; number += 1) {
        yield { set: number };
        await sleep(delay_ms);
      }
    },
  },
  words: {
    summary: "Says a text, word by word",
    input: object({ text: TEXT, delay_ms: DELAY }, ["text"]),
    value: { type: "string" },
    examples: [{ text: "nothing is lost", delay_ms: 10 }],
    async *run({ text, delay_ms = 0 }, sleep) {
      for (const word of text.match(/\s*\S+|\s+$/gu) ?? []) {
        yield { append: word };
        await sleep(delay_ms);
      }
    },
  },
  fail: {
    summary: "Says a text, then fails",
    input: object({ text: TEXT, message: { type: "string", maxLength: 1000 } }, ["message"]),
    value: { type: "string" },
    examples: [{ text: "so far", message: "no further" }],
    async *run({ text = "", message }) {
      if (text !== "") yield { append: text };
      throw new Failure(message);
    },
  },
};

/** Whether an endpoint's value is a text that grows. */
export const isText = (endpoint) => endpoint.value.type === "string";

/** What is wrong with an input: a pointer into it and a sentence; null where it is valid. */
export function fault(schema, input) {
  if (!isObject(input)) return { pointer: "", detail: "the input is an object" };
  for (const name of schema.required) {
    if (!(name in input)) return { pointer: "", detail: `${name} is missing` };
  }
  for (const [name, value] of Object.entries(input)) {
    const rule = Object.hasOwn(schema.properties, name) ? schema.properties[name] : null;
    const wrong = rule === null ? "there is no such member" : breach(rule, value);
    if (wrong) return { pointer: `/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`, detail: wrong };
  }
  return null;
}

function breach(rule, value) {
  if (rule.type === "integer") {
    // 5.0 is an integer to a JSON Schema, though not to the protocol's own members.
    const number = typeof value === "number" || value instanceof Number ? Number(value) : null;
    const wanted = `an integer from ${rule.minimum} to ${rule.maximum} is expected`;
    return isInteger(number, rule.minimum, rule.maximum) ? null : wanted;
  }
  if (typeof value !== "string") return "a string is expected";
  return lengthOf(value) > rule.maxLength ? `the text is longer than ${rule.maxLength} code points` : null;
}
