/** Whether the value contains the texts of its tokens. @param {any} value */
export function hasTokenTexts(value: any): boolean;
/**
 * Convert the columns of a generation's value to tokens.
 * @param {any} value @param {number} [start] Index of the first token.
 * @param {Vocabulary | null} [vocabulary] Not necessary if the value has `token_text` and `top_text`. @returns {Token[]}
 * @throws {ProtocolError} The columns are not valid.
 */
export function tokenRows(value: any, start?: number, vocabulary?: Vocabulary | null): Token[];
/**
 * One of the most probable candidates for a generated token. The text is for display, decoded from its bytes alone.
 * @typedef {{text: string, id: number, logprob: number}} Alternative
 */
/**
 * A generated token. `logprob` is null if log-probabilities were not requested, and -Infinity for the probability 0. `rank`
 * is 1 plus the number of more probable tokens, or null. `alternatives` are the most probable candidates, most probable
 * first, and empty if they were not requested.
 * @typedef {{text: string, id: number, logprob: number | null, rank: number | null, alternatives: Alternative[]}} Token
 */
/** The bytes of every token id of an endpoint. */
export class Vocabulary {
    /** @param {{hash: string, tokens: string[], special?: number[] | null}} body */
    constructor({ hash, tokens, special }: {
        hash: string;
        tokens: string[];
        special?: number[] | null;
    });
    hash: string;
    /** Ids of tokens that add nothing to a text. */
    special: Set<number>;
    /** The text of one token, with U+FFFD for bytes that are not a whole character. @param {number} id */
    text(id: number): string;
    #private;
}
/**
 * One of the most probable candidates for a generated token. The text is for display, decoded from its bytes alone.
 */
export type Alternative = {
    text: string;
    id: number;
    logprob: number;
};
/**
 * A generated token. `logprob` is null if log-probabilities were not requested, and -Infinity for the probability 0. `rank`
 * is 1 plus the number of more probable tokens, or null. `alternatives` are the most probable candidates, most probable
 * first, and empty if they were not requested.
 */
export type Token = {
    text: string;
    id: number;
    logprob: number | null;
    rank: number | null;
    alternatives: Alternative[];
};
