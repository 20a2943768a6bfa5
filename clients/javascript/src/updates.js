/** Updates that a loop over a job yields. */

import { lengthOf, withoutLast } from "./code_points.js";
import { VoidTextError } from "./errors.js";
import { ENDED } from "./messages.js";
import { copy } from "./strict_json.js";

/** @import { Change, Op, Problem } from "./types.js" */

/**
 * Length of the ops of merged changes that are kept, as JSON. Beyond it, `update.ops` is null. Without a limit, a value that is
 * replaced often would be kept in all its versions until a loop reads them.
 */
const MAX_MERGED_LENGTH = 65_536;

/** The error for a change that retracts text. @param {Change} change @param {string} [jobId] */
export function voidText({ deleted, reason, position }, jobId) {
  const lost = reason === "rewound" ? "because the server's log had lost its last events" : "by a rollback";
  const cause = reason === "restart" ? "because a new attempt of the job started" : lost;
  const what = `the server retracted ${deleted} code points of text that it had delivered, ${cause}`;
  return new VoidTextError(what, { jobId, lastEventId: position.id.text });
}

/** @param {Op[]} ops */
function lengthOfOps(ops) {
  return ops.reduce((length, { name, path, argument }) => length + JSON.stringify([name, path, argument]).length, 0);
}

/** Two changes of an item as one. @param {Change} earlier @param {Change} change @returns {Change} */
export function merged(earlier, change) {
  const rest = withoutLast(earlier.text, change.deleted);
  const opsLength = earlier.ops && change.ops ? (earlier.opsLength ?? lengthOfOps(earlier.ops)) + lengthOfOps(change.ops) : Infinity;
  return {
    ...change,
    firstSeq: earlier.firstSeq,
    deleted: earlier.deleted + (rest === undefined ? change.deleted - lengthOf(earlier.text) : 0),
    text: (rest ?? "") + change.text,
    isVisible: earlier.isVisible || change.isVisible,
    reason: change.reason ?? earlier.reason,
    ops: opsLength > MAX_MERGED_LENGTH ? null : [...(earlier.ops ?? []), ...(change.ops ?? [])],
    opsLength,
  };
}

/** The value of a job after an event, with the change since the previous update. */
export class Update {
  #change;
  #isDeletedRead = false;

  /** @param {Change} change */
  constructor(change) {
    const { index, firstSeq, position } = change;
    this.#change = change;
    /** Index of the input in the job, from 0. */
    this.index = index;
    /** Sequence number of the first event that this update covers. */
    this.firstSeq = firstSeq;
    /** Sequence number of the last event that this update covers. */
    this.seq = position.id.seq;
    /** Id of the last event that this update covers. */
    this.id = position.id.text;
  }

  /** @param {string} name */
  #member(name) {
    const { position, index } = this.#change;
    return position.document.read(position, ["items", String(index), name]) ?? null;
  }

  /**
   * Text that was appended to the growing text in the value, after `deleted` code points were removed from its end. If the
   * value contains several growing texts, this is the first of them.
   * @throws {VoidTextError} This update retracts text, and `deleted` was not read before.
   */
  get text() {
    if (this.#change.deleted > 0 && !this.#isDeletedRead) throw voidText(this.#change);
    return this.#change.text;
  }

  /** Number of code points that were removed from the end of the text. A loop that reads it must remove them. */
  get deleted() {
    this.#isDeletedRead = true;
    return this.#change.deleted;
  }

  /** The complete value after this event, as a new copy, which takes time in proportion to the value. @returns {any} */
  get value() {
    return this.#member("value");
  }

  /** Status of the item after this event. @returns {string} */
  get status() {
    return this.#member("status");
  }

  /** Problem details if the item failed, otherwise null. @returns {Problem | null} */
  get error() {
    return this.#member("error");
  }

  /** Whether the item has ended. */
  get ended() {
    return ENDED.includes(this.status);
  }

  /**
   * The ops that lead from the value before this update to its value, in order, with paths relative to the value:
   * `["a", path, piece]` appends, `["t", path, n]` removes from the end, `["s", path, value]` sets, `["i", path, value]`
   * inserts, `["d", path]` deletes. Null if a snapshot replaced the value, if an op changed something that contains the value, or
   * if this update covers many events whose ops are larger than 64 KiB. Reading them costs no copy of the value.
   * @returns {[op: string, path: string, argument?: any][] | null}
   */
  get ops() {
    const { ops, index } = this.#change;
    const root = `/items/${index}/value`;
    // The value after an op on its item is unknown: `value` contains the later ops of this update, too.
    if (ops === null || ops.some(({ path }) => root.startsWith(`${path}/`))) return null;
    return ops.flatMap(({ name, path, argument }) => {
      if (path !== root && !path.startsWith(`${root}/`)) return [];
      return [name === "d" ? [name, path.slice(root.length)] : [name, path.slice(root.length), copy(argument)]];
    });
  }
}
