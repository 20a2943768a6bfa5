/** The reference tokens of a JSON Pointer. @param {unknown} path @returns {string[]} */
export function tokensOf(path: unknown): string[];
/** The value that tokens name, or undefined. @param {any} root @param {string[]} tokens */
export function valueAt(root: any, tokens: string[]): any;
/** @typedef {import("./code_points.js").TextChange} TextChange */
/** @typedef {[path: string, n: number, crc?: number]} Check */
/** @typedef {{tokens: string[], kind: "set" | "delete" | "cut" | "push" | "insert" | "remove", value?: any}} Reverse */
/** @typedef {{next: Version | null, reverse: Reverse[]}} Version A state that existed; `reverse` leads to the one before. */
/** A diff may not be applied: it is malformed, contains an op or a form that this client does not know, fails a check, or is unstable. */
export class DiffError extends Error {
    /** @param {string} message @param {"malformed" | "unknown" | "check" | "unstable"} [kind] */
    constructor(message: string, kind?: "malformed" | "unknown" | "check" | "unstable");
    kind: "malformed" | "unknown" | "check" | "unstable";
}
/** Maximum number of ops of a diff. */
export const MAX_EVENT_OPS: 10000;
export class Document {
    /** @param {any} state The document owns it from now on. @param {string[]} columns */
    constructor(state: any, columns: string[]);
    /** Number of ops that did more than append. */
    rewrites: number;
    /** @type {Version} */
    version: Version;
    root: any;
    columns: string[];
    /** A copy of a part of the state, as it was at a version. @param {Version} version @param {string[]} tokens */
    read(version: Version, tokens: string[]): any;
    /**
     * Apply a diff completely, or throw and leave the state as it was.
     * @param {any} diff @param {(ops: any[]) => void} [check] Further check of the new state, which throws to refuse the diff.
     * @returns {Map<string, TextChange>} The changes of texts in columns.
     */
    apply(diff: any, check?: (ops: any[]) => void): Map<string, TextChange>;
    /** Verify checks. Only the text that was appended since the last check of a text is read. @param {any[]} checks */
    verify(checks: any[]): void;
    #private;
}
export type TextChange = import("./code_points.js").TextChange;
export type Check = [path: string, n: number, crc?: number];
export type Reverse = {
    tokens: string[];
    kind: "set" | "delete" | "cut" | "push" | "insert" | "remove";
    value?: any;
};
/**
 * A state that existed; `reverse` leads to the one before.
 */
export type Version = {
    next: Version | null;
    reverse: Reverse[];
};
