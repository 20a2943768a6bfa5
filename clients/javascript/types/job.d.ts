/** Members that `Job` and `BatchJob` share. */
export class JobBase {
    /** @param {import("./client.js").JobParts} parts */
    constructor({ client, stream, listener, endpoint, delivered, undelivered }: import("./client.js").JobParts);
    client: import("./client.js").Client;
    /** @protected */
    protected stream: import("./job_stream.js").JobStream;
    /** Function that receives events other than updates while a loop or a call reads the job. @type {Listener | null} */
    listener: Listener | null;
    /** @protected */
    protected endpoint: string | null;
    /** The last queue position that was reported, or null. @type {Extract<JobEvent, {type: "queue"}> | null} */
    queue: Extract<JobEvent, {
        type: "queue";
    }> | null;
    /** The last progress that was reported, or null. @type {Extract<JobEvent, {type: "progress"}> | null} */
    progress: Extract<JobEvent, {
        type: "progress";
    }> | null;
    /** Id of the job. */
    get id(): string;
    /** Whether the client has received the job's end. */
    get ended(): boolean;
    /** Number of items; 0 until the client has received the job's state. */
    get itemCount(): any;
    /**
     * The job's state as far as it was received, or null. It is not a copy: later events change it, and a caller must not.
     * A page that draws often reads it in place of `update.value`.
     * @returns {any}
     */
    get state(): any;
    /** Id of the last event that was received, or null. @returns {string | null} */
    get lastEventId(): string | null;
    /** Request the job's status from the server. @param {{signal?: AbortSignal}} [options] @returns {Promise<string>} */
    status(options?: {
        signal?: AbortSignal;
    }): Promise<string>;
    /** Request the whole job from the server. @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
    read({ signal }?: {
        signal?: AbortSignal;
    }): Promise<any>;
    /** @protected @param {string} body @param {AbortSignal} [signal] @returns {Promise<string>} */
    protected cancelWith(body: string, signal?: AbortSignal): Promise<string>;
    /** Close the connection. The job continues on the server. Pending loops and calls throw ClientClosedError. */
    close(): void;
    /** Wait until the job has ended, whether it succeeded or not. The call consumes no updates. @param {WaitOptions} [options] */
    wait({ timeoutMs, signal }?: WaitOptions): Promise<void>;
    /**
     * The position after the last delivered update. `client.job({ checkpoint })` continues from it. It contains the whole state.
     * @returns {Checkpoint}
     */
    checkpoint(): Checkpoint;
    /**
     * Changes in order. Only one loop reads a job at a time.
     * @protected @param {{isSilent?: boolean, signal?: AbortSignal}} [options] `isSilent` also yields changes that changed no value.
     * @returns {AsyncGenerator<Change, void, undefined>}
     */
    protected changes({ isSilent, signal }?: {
        isSilent?: boolean;
        signal?: AbortSignal;
    }): AsyncGenerator<Change, void, undefined>;
    /**
     * The value of the first item after each change, without a copy, which must not be changed. `rewrites` differs if it did more than grow.
     * @protected @param {AbortSignal} [signal] @returns {AsyncGenerator<{value: any, rewrites: string}, void, undefined>}
     */
    protected values(signal?: AbortSignal): AsyncGenerator<{
        value: any;
        rewrites: string;
    }, void, undefined>;
    /** A change was delivered, so a checkpoint contains it. @protected @param {Change} change */
    protected commit(change: Change): void;
    /** Return changes that were not delivered, for the next loop. @protected @param {Change[]} changes */
    protected requeue(changes: Change[]): void;
    /** Throw if the job's items cannot be read in this way. @protected */
    protected requireItems(): void;
    /** Pointer of the text of an item, or undefined if it has none. @protected @param {number} index */
    protected textColumn(index: number): string | undefined;
    /** Call the listener. Its errors do not break the stream. @param {JobEvent} event */
    tell(event: JobEvent): void;
    /**
     * Each change of the value of an item, exactly once, whatever happens to the connection. If a `Job` failed or was
     * cancelled, the loop then throws JobFailedError or JobCancelledError; for a `BatchJob`, it throws neither.
     * @param {LoopOptions} [options] @returns {AsyncGenerator<Update, void, undefined>}
     */
    updates(options?: LoopOptions): AsyncGenerator<Update, void, undefined>;
    /** Throw what a loop over the updates throws after the job's end. @protected */
    protected requireOutcome(): void;
    /** Throw the error of a job that has failed or was cancelled. @protected */
    protected requireSuccess(): void;
    [Symbol.asyncIterator](): AsyncGenerator<Update, void, undefined>;
    #private;
}
/** A job with one input. The server runs the job even if no client reads its event stream. */
export class Job extends JobBase {
    /**
     * The job's text in pieces, as they arrive. If the server announces which part of the text is stable, the rest is held
     * back until it is stable or the job has ended.
     * @param {LoopOptions} [options] @returns {AsyncGenerator<string, void, undefined>}
     * @throws {VoidTextError} The server retracted text that was yielded. @throws {NoTextError} The value contains no text that the server streams.
     */
    iterText(options?: LoopOptions): AsyncGenerator<string, void, undefined>;
    /**
     * The changes of the job's text as they arrive: `deleted` code points are removed from its end, then `text` is appended.
     * @param {LoopOptions} [options] @returns {AsyncGenerator<TextChange, void, undefined>}
     */
    iterTextDeltas(options?: LoopOptions): AsyncGenerator<TextChange, void, undefined>;
    /**
     * All generated tokens from the first one, as they arrive. This loop consumes no updates, so it may run next to another
     * loop over the job. Unlike `iterText`, it does not hold back what is not stable.
     * @param {LoopOptions} [options] @returns {AsyncGenerator<Token, void, undefined>}
     * @throws {VoidTextError} The server retracted tokens that were yielded.
     */
    tokens({ signal }?: LoopOptions): AsyncGenerator<Token, void, undefined>;
    /** Wait for the job's end, and return its value. The call consumes no updates. @param {WaitOptions} [options] @returns {Promise<any>} */
    result(options?: WaitOptions): Promise<any>;
    /** Cancel the job on the server, and return its status. @param {{signal?: AbortSignal}} [options] */
    cancel({ signal }?: {
        signal?: AbortSignal;
    }): Promise<string>;
    #private;
}
/** A job with many inputs. */
export class BatchJob extends JobBase {
    /**
     * The results of the items as they end, each with the index of its input. The result of an item that failed is an ItemFailedError.
     * @param {LoopOptions} [options] @returns {AsyncGenerator<[index: number, result: any], void, undefined>}
     */
    asCompleted(options?: LoopOptions): AsyncGenerator<[index: number, result: any], void, undefined>;
    /**
     * Wait for the end of all items, and return their values in the order of the inputs.
     * @param {WaitOptions & {returnExceptions?: boolean}} [options] With `returnExceptions`, the result of an item that failed is
     * an ItemFailedError. Otherwise the call throws the error of the first of them.
     * @returns {Promise<any[]>}
     */
    results({ returnExceptions, ...options }?: WaitOptions & {
        returnExceptions?: boolean;
    }): Promise<any[]>;
    /**
     * Cancel the job or some of its items, and return the job's status.
     * @param {number[] | null} [items] Indices of the items to cancel. By default, all. @param {{signal?: AbortSignal}} [options]
     */
    cancel(items?: number[] | null, { signal }?: {
        signal?: AbortSignal;
    }): Promise<string>;
    #private;
}
export type Applied = import("./follower.js").Applied;
export type Change = import("./updates.js").Change;
export type Problem = import("./errors.js").Problem;
export type TextChange = import("./code_points.js").TextChange;
export type Token = import("./tokens.js").Token;
/**
 * What a listener receives, in addition to the updates of a loop:
 * `queue` and `progress` as the server reports them, `status` of the job, `item` when the status of an item changes,
 * `note` for each note of the function, `usage` when it changes, `connection` for the state of the connection, and `end`.
 */
export type JobEvent = {
    type: "queue";
    position: number;
    etaMs: number | null;
    waitsFor: string | null;
} | {
    type: "progress";
    current?: number | null;
    total?: number | null;
    unit?: string | null;
    phase?: string | null;
    item?: number | null;
} | {
    type: "status";
    status: string;
} | {
    type: "item";
    index: number;
    status: string;
    error: Problem | null;
} | {
    type: "note";
    level: string;
    text: string;
} | {
    type: "usage";
    usage: Record<string, any>;
} | {
    type: "end";
    status: string;
    error: Problem | null;
} | import("./job_stream.js").ConnectionEvent;
export type Listener = (event: JobEvent, job: JobBase) => void;
export type LoopOptions = {
    signal?: AbortSignal;
};
export type WaitOptions = {
    timeoutMs?: number;
    signal?: AbortSignal;
};
/**
 * A saved position in a job's updates, as JSON. The Python client reads and writes the same members.
 */
export type Checkpoint = {
    protocol: string;
    job: string;
    url?: string | null | undefined;
    state?: any;
    columns?: string[] | undefined;
    cursor?: string | null | undefined;
    undelivered?: {
        index: number;
        first_seq: number;
        deleted: number;
        text: string;
        visible: boolean;
    }[] | undefined;
};
import { Update } from "./updates.js";
