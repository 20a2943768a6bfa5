/** @param {string | null | undefined} text @returns {EventId | null} Null if the text violates the grammar of ids. */
export function parseId(text: string | null | undefined): EventId | null;
/** Below 0, 0 or above 0, in the order of ids. @param {EventId} one @param {EventId} other */
export function compareIds(one: EventId, other: EventId): number;
/** @typedef {{epoch: number, seq: number, text: string}} EventId */
/** @typedef {(value: any) => boolean} Fits */
export const PROTOCOL: "tidewire/1";
/** Statuses of a job that has ended. */
export const ENDED: string[];
export namespace FITS {
    export { state };
    export { item };
    export { problem };
    export { done };
    export let snapshot: Fits;
    export let hello: Fits;
    export let queue: Fits;
    export let progress: Fits;
    export let ping: Fits;
    export let goaway: Fits;
    export let job: Fits;
    export let jobs: Fits;
    export let discovery: Fits;
    export let endpoint: Fits;
    export let vocabulary: Fits;
}
export type EventId = {
    epoch: number;
    seq: number;
    text: string;
};
export type Fits = (value: any) => boolean;
declare const state: Fits;
/** @type {Fits} */
declare const item: Fits;
declare const problem: Fits;
/** @type {Fits} */
declare const done: Fits;
export {};
