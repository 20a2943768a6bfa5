/**
 * Create the error for a rejected request.
 * @param {number} status HTTP status, or the status of a problem in the stream. @param {Problem | null} problem @param {ErrorDetails} details
 * @returns {RequestError}
 */
export function refusal(status: number, problem: Problem | null, details?: ErrorDetails): RequestError;
/** Errors of the client. Each message says what happened, where it happened, and what to do. The README draws their tree. */
/**
 * Problem details that a server sent (RFC 9457), with all members that it sent.
 * @typedef {{code: string, title: string, status: number, detail?: string | null, pointer?: string | null,
 * retryable?: boolean | null, retry_after_ms?: number | null, [name: string]: unknown}} Problem
 */
/**
 * Details of an error, as far as they are known.
 * @typedef {{method?: string, url?: string, status?: number, jobId?: string, lastEventId?: string | null,
 * problem?: Problem | null, advice?: string, value?: unknown, index?: number, sent?: boolean, cause?: unknown}} ErrorDetails
 */
/** Base class of all errors of this package. */
export class TidewireError extends Error {
    /** @param {string} what Description of the error, in one sentence. @param {ErrorDetails} [details] */
    constructor(what: string, details?: ErrorDetails);
    what: string;
    method: string | undefined;
    url: string | undefined;
    jobId: string | undefined;
    lastEventId: string | null;
    /** Problem details that the server sent, or null. */
    problem: Problem | null;
    /** HTTP status of the response, or of the problem. @type {number | null} */
    status: number | null;
    advice: string;
    /** Machine-readable code of the problem, or null. */
    get code(): string | null;
    /** Whether the same call may succeed later without changes. */
    get retryable(): boolean;
    #private;
}
export class RequestError extends TidewireError {
    /** JSON Pointer to the invalid member in the body of the request, or null. */
    get pointer(): string | null;
}
export class AuthenticationError extends RequestError {
}
export class PermissionDeniedError extends RequestError {
}
export class EndpointNotFoundError extends RequestError {
}
export class JobNotFoundError extends RequestError {
}
export class JobExpiredError extends RequestError {
}
export class InvalidInputError extends RequestError {
}
export class QueueFullError extends RequestError {
}
export class RateLimitError extends RequestError {
}
export class JobFailedError extends EndedError {
}
export class JobCancelledError extends EndedError {
}
export class ItemFailedError extends EndedError {
    /** @param {string} what @param {ErrorDetails & {index: number, ended: string}} details */
    constructor(what: string, details: ErrorDetails & {
        index: number;
        ended: string;
    });
    /** Index of the item's input, from 0. */
    index: number;
    /** `failed` or `cancelled`. */
    ended: string;
}
export class VoidTextError extends TidewireError {
}
export class NoTextError extends TidewireError {
}
export class SeveralItemsError extends TidewireError {
}
export class CheckpointError extends TidewireError {
}
export class ConcurrentReadError extends TidewireError {
}
export class ClientClosedError extends TidewireError {
}
export class StateTooLargeError extends TidewireError {
}
export class ProtocolError extends TidewireError {
}
export class UnsupportedProtocolError extends ProtocolError {
}
export class NotATidewireServerError extends ProtocolError {
}
export class TransportError extends TidewireError {
    /** Whether the request may have reached the server. */
    sent: boolean;
}
export class SilenceTimeoutError extends TransportError {
}
export class TotalTimeoutError extends TidewireError {
}
/**
 * Problem details that a server sent (RFC 9457), with all members that it sent.
 */
export type Problem = {
    code: string;
    title: string;
    status: number;
    detail?: string | null;
    pointer?: string | null;
    retryable?: boolean | null;
    retry_after_ms?: number | null;
    [name: string]: unknown;
};
/**
 * Details of an error, as far as they are known.
 */
export type ErrorDetails = {
    method?: string;
    url?: string;
    status?: number;
    jobId?: string;
    lastEventId?: string | null;
    problem?: Problem | null;
    advice?: string;
    value?: unknown;
    index?: number;
    sent?: boolean;
    cause?: unknown;
};
/** Error of a job or an item that has ended without success. */
declare class EndedError extends TidewireError {
    /** @param {string} what @param {ErrorDetails} details */
    constructor(what: string, details: ErrorDetails);
    /** The partial value. @type {any} */
    value: any;
}
export {};
