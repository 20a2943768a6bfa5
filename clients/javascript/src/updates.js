/** Updates that a loop over a job yields. */

import { lengthOf, withoutLast } from "./code_points.js";
import { VoidTextError } from "./errors.js";
import { ENDED } from "./messages.js";
import { isObject } from "./strict_json.js";

/** @typedef {import("./errors.js").Problem} Problem */
/** @typedef {import("./messages.js").EventId} EventId */

/**
 * A change of one item.
 * @typedef {object} Change
 * @property {import("./document.js").Document} document
 * @property {import("./document.js").Version} version
 * @property {EventId} id
 * @property {number} firstSeq
 * @property {number} index
 * @property {number} deleted
 * @property {string} text
 * @property {boolean} isVisible
 * @property {boolean} settles Whether this is the last change of its event.
 * @property {string[] | null} diffs JSON texts of the diffs that this change covers, or null if it covers a snapshot.
 * @property {string | null} reason Reason of the last snapshot that this change covers, or null.
 */

/** Diffs of merged changes that are kept. Beyond it, `update.ops` is null. */
const MAX_MERGED_DIFFS = 1024;

/** @type {Record<string, string>} */
const CAUSES = {
  restart: "because a new attempt of the job started",
  rewound: "because the server's log had lost its last events",
};

/** @param {string | null} reason */
export function causeOf(reason) {
  return CAUSES[reason ?? ""] ?? "by a rollback";
}

/** Merge a change into an earlier one of the same item. @param {Change} earlier @param {Change} change */
export function merge(earlier, change) {
  const rest = withoutLast(earlier.text, change.deleted);
  earlier.deleted += rest === undefined ? change.deleted - lengthOf(earlier.text) : 0;
  earlier.text = (rest ?? "") + change.text;
  const { document, version, id, settles } = change;
  Object.assign(earlier, { document, version, id, settles });
  earlier.isVisible ||= change.isVisible;
  earlier.reason = change.reason ?? earlier.reason;
  if (earlier.diffs && change.diffs && earlier.diffs.length + change.diffs.length <= MAX_MERGED_DIFFS) earlier.diffs.push(...change.diffs);
  else earlier.diffs = null;
}

/** The value of a job after an event, with the change since the previous update. */
export class Update {
  #change;
  #isDeletedRead = false;

  /** @param {Change} change */
  constructor(change) {
    this.#change = change;
  }

  /** @param {string} name */
  #member(name) {
    const { document, version, index } = this.#change;
    return document.read(version, ["items", String(index), name]);
  }

  /** Index of the input in the job, from 0. */
  get index() {
    return this.#change.index;
  }

  /**
   * Text that was appended to the growing text in the value, after `deleted` code points were removed from its end. If the
   * value contains several growing texts, this is the first of them.
   * @throws {VoidTextError} This update retracts text, and `deleted` was not read before.
   */
  get text() {
    const { deleted, text, reason, id } = this.#change;
    if (deleted > 0 && !this.#isDeletedRead) {
      const advice = "Read update.deleted before update.text, and remove that many code points from the end of your text; update.value is the whole value.";
      throw new VoidTextError(`the server retracted ${deleted} code points at the end of the text, ${causeOf(reason)}`, { lastEventId: id.text, advice });
    }
    return text;
  }

  /** Number of code points that were removed from the end of the text. A loop that reads it must remove them. */
  get deleted() {
    this.#isDeletedRead = true;
    return this.#change.deleted;
  }

  /** Sequence number of the first event that this update covers. */
  get firstSeq() {
    return this.#change.firstSeq;
  }

  /** Sequence number of the last event that this update covers. */
  get seq() {
    return this.#change.id.seq;
  }

  /** Id of the last event that this update covers. */
  get id() {
    return this.#change.id.text;
  }

  /** The complete value after this event. Each access returns a new copy, which takes time in proportion to the value. @returns {any} */
  get value() {
    return this.#member("value") ?? null;
  }

  /** Status of the item after this event. @returns {string} */
  get status() {
    return this.#member("status");
  }

  /** Problem details if the item failed, otherwise null. @returns {Problem | null} */
  get error() {
    return this.#member("error") ?? null;
  }

  /** Whether the item has ended. */
  get ended() {
    return ENDED.includes(this.status);
  }

  /**
   * The ops that lead from the value before this update to its value, in order, with paths relative to the value:
   * `["a", path, piece]` appends, `["t", path, n]` removes from the end, `["s", path, value]` sets, `["i", path, value]`
   * inserts, `["d", path]` deletes. Null if a snapshot replaced the value. Reading them costs no copy of the value.
   * @returns {[op: string, path: string, argument?: any][] | null}
   */
  get ops() {
    const { diffs, document, index } = this.#change;
    if (diffs === null) return null;
    const root = `/items/${index}/value`;
    const all = diffs.flatMap((text) => opsOf(JSON.parse(text), document.columns));
    /** @type {[op: string, path: string, argument?: any][]} */
    const ops = [];
    for (const [op, path, argument] of all) {
      if (path === root || path.startsWith(`${root}/`)) ops.push(op === "d" ? [op, path.slice(root.length)] : [op, path.slice(root.length), argument]);
      // An op on something that contains the value replaces it.
      else if (root.startsWith(`${path}/`)) ops.push(["s", "", this.value]);
    }
    return ops;
  }
}

/** @param {any} diff @param {string[]} columns @returns {any[]} */
function opsOf(diff, columns) {
  if (typeof diff === "string") return [["a", columns[0], diff]];
  const ops = isObject(diff) ? diff.ops : diff;
  return ops.flatMap((/** @type {any} */ op) => {
    if (op[0] !== "r") return [op];
    return columns.map((path, at) => ["a", path, typeof op[at + 1] === "string" ? op[at + 1] : [op[at + 1]]]);
  });
}
