/**
 * The client's action after a response.
 * @param {number} status @param {RequestKind} kind
 * @param {{hasCursor?: boolean, usable?: boolean}} [request] Whether the request had a cursor, and whether the body of a
 * successful response has the requested content type.
 * @returns {Action}
 */
export function actionFor(status: number, kind: RequestKind, { hasCursor, usable }?: {
    hasCursor?: boolean;
    usable?: boolean;
}): Action;
/** The whole seconds of a Retry-After header in milliseconds, or null. A date is ignored. @param {string | null} value */
export function retryAfterMs(value: string | null): number | null;
/** Whether a body is an event stream without a content coding. @param {Headers} headers */
export function isEventStream(headers: Headers): boolean;
/**
 * Limits for the retries of streams, reads, submits and cancels.
 * @typedef {object} RetryPolicy
 * @property {number} [patienceMs] Time without progress after which the client gives up, by default 300000. It includes all
 *   waits, even those that a server asks for, but not the time during which a stream is live.
 * @property {number} [minDelayMs] Shortest first wait, by default 1. A stream's `retry` field sets the first wait.
 * @property {number} [maxDelayMs] Longest wait before the random factor is applied, by default 30000. A server may ask for more.
 * @property {number} [attempts] Failures in a row after which the client gives up. By default unlimited.
 * @property {number} [jitter] Range of the random factor of each wait, by default 0.5: from 1 - jitter to 1 + jitter.
 */
/** @typedef {"use" | "read_job" | "resync" | "refresh" | "wait" | "redirect" | "cut" | "fatal"} Action */
/** @typedef {"stream" | "request" | "submit"} RequestKind */
/** The retry policy allows no further attempt. */
export class GiveUp {
    /** @param {string} why */
    constructor(why: string);
    why: string;
}
export class RetryState {
    /** @param {RetryPolicy} [policy] @param {() => number} [now] Clock, in milliseconds. @param {() => number} [random] */
    constructor(policy?: RetryPolicy, now?: () => number, random?: () => number);
    /** Wait after the first failure, which the `retry` field of a stream sets. */
    delayMs: number;
    failures: number;
    now: () => number;
    random: () => number;
    /** Start a request. Its time counts toward the patience until it is live or has failed. */
    begin(): void;
    /** The stream is live. */
    live(): void;
    progress(): void;
    /**
     * Count an interruption, and return the wait before the next attempt in milliseconds.
     * @param {object} [interruption] @param {boolean} [interruption.isFailure] By default, a wait that the server asked for is not a failure.
     * @param {number | null} [interruption.askedMs] Time for which the server asked, or null.
     * @param {boolean} [interruption.isFirstContact] Whether perhaps no server is at this address.
     * @param {number} [interruption.silenceMs] Time during which a live stream sent nothing. @returns {number | GiveUp}
     */
    retry({ askedMs, isFailure, isFirstContact, silenceMs }?: {
        isFailure?: boolean | undefined;
        askedMs?: number | null | undefined;
        isFirstContact?: boolean | undefined;
        silenceMs?: number | undefined;
    }): number | GiveUp;
    #private;
}
/**
 * Limits for the retries of streams, reads, submits and cancels.
 */
export type RetryPolicy = {
    /**
     * Time without progress after which the client gives up, by default 300000. It includes all
     * waits, even those that a server asks for, but not the time during which a stream is live.
     */
    patienceMs?: number | undefined;
    /**
     * Shortest first wait, by default 1. A stream's `retry` field sets the first wait.
     */
    minDelayMs?: number | undefined;
    /**
     * Longest wait before the random factor is applied, by default 30000. A server may ask for more.
     */
    maxDelayMs?: number | undefined;
    /**
     * Failures in a row after which the client gives up. By default unlimited.
     */
    attempts?: number | undefined;
    /**
     * Range of the random factor of each wait, by default 0.5: from 1 - jitter to 1 + jitter.
     */
    jitter?: number | undefined;
};
export type Action = "use" | "read_job" | "resync" | "refresh" | "wait" | "redirect" | "cut" | "fatal";
export type RequestKind = "stream" | "request" | "submit";
