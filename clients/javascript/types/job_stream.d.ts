export class JobStream {
    /** @param {import("./session.js").Session} session @param {Follower} follower @param {string} jobUrl @param {string} eventsUrl */
    constructor(session: import("./session.js").Session, follower: Follower, jobUrl: string, eventsUrl: string);
    session: import("./session.js").Session;
    follower: Follower;
    jobUrl: string;
    eventsUrl: string;
    /** Receives the states of the connection. @type {(event: ConnectionEvent) => void} */
    tell: (event: ConnectionEvent) => void;
    /** The job in the response to its submit, until it was adopted. @type {any} */
    initial: any;
    get ended(): boolean;
    /** Close the connection. A later call of `next` opens another one. */
    close(): void;
    /**
     * The next change or notice. It reconnects as often as the retry policy allows.
     * @returns {Promise<Applied | {do: "notice", type: "queue" | "progress", data: any} | null>} Null if the stream was closed.
     */
    next(): Promise<Applied | {
        do: "notice";
        type: "queue" | "progress";
        data: any;
    } | null>;
    /** @param {AbortSignal} [signal] */
    readJob(signal?: AbortSignal): Promise<any>;
    #private;
}
export type Applied = import("./follower.js").Applied;
export type Action = import("./follower.js").Action;
export type Connection = import("./session.js").Connection;
/**
 * State of the connection: `connecting`, `connected`, `lost` with the wait before the next attempt, `resync` likewise if an
 * event did not match the state, `polling` if the stream delivers nothing and the job is read instead, or `closed`.
 */
export type ConnectionEvent = {
    type: "connection";
    state: "connecting" | "connected" | "lost" | "resync" | "polling" | "closed";
    /**
     * Number of connections that were opened, this one included.
     */
    connections: number;
    /**
     * Event after which the stream continues, or null if it begins with a snapshot.
     */
    lastEventId: string | null;
    /**
     * Reason of `lost` and `resync`.
     */
    why?: string | undefined;
    /**
     * Wait before the next attempt.
     */
    retryInMs?: number | undefined;
    /**
     * Failures in a row without progress.
     */
    failures?: number | undefined;
};
import { Follower } from "./follower.js";
