/**
 * The client's state machine for one job's event stream, without sockets and clocks.
 *
 * A follower has the state of the job (`document`) and the id of the last event that was applied to it (`id`). Both change
 * together. `receive` returns the action of the caller:
 *
 *     ignore                    nothing
 *     hello    heartbeatMs      the stream is live
 *     applied                   deliver the change
 *     notice                    report the queue position or the progress
 *     cut                       close, wait, request the stream again with `id` as the cursor
 *     goaway   askedMs          the same, after this time
 *     busy     askedMs          the same, as after a 503
 *     resync   why              close, wait, request the stream without a cursor
 *     fatal    error            throw
 *
 * After a resync, `document` remains, so that the next snapshot is compared with what was delivered.
 */

import { textChange } from "./code_points.js";
import { digest } from "./digests.js";
import { DiffError, Document, tokensOf, valueAt } from "./document.js";
import { ProtocolError, StateTooLargeError, UnsupportedProtocolError, refusal } from "./errors.js";
import { ENDED, FITS, PROTOCOL, compareIds, parseId } from "./messages.js";
import { JsonError, copy, isInteger, isObject, parse, same } from "./strict_json.js";

/** @typedef {import("./messages.js").EventId} EventId */
/** @typedef {import("./code_points.js").TextChange} TextChange */
/** @typedef {import("./event_decoder.js").ServerEvent} ServerEvent */

/**
 * A change of the job's state.
 * @typedef {object} Applied
 * @property {"applied"} do
 * @property {EventId} id
 * @property {number} firstSeq First event that this change covers.
 * @property {Document} document
 * @property {import("./document.js").Version} version
 * @property {Document | null} before The replaced document, or null if a diff was applied.
 * @property {Map<string, TextChange>} texts Changes of texts in columns.
 * @property {boolean} isVisible Whether the value of an item changed.
 * @property {string | null} reason Reason of the snapshot, or null.
 * @property {string | null} diff The JSON text of the diff, or null.
 * @property {any[] | null} ops The ops of the diff, or null. They must not be changed.
 */
/**
 * @typedef {Applied | {do: "ignore"} | {do: "cut"} | {do: "hello", heartbeatMs: number} | {do: "notice", type: "queue" | "progress", data: any}
 *   | {do: "goaway" | "busy", askedMs: number | null, why: string} | {do: "resync", why: string, isUnknown: boolean} | {do: "fatal", error: Error}} Action
 */

/** Resyncs in a row that are allowed. */
const MAX_RESYNCS = 3;
/** Applied events without a resync in between after which the count of resyncs starts again. */
const RESYNC_HEALED = 256;
/** @type {Action} */
const IGNORE = { do: "ignore" };

/** An event violates the protocol. */
class Malformed extends Error {}

export class Follower {
  #resyncs = 0;
  #applied = 0;
  #deliveredSeq = 0;
  /** Bytes by which the state may certainly grow. Below 0, its size is measured. */
  #room = 0;
  #pingsAhead = 0;
  #isFirstLogged = true;
  /** @type {EventId | null} */
  #helloHead = null;

  /** @type {Document | null} */
  document = null;
  /** @type {EventId | null} */
  id = null;
  /** Data of `done`, or null. @type {any} */
  done = null;
  /** Whether a logged event has moved the id forward on this connection, other than the snapshot at its beginning. */
  hasProgress = false;
  isGreeted = false;
  /** Link to the stream. @type {string | null} */
  events = null;
  /** Number of events that were dropped because they had been applied before. */
  repeats = 0;

  /** @param {string} jobId @param {number} maxStateBytes */
  constructor(jobId, maxStateBytes) {
    this.jobId = jobId;
    this.maxStateBytes = maxStateBytes;
  }

  /** Continue from a state. @param {any} state @param {string[]} columns @param {EventId} id */
  restore(state, columns, id) {
    this.document = new Document(copy(state), columns);
    this.id = id;
    this.#deliveredSeq = id.seq;
  }

  /** A new connection was opened. */
  connected() {
    this.hasProgress = false;
    this.isGreeted = false;
    this.#isFirstLogged = true;
    this.#pingsAhead = 0;
    this.#helloHead = null;
  }

  /** Whether the current connection has not delivered a logged event yet. */
  get hasDeliveredNothing() {
    return this.#isFirstLogged;
  }

  /** @param {ServerEvent} event @returns {Promise<Action> | Action} A promise only for `done`, whose digest takes time in proportion to the state. */
  receive(event) {
    try {
      const action = this.#receive(event);
      return action instanceof Promise ? action.catch((error) => this.#refused(error)) : action;
    } catch (error) {
      return this.#refused(error);
    }
  }

  /** @param {any} error */
  #refused(error) {
    if (error instanceof DiffError) return this.resync(error.message, error.kind === "unknown");
    if (error instanceof JsonError || error instanceof Malformed) return this.resync(error.message);
    throw error;
  }

  /** @param {ServerEvent} event */
  #receive(event) {
    switch (event.type) {
      case "snapshot":
        return this.#snapshot(event, this.#loggedId(event));
      case "message":
        return this.#diff(event, this.#loggedId(event));
      case "done":
        return this.#done(event, this.#loggedId(event));
      case "hello":
        return this.#hello(fitting("hello", event.data));
      case "ping":
        return this.#ping(fitting("ping", event.data));
      case "goaway": {
        const { reason, retry_ms } = fitting("goaway", event.data);
        return /** @type {Action} */ ({ do: "goaway", askedMs: retry_ms, why: `goaway: ${reason}` });
      }
      case "queue":
      case "progress":
        return /** @type {Action} */ ({ do: "notice", type: event.type, data: copy(fitting(event.type, event.data)) });
      case "problem":
        return this.#problem(copy(fitting("problem", event.data)));
      default:
        if (event.id === null) return IGNORE;
        return this.#isKnown(parseId(event.id)) ? this.#repeat() : this.resync(`unknown logged event ${event.type}`, true);
    }
  }

  // ---- ephemeral events ----------------------------------------------------------------------------------------

  /** @param {any} hello @returns {Action} */
  #hello(hello) {
    const details = { jobId: this.jobId };
    if (hello.protocol !== PROTOCOL) {
      return { do: "fatal", error: new UnsupportedProtocolError(`the server uses the protocol ${JSON.stringify(hello.protocol)}`, details) };
    }
    if (hello.job !== this.jobId) {
      return { do: "fatal", error: new ProtocolError(`the server sent the event stream of another job, ${hello.job}`, details) };
    }
    this.isGreeted = true;
    this.events = hello.events;
    this.#helloHead = parseId(hello.head);
    return { do: "hello", heartbeatMs: hello.heartbeat_ms };
  }

  /** @param {any} ping @returns {Action} */
  #ping(ping) {
    const isAhead = this.id === null || [parseId(ping.head), this.#helloHead].some((head) => head && !this.#isKnown(head));
    this.#pingsAhead = isAhead ? this.#pingsAhead + 1 : 0;
    return this.#pingsAhead < 2 ? IGNORE : { do: "cut" };
  }

  /** @param {import("./errors.js").Problem} problem @returns {Action} */
  #problem(problem) {
    if (problem.retryable) return { do: "busy", askedMs: problem.retry_after_ms ?? null, why: `problem: ${problem.code}` };
    return { do: "fatal", error: refusal(problem.status, problem, { jobId: this.jobId }) };
  }

  // ---- logged events -------------------------------------------------------------------------------------------

  /** @param {ServerEvent} event */
  #loggedId(event) {
    const id = parseId(event.id);
    if (id === null) throw new Malformed(`${event.type} has the id ${JSON.stringify(event.id)}`);
    if (!this.isGreeted) throw new Malformed(`${event.type} ${id.text} arrived before hello`);
    return id;
  }

  /** @param {EventId | null} id */
  #isKnown(id) {
    return id !== null && this.id !== null && compareIds(id, this.id) <= 0;
  }

  /** @returns {Action} */
  #repeat() {
    this.repeats += 1;
    this.#isFirstLogged = false;
    this.#pingsAhead = 0;
    return IGNORE;
  }

  /** @param {ServerEvent} event @param {EventId} id */
  #snapshot(event, id) {
    const { state, columns, reason } = fitting("snapshot", event.data);
    if (ENDED.includes(state.status)) throw new Malformed(`snapshot ${id.text} has a final status, which only done may set`);
    if (this.#isKnown(id) && reason !== "rewound") return this.#repeat();
    this.#room = this.maxStateBytes;
    if (!this.#fits(state, event.data.length)) return this.#tooLarge(`snapshot ${id.text}`);
    return this.#replace(new Document(copy(state), columns), id, reason);
  }

  /** @param {ServerEvent} event @param {EventId} id @returns {Action} */
  #diff(event, id) {
    if (this.#isKnown(id)) return this.#repeat();
    const diff = parse(event.data);
    const document = this.document;
    const on = isObject(diff) && "on" in diff ? diff.on : id.seq - 1;
    if (!isInteger(on, 0, id.seq - 1)) throw new Malformed(`the member on of diff ${id.text} is not an earlier event`);
    if (document === null || this.id?.epoch !== id.epoch || this.id.seq !== on) {
      throw new Malformed(`diff ${id.text} does not continue from ${this.id?.text ?? "a state"}`);
    }
    /** @type {any[]} */
    let ops = [];
    const texts = document.apply(diff, (all) => {
      ops = all;
      for (const op of all) requireShape(document.root, op);
    });
    if (!this.#fits(document.root, event.data.length)) return this.#tooLarge(`diff ${id.text}`);
    const isVisible = ops.some((op) => op[0] === "r" || touchesValue(op[1]));
    return this.#moved(id, { document, before: null, texts, isVisible, reason: null, diff: event.data, ops });
  }

  /** @param {ServerEvent} event @param {EventId} id @returns {Promise<Action> | Action} */
  #done(event, id) {
    if (this.#isKnown(id)) return this.#repeat();
    const done = fitting("done", event.data);
    const document = this.document;
    if (document === null || this.id?.epoch !== id.epoch || this.id.seq !== id.seq - 1) {
      throw new Malformed(`done ${id.text} does not continue from ${this.id?.text ?? "a state"}`);
    }
    document.verify(done.check ?? []);
    return digest(document.root.items).then((found) => {
      if (found !== done.digest) throw new Malformed(`the digest of the final items is ${found}, not ${done.digest}`);
      const ops = ["status", "usage", "error"].filter((name) => (done[name] ?? null) !== null).map((name) => ["s", `/${name}`, done[name]]);
      const texts = document.apply(ops);
      this.done = copy(done);
      return this.#moved(id, { document, before: null, texts, isVisible: false, reason: null, diff: null, ops });
    });
  }

  // ---- reads of the job ----------------------------------------------------------------------------------------

  /**
   * Take over the state of a job that was read, as from a snapshot. A job that has ended ends the stream.
   * @param {any} job @returns {Promise<Action>}
   */
  async adopt(job) {
    try {
      if (job.id !== this.jobId) throw new Malformed(`the job that was read is ${job.id}`);
      const id = /** @type {EventId} */ (parseId(job.cursor));
      const done = job.done ?? null;
      if ((done !== null) !== ENDED.includes(job.status)) throw new Malformed("a job that was read has ended without done");
      if (done === null && this.#isKnown(id)) return IGNORE;
      const document = new Document(copy(job.state), job.columns);
      if (done !== null) {
        document.verify(done.check ?? []);
        if ((await digest(document.root.items)) !== done.digest) throw new Malformed("the digest of a job that was read is wrong");
      }
      if (!this.#fits(document.root, Infinity)) return this.#tooLarge("the job that was read");
      this.done = copy(done);
      return this.#replace(document, id, null);
    } catch (error) {
      return this.#refused(error);
    }
  }

  // ---- transitions ---------------------------------------------------------------------------------------------

  /** @param {Document} document @param {EventId} id @param {string | null} reason */
  #replace(document, id, reason) {
    const before = this.document;
    /** @type {Map<string, TextChange>} */
    const texts = new Map();
    for (const path of new Set([...(before?.columns ?? []), ...document.columns])) {
      const [old, now] = [before, document].map((each) => (each?.columns.includes(path) ? valueAt(each.root, tokensOf(path)) : ""));
      if (old === now) continue;
      const change = textChange(typeof old === "string" ? old : "", typeof now === "string" ? now : "");
      if (change.deleted > 0 || change.text !== "") texts.set(path, change);
    }
    const items = document.root.items;
    const isVisible =
      texts.size > 0 ||
      (before
        ? !same(before.root.items.map(valueOf), items.map(valueOf))
        : document.root.status !== "queued" && items.map(valueOf).some((/** @type {any} */ value) => value !== null));
    const isOpening = this.#isFirstLogged && reason !== null;
    return this.#moved(id, { document, before, texts, isVisible, reason, diff: null, ops: null }, isOpening);
  }

  /**
   * @param {EventId} id @param {Omit<Applied, "do" | "id" | "firstSeq" | "version">} change
   * @param {boolean} [isOpening] Whether this is the snapshot at the beginning of a connection. @returns {Applied}
   */
  #moved(id, change, isOpening = false) {
    this.hasProgress ||= !isOpening && !this.#isKnown(id);
    this.#isFirstLogged = false;
    this.#pingsAhead = 0;
    this.#applied += 1;
    if (this.#applied >= RESYNC_HEALED) this.#resyncs = 0;
    const firstSeq = Math.min(this.#deliveredSeq + 1, id.seq);
    if (change.isVisible || this.done) this.#deliveredSeq = id.seq;
    this.document = change.document;
    this.id = id;
    return { do: "applied", id, firstSeq, version: change.document.version, ...change };
  }

  /**
   * Whether the state is within the limit. It is measured only if it may have grown beyond it.
   * @param {any} state @param {number} added Length of the event.
   */
  #fits(state, added) {
    this.#room -= 3 * added;
    if (this.#room >= 0) return true;
    const size = new TextEncoder().encode(JSON.stringify(state)).length;
    this.#room = Math.max(this.maxStateBytes - size, this.maxStateBytes / 16);
    return size <= this.maxStateBytes;
  }

  /** @param {string} what @returns {Action} */
  #tooLarge(what) {
    const details = { jobId: this.jobId, lastEventId: this.id?.text };
    return { do: "fatal", error: new StateTooLargeError(`${what} makes the job's state larger than maxStateBytes, ${this.maxStateBytes}`, details) };
  }

  /**
   * Drop the cursor, and start again from a snapshot.
   * @param {string} why @param {boolean} [isUnknown] Whether the server may use a newer protocol. @returns {Action}
   */
  resync(why, isUnknown = false) {
    const details = { jobId: this.jobId, lastEventId: this.id?.text };
    this.id = null;
    this.#applied = 0;
    this.#resyncs += 1;
    if (this.#resyncs <= MAX_RESYNCS) return { do: "resync", why, isUnknown };
    const kind = isUnknown ? UnsupportedProtocolError : ProtocolError;
    return { do: "fatal", error: new kind(`${why}, after ${MAX_RESYNCS} resyncs`, details) };
  }
}

/** @param {any} item */
function valueOf(item) {
  return item.value ?? null;
}

/** @param {keyof typeof FITS} name @param {string} data */
function fitting(name, data) {
  const message = parse(data);
  if (!FITS[name](message)) throw new Malformed(`the data of ${name} does not fit its schema`);
  return message;
}

/**
 * Check that a state is still valid after an op. Only the part that the op may have made invalid is checked.
 * @param {any} state @param {any} op An op that was applied.
 */
function requireShape(state, op) {
  if (op[0] === "r") return;
  const [first, second, third] = tokensOf(op[1]);
  if ((first === "usage" && second !== undefined) || (first === "items" && third === "value")) return;
  const isItem = first === "items" && third !== undefined;
  if (isItem ? FITS.item(state.items[second]) : FITS.state(state) && !ENDED.includes(state.status)) return;
  throw new Malformed(`the op ${op[0]} ${op[1]} leaves an invalid state`);
}

/** @param {string} path */
function touchesValue(path) {
  const tokens = path.split("/", 4);
  return (tokens.length < 4 && (tokens.length === 1 || tokens[1] === "items")) || tokens[3] === "value";
}
