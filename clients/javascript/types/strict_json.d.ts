/** @param {string} text @returns {any} */
export function parse(text: string): any;
/**
 * Whether a value is an integer, written as one, from `least` to `most`.
 * @param {unknown} value @param {number} least @param {number} [most] @returns {value is number}
 */
export function isInteger(value: unknown, least: number, most?: number): value is number;
/** @param {unknown} value @returns {value is Record<string, any>} */
export function isObject(value: unknown): value is Record<string, any>;
/** @param {unknown} value */
export function isNumber(value: unknown): boolean;
/** Set a member, even if its name is `__proto__`. @param {Record<string, any>} object @param {string} name @param {any} value */
export function setMember(object: Record<string, any>, name: string, value: any): void;
/** A deep copy of a JSON value, in which each number is a number. @param {any} value @returns {any} */
export function copy(value: any): any;
/** Whether two JSON values are equal, regardless of the order of members. @param {any} one @param {any} other @returns {boolean} */
export function same(one: any, other: any): boolean;
/**
 * The form of RFC 8785, in pieces. Members are sorted by their UTF-16 code units, which is the order of `sort`.
 * @param {any} value @returns {Generator<string>}
 */
export function canonicalPieces(value: any): Generator<string>;
/** @param {any} value @returns {string} */
export function canonical(value: any): string;
/**
 * JSON as the protocol allows it, deep copies, and the canonical form of RFC 8785.
 *
 * `JSON.parse` accepts texts that the protocol forbids: two members with the same name, integers beyond 2^53, numbers that
 * are not finite, lone surrogates, and any depth. It also reads `1.0` as the integer 1. `parse` finds these cases with one
 * scan over a text that `JSON.parse` has accepted. A number such as `1.0` becomes an object that `isInteger` rejects and
 * `copy` converts to a number.
 */
/** Maximum depth of arrays and objects. */
export const MAX_DEPTH: 64;
/** The text is not JSON that the protocol allows. */
export class JsonError extends Error {
}
