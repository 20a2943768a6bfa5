/** An unfinished event is larger than the limit. */
export class EventTooLargeError extends Error {
}
/**
 * An event. `id` is null if the block of the event has no `id` field.
 * @typedef {{type: string, data: string, id: string | null, lastEventId: string}} ServerEvent
 */
/** Decodes the stream of one connection. */
export class Decoder {
    /** @param {{lastEventId?: string, maxEventBytes?: number}} [options] */
    constructor({ lastEventId, maxEventBytes }?: {
        lastEventId?: string;
        maxEventBytes?: number;
    });
    lastEventId: string;
    /** Time of the last `retry` field in milliseconds, or null. @type {number | null} */
    retryMs: number | null;
    /**
     * The events that a chunk completes. A caller may stop, and take the rest before it passes the next chunk.
     * @param {Uint8Array} chunk @returns {Generator<ServerEvent, void, undefined>}
     */
    feed(chunk: Uint8Array): Generator<ServerEvent, void, undefined>;
    #private;
}
/**
 * An event. `id` is null if the block of the event has no `id` field.
 */
export type ServerEvent = {
    type: string;
    data: string;
    id: string | null;
    lastEventId: string;
};
