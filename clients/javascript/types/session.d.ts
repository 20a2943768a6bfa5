/** Wait, unless the signal aborts. @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export function sleep(ms: number, signal?: AbortSignal): Promise<void>;
/** @typedef {import("./errors.js").Problem} Problem */
/** @typedef {import("./retry_policy.js").RequestKind} RequestKind */
/** @typedef {{method?: string, headers?: Record<string, string>, body?: string, timeoutMs?: number, signal?: AbortSignal}} RequestOptions */
/** Time for the status line of a stream, and then for `hello`. */
export const HELLO_TIMEOUT_MS: 10000;
/** A response whose body is read in chunks. */
export class Connection {
    /** @param {Response} response @param {string} url @param {AbortController} controller @param {() => void} unlink */
    constructor(response: Response, url: string, controller: AbortController, unlink: () => void);
    url: string;
    status: number;
    headers: Headers;
    isHidden: boolean;
    /** The next bytes of the body, or null at its end. @param {number} timeoutMs @returns {Promise<Uint8Array | null>} */
    next(timeoutMs: number): Promise<Uint8Array | null>;
    /** The whole body as text. @param {number} timeoutMs @param {number} maxBytes */
    text(timeoutMs: number, maxBytes: number): Promise<string>;
    close(): void;
    #private;
}
export class Session {
    /** @param {string} base @param {import("./client.js").ClientOptions} options */
    constructor(base: string, options: import("./client.js").ClientOptions);
    /** Whether a response has proved that the server is a Tidewire server. */
    contacted: boolean;
    base: string;
    origin: string;
    options: import("./client.js").ClientOptions;
    answerTimeoutMs: number;
    maxStateBytes: number;
    fetch: typeof fetch;
    retryState(): RetryState;
    /**
     * Send one request. Refresh the credentials once, and follow redirects of a GET within the origin.
     * @param {string} url @param {RequestOptions} options @returns {Promise<Connection>}
     */
    send(url: string, options: RequestOptions): Promise<Connection>;
    /** The problem in the body of a response, or null. The response is closed. @param {Connection} connection @returns {Promise<Problem | null>} */
    problemOf(connection: Connection): Promise<Problem | null>;
    /**
     * The error for a response that is not what was requested.
     * @param {Connection} connection @param {Problem | null} problem @param {import("./errors.js").ErrorDetails} [details]
     */
    refusal({ url, status, isHidden }: Connection, problem: Problem | null, details?: import("./errors.js").ErrorDetails): RequestError;
    /**
     * Send a request until it has a response that fits a schema.
     * @param {string} url @param {keyof typeof FITS} schema
     * @param {RequestOptions & {kind?: RequestKind, jobId?: string, state?: RetryState, doubt?: (error: Error) => Promise<void>}} [options]
     * `doubt` is called before a submit is repeated that may have arrived, and throws if it may not be repeated.
     * @returns {Promise<{body: any, connection: Connection}>}
     */
    request(url: string, schema: keyof typeof FITS, { kind, jobId, state, doubt, ...options }?: RequestOptions & {
        kind?: RequestKind;
        jobId?: string;
        state?: RetryState;
        doubt?: (error: Error) => Promise<void>;
    }): Promise<{
        body: any;
        connection: Connection;
    }>;
    /**
     * Resolve a link. A link to another origin is replaced, because the credentials are only for the origin of the client.
     * @param {string} link @param {string} at URL of the response that contains the link. @param {string} otherwise
     */
    link(link: string, at: string, otherwise: string): string;
    #private;
}
export type Problem = import("./errors.js").Problem;
export type RequestKind = import("./retry_policy.js").RequestKind;
export type RequestOptions = {
    method?: string;
    headers?: Record<string, string>;
    body?: string;
    timeoutMs?: number;
    signal?: AbortSignal;
};
import { RetryState } from "./retry_policy.js";
import { RequestError } from "./errors.js";
import { FITS } from "./messages.js";
