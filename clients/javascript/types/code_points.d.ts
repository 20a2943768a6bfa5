/** Length of a text in code points. @param {string} text */
export function lengthOf(text: string): number;
/** The first `count` code points of a text, or undefined if it has fewer. @param {string} text @param {number} count */
export function firstPoints(text: string, count: number): string | undefined;
/** The text without its last `count` code points, or undefined if it has fewer. @param {string} text @param {number} count */
export function withoutLast(text: string, count: number): string | undefined;
/**
 * Change of a text: code points that were removed from its end, and the text that was then appended.
 * @typedef {{deleted: number, text: string}} TextChange
 */
/** @param {string} before @param {string} after @returns {TextChange} */
export function textChange(before: string, after: string): TextChange;
/**
 * Change of a text: code points that were removed from its end, and the text that was then appended.
 */
export type TextChange = {
    deleted: number;
    text: string;
};
