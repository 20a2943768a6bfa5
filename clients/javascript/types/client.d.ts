/**
 * @typedef {object} ClientOptions
 * @property {string | (() => string | Promise<string>)} [token] Bearer token, or a function that returns one. The function is
 *   called again if the server rejects the token. The token is sent in the header Authorization, to the server's origin only.
 * @property {Record<string, string>} [headers] Extra headers for every request to the server's origin.
 * @property {import("./retry_policy.js").RetryPolicy} [retry] Limits for retries and reconnects.
 * @property {number} [timeoutMs] Time for each `run`, `result`, `results` and `wait`. By default unlimited.
 * @property {number} [answerTimeoutMs] Time for the response to one attempt of a request, by default 30000.
 * @property {number} [maxStateBytes] Maximum size of a job's state as JSON, by default 16777216.
 * @property {"continue" | "cancel"} [onDisconnect] What the server does with a job whose stream has no reader for `graceMs`.
 * @property {number} [graceMs]
 * @property {number} [deadlineMs] Time after which the server ends an unfinished job as failed.
 * @property {import("./job.js").Listener} [listener] Receives the events of every job, unless the job has its own listener.
 * @property {typeof fetch} [fetch] Function that sends requests, by default the global `fetch`.
 */
/**
 * @typedef {object} SubmitOptions
 * @property {string} [idempotencyKey] 1 to 255 visible ASCII characters. By default a random key.
 * @property {AbortSignal} [signal] Aborts the request. A job that was started continues.
 * @property {import("./job.js").Listener} [listener]
 */
/**
 * @typedef {object} AttachOptions
 * @property {string | import("./job.js").Checkpoint} [checkpoint] A checkpoint, or its JSON text.
 * @property {import("./job.js").Listener} [listener]
 */
/**
 * @typedef {object} JobParts
 * @property {Client} client
 * @property {JobStream} stream
 * @property {import("./job.js").Listener | null} listener
 * @property {string | null} endpoint
 * @property {boolean} delivered
 * @property {import("./job.js").Checkpoint["undelivered"]} [undelivered]
 */
export class Client {
    /** @param {string | URL} url URL of the server. In a browser, it may be relative to the page. @param {ClientOptions} [options] */
    constructor(url: string | URL, options?: ClientOptions);
    /** URL of the server, without a slash at its end. */
    url: string;
    options: ClientOptions;
    session: Session;
    /**
     * Start a job with one input. A lost response never starts the job twice.
     * @param {string} endpoint @param {any} [input] By default `{}`, with which the endpoint uses its defaults. @param {SubmitOptions} [options]
     */
    submit(endpoint: string, input?: any, options?: SubmitOptions): Promise<Job>;
    /**
     * Start a job, wait for its end, and return its value. If the signal aborts, the job continues.
     * @param {string} endpoint @param {any} [input] @param {SubmitOptions & import("./job.js").WaitOptions} [options] @returns {Promise<any>}
     */
    run(endpoint: string, input?: any, options?: SubmitOptions & import("./job.js").WaitOptions): Promise<any>;
    /**
     * Start a job with many inputs.
     * @param {string} endpoint @param {any[]} inputs
     * @param {SubmitOptions & {shared?: Record<string, any>}} [options] `shared`: members that the server adds to each input.
     */
    submitBatch(endpoint: string, inputs: any[], { shared, ...options }?: SubmitOptions & {
        shared?: Record<string, any>;
    }): Promise<BatchJob>;
    /**
     * A job that exists. This call sends no request.
     * @param {string | AttachOptions} job Id or URL of the job, or options with a checkpoint. @param {AttachOptions} [options]
     */
    job(job: string | AttachOptions, options?: AttachOptions): Job;
    /**
     * A job with many inputs that exists. This call sends no request.
     * @param {string | AttachOptions} job Id or URL of the job, or options with a checkpoint. @param {AttachOptions} [options]
     */
    batchJob(job: string | AttachOptions, options?: AttachOptions): BatchJob;
    /** The server's endpoints, capabilities and limits. @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
    discover({ signal }?: {
        signal?: AbortSignal;
    }): Promise<any>;
    /** The description of an endpoint, with its schemas. @param {string} endpoint @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
    describe(endpoint: string, { signal }?: {
        signal?: AbortSignal;
    }): Promise<any>;
    /** The caller's own jobs, newest first. @param {{limit?: number, signal?: AbortSignal}} [options] @returns {Promise<any[]>} */
    jobs({ limit, signal }?: {
        limit?: number;
        signal?: AbortSignal;
    }): Promise<any[]>;
    /** The vocabulary of an endpoint, or null if it has none. @param {string} endpoint */
    vocabulary(endpoint: string): Promise<Vocabulary | null>;
    #private;
}
export type ClientOptions = {
    /**
     * Bearer token, or a function that returns one. The function is
     * called again if the server rejects the token. The token is sent in the header Authorization, to the server's origin only.
     */
    token?: string | (() => string | Promise<string>) | undefined;
    /**
     * Extra headers for every request to the server's origin.
     */
    headers?: Record<string, string> | undefined;
    /**
     * Limits for retries and reconnects.
     */
    retry?: import("./retry_policy.js").RetryPolicy | undefined;
    /**
     * Time for each `run`, `result`, `results` and `wait`. By default unlimited.
     */
    timeoutMs?: number | undefined;
    /**
     * Time for the response to one attempt of a request, by default 30000.
     */
    answerTimeoutMs?: number | undefined;
    /**
     * Maximum size of a job's state as JSON, by default 16777216.
     */
    maxStateBytes?: number | undefined;
    /**
     * What the server does with a job whose stream has no reader for `graceMs`.
     */
    onDisconnect?: "cancel" | "continue" | undefined;
    graceMs?: number | undefined;
    /**
     * Time after which the server ends an unfinished job as failed.
     */
    deadlineMs?: number | undefined;
    /**
     * Receives the events of every job, unless the job has its own listener.
     */
    listener?: import("./job.js").Listener | undefined;
    /**
     * Function that sends requests, by default the global `fetch`.
     */
    fetch?: typeof fetch | undefined;
};
export type SubmitOptions = {
    /**
     * 1 to 255 visible ASCII characters. By default a random key.
     */
    idempotencyKey?: string | undefined;
    /**
     * Aborts the request. A job that was started continues.
     */
    signal?: AbortSignal | undefined;
    listener?: import("./job.js").Listener | undefined;
};
export type AttachOptions = {
    /**
     * A checkpoint, or its JSON text.
     */
    checkpoint?: string | import("./job.js").Checkpoint | undefined;
    listener?: import("./job.js").Listener | undefined;
};
export type JobParts = {
    client: Client;
    stream: JobStream;
    listener: import("./job.js").Listener | null;
    endpoint: string | null;
    delivered: boolean;
    undelivered?: import("./job.js").Checkpoint["undelivered"];
};
import { Session } from "./session.js";
import { Job } from "./job.js";
import { BatchJob } from "./job.js";
import { Vocabulary } from "./tokens.js";
import { JobStream } from "./job_stream.js";
