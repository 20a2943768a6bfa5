/** @param {string | null} reason */
export function causeOf(reason: string | null): string;
/** Merge a change into an earlier one of the same item. @param {Change} earlier @param {Change} change */
export function merge(earlier: Change, change: Change): void;
/** The value of a job after an event, with the change since the previous update. */
export class Update {
    /** @param {Change} change */
    constructor(change: Change);
    /** Index of the input in the job, from 0. */
    get index(): number;
    /**
     * Text that was appended to the growing text in the value, after `deleted` code points were removed from its end. If the
     * value contains several growing texts, this is the first of them.
     * @throws {VoidTextError} This update retracts text, and `deleted` was not read before.
     */
    get text(): string;
    /** Number of code points that were removed from the end of the text. A loop that reads it must remove them. */
    get deleted(): number;
    /** Sequence number of the first event that this update covers. */
    get firstSeq(): number;
    /** Sequence number of the last event that this update covers. */
    get seq(): number;
    /** Id of the last event that this update covers. */
    get id(): string;
    /** The complete value after this event. Each access returns a new copy, which takes time in proportion to the value. @returns {any} */
    get value(): any;
    /** Status of the item after this event. @returns {string} */
    get status(): string;
    /** Problem details if the item failed, otherwise null. @returns {Problem | null} */
    get error(): Problem | null;
    /** Whether the item has ended. */
    get ended(): boolean;
    /**
     * The ops that lead from the value before this update to its value, in order, with paths relative to the value:
     * `["a", path, piece]` appends, `["t", path, n]` removes from the end, `["s", path, value]` sets, `["i", path, value]`
     * inserts, `["d", path]` deletes. Null if a snapshot replaced the value. Reading them costs no copy of the value.
     * @returns {[op: string, path: string, argument?: any][] | null}
     */
    get ops(): [op: string, path: string, argument?: any][] | null;
    #private;
}
export type Problem = import("./errors.js").Problem;
export type EventId = import("./messages.js").EventId;
/**
 * A change of one item.
 */
export type Change = {
    document: import("./document.js").Document;
    version: import("./document.js").Version;
    id: EventId;
    firstSeq: number;
    index: number;
    deleted: number;
    text: string;
    isVisible: boolean;
    /**
     * Whether this is the last change of its event.
     */
    settles: boolean;
    /**
     * JSON texts of the diffs that this change covers, or null if it covers a snapshot.
     */
    diffs: string[] | null;
    /**
     * Reason of the last snapshot that this change covers, or null.
     */
    reason: string | null;
};
