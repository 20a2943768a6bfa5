export class Follower {
    /** @param {string} jobId @param {number} maxStateBytes */
    constructor(jobId: string, maxStateBytes: number);
    /** @type {Document | null} */
    document: Document | null;
    /** @type {EventId | null} */
    id: EventId | null;
    /** Data of `done`, or null. @type {any} */
    done: any;
    /** Whether a logged event has moved the id forward on this connection, other than the snapshot at its beginning. */
    hasProgress: boolean;
    isGreeted: boolean;
    /** Link to the stream. @type {string | null} */
    events: string | null;
    /** Number of events that were dropped because they had been applied before. */
    repeats: number;
    jobId: string;
    maxStateBytes: number;
    /** Continue from a state. @param {any} state @param {string[]} columns @param {EventId} id */
    restore(state: any, columns: string[], id: EventId): void;
    /** A new connection was opened. */
    connected(): void;
    /** Whether the current connection has not delivered a logged event yet. */
    get hasDeliveredNothing(): boolean;
    /** @param {ServerEvent} event @returns {Promise<Action> | Action} A promise only for `done`, whose digest takes time in proportion to the state. */
    receive(event: ServerEvent): Promise<Action> | Action;
    /**
     * Take over the state of a job that was read, as from a snapshot. A job that has ended ends the stream.
     * @param {any} job @returns {Promise<Action>}
     */
    adopt(job: any): Promise<Action>;
    /**
     * Drop the cursor, and start again from a snapshot.
     * @param {string} why @param {boolean} [isUnknown] Whether the server may use a newer protocol. @returns {Action}
     */
    resync(why: string, isUnknown?: boolean): Action;
    #private;
}
export type EventId = import("./messages.js").EventId;
export type TextChange = import("./code_points.js").TextChange;
export type ServerEvent = import("./event_decoder.js").ServerEvent;
/**
 * A change of the job's state.
 */
export type Applied = {
    do: "applied";
    id: EventId;
    /**
     * First event that this change covers.
     */
    firstSeq: number;
    document: Document;
    version: import("./document.js").Version;
    /**
     * The replaced document, or null if a diff was applied.
     */
    before: Document | null;
    /**
     * Changes of texts in columns.
     */
    texts: Map<string, TextChange>;
    /**
     * Whether the value of an item changed.
     */
    isVisible: boolean;
    /**
     * Reason of the snapshot, or null.
     */
    reason: string | null;
    /**
     * The JSON text of the diff, or null.
     */
    diff: string | null;
    /**
     * The ops of the diff, or null. They must not be changed.
     */
    ops: any[] | null;
};
export type Action = Applied | {
    do: "ignore";
} | {
    do: "cut";
} | {
    do: "hello";
    heartbeatMs: number;
} | {
    do: "notice";
    type: "queue" | "progress";
    data: any;
} | {
    do: "goaway" | "busy";
    askedMs: number | null;
    why: string;
} | {
    do: "resync";
    why: string;
    isUnknown: boolean;
} | {
    do: "fatal";
    error: Error;
};
import { Document } from "./document.js";
