/**
 * The client's state machine for one job's event stream, without sockets and clocks. `receive` throws an error with
 * `interruption` if the stream must be requested again, with `id` as the cursor, and `InvalidData` if it must be requested
 * without one. `document` then remains, so that the next snapshot is compared with what was delivered.
 */

import { digest } from "./digests.js";
import { Document } from "./document.js";
import { ProtocolError, RequestError, StateTooLargeError, TransportError, UnsupportedProtocolError } from "./errors.js";
import { ENDED, FITS, PROTOCOL, compareIds, parseId } from "./messages.js";
import { InvalidData, copy, isObject, parse, same } from "./strict_json.js";

/** @import { Applied, ErrorDetails, EventId, JobEvent, Op, ServerEvent } from "./types.js" */

const LOGGED = ["snapshot", "message", "done"];
const EPHEMERAL = ["hello", "ping", "goaway", "queue", "progress", "problem"];
const MAX_RESYNCS = 3;
/** Applied events without a resync in between after which the count of resyncs starts again. */
const RESYNC_HEALED = 256;
/**
 * What has arrived on a connection. `hasProgress`: whether a logged event other than a snapshot at its beginning moved the id forward.
 * `isConfirmed`: whether the last ping arrived after `hello`, and its head is the id.
 */
const NEW_CONNECTION = { hello: /** @type {any} */ (null), pingsAhead: 0, isConfirmed: false, isEmpty: true, hasProgress: false };

export class Follower {
  #resyncs = 0;
  #applied = 0;
  #visibleSeq = 0;
  /** Bytes by which the state may certainly grow. Below 0, its size is measured. */
  #room = 0;
  connection = { ...NEW_CONNECTION };
  document = /** @type {Document | null} */ (null);
  id = /** @type {EventId | null} */ (null);
  /** Number of events that were dropped because they had been applied before. */
  repeats = 0;

  /** @param {string} jobId @param {number} maxStateBytes */
  constructor(jobId, maxStateBytes) {
    this.jobId = jobId;
    this.maxStateBytes = maxStateBytes;
  }

  /** Whether the state is that of an ended job. Only `done` and a job that was read with `done` set such a state. */
  get ended() {
    return ENDED.includes(this.document?.root.status);
  }

  /** Continue from a state. @param {any} state @param {string[]} columns @param {EventId} id */
  restore(state, columns, id) {
    this.document = new Document(copy(state), columns, id);
    this.id = id;
    this.#visibleSeq = id.seq;
    return this.document;
  }

  connected() {
    this.connection = { ...NEW_CONNECTION };
  }

  /** Take over a job that was read, as from a snapshot. @param {any} job @returns {Promise<Applied | null>} @throws {InvalidData} Call `resync`. */
  async adopt(job) {
    if (job.id !== this.jobId) throw new InvalidData(`the job that was read is ${job.id}`);
    const id = /** @type {EventId} */ (parseId(job.cursor));
    const done = job.done ?? null;
    if ((done !== null) !== ENDED.includes(job.state.status)) throw new InvalidData("a job that was read has ended without done");
    if (done === null && this.#isKnown(id)) return null;
    const document = new Document(job.state, job.columns, id);
    if (done !== null) await requireDigest(document, done);
    return this.#moved(document, null);
  }

  /** Take an event. @param {ServerEvent} event @returns {Promise<Applied | JobEvent | null>} @throws {InvalidData} Call `resync`. */
  async receive({ type, data, id: idText }) {
    if (LOGGED.includes(type)) return this.#logged(type, data, parseId(idText));
    if (!EPHEMERAL.includes(type)) {
      if (idText !== null && !this.#isKnown(parseId(idText))) throw new InvalidData(`unknown logged event ${type}`, "unknown");
      return idText === null ? null : this.#repeat();
    }
    const { connection } = this;
    const message = copy(fitting(type, data));
    if (type === "queue") return { type, position: message.position, etaMs: message.eta_ms ?? null, waitsFor: message.waits_for ?? null };
    if (type === "progress") return { ...message, type };
    if (type === "goaway") throw this.#interrupted(`goaway: ${message.reason}`, "goaway", message.retry_ms);
    if (type === "problem") {
      if (!message.retryable) throw RequestError.from(message.status, message, { jobId: this.jobId });
      throw this.#interrupted(`problem: ${message.code}`, "wait", message.retry_after_ms);
    }
    if (type === "ping") {
      const heads = [message.head, connection.hello?.head];
      const isAhead = heads.some((head) => head && !this.#isKnown(parseId(head)));
      connection.pingsAhead = isAhead ? connection.pingsAhead + 1 : 0;
      connection.isConfirmed = connection.hello !== null && !isAhead && heads.includes(this.id?.text);
      if (connection.pingsAhead >= 2) throw this.#interrupted("the server has events that it does not send", "cut");
      return null;
    }
    const { protocol, job } = message;
    if (protocol !== PROTOCOL) throw new UnsupportedProtocolError(`the server uses the protocol ${JSON.stringify(protocol)}`, { jobId: this.jobId });
    if (job !== this.jobId) throw new ProtocolError(`the server sent the event stream of another job, ${job}`, { jobId: this.jobId });
    connection.hello = message;
    return null;
  }

  /** @param {string} type @param {string} data @param {EventId | null} id */
  async #logged(type, data, id) {
    if (id === null) throw new InvalidData(`${type} has no valid id`);
    if (!this.connection.hello) throw new InvalidData(`${type} ${id.text} arrived before hello`);
    if (this.#isKnown(id) && type !== "snapshot") return this.#repeat();
    const message = type === "message" ? parse(data) : fitting(type, data);
    if (type === "snapshot") {
      const { state, columns, reason } = message;
      if (ENDED.includes(state.status)) throw new InvalidData(`snapshot ${id.text} has a final status, which only done may set`);
      if (this.#isKnown(id) && reason !== "rewound") return this.#repeat();
      return this.#moved(new Document(copy(state), columns, id), null, { reason });
    }
    const on = type === "message" && isObject(message) && "on" in message ? message.on : id.seq - 1;
    const document = this.document;
    if (document === null || this.id?.epoch !== id.epoch || this.id.seq !== on) {
      throw new InvalidData(`${type} ${id.text} does not continue from ${this.id?.text ?? "a state"}`);
    }
    if (type === "message") {
      const ops = document.apply(message, id, (ops) => requireShape(document.root, ops));
      return this.#moved(document, ops, { added: data.length });
    }
    await requireDigest(document, message);
    const members = ["status", "usage", "error"].filter((name) => (message[name] ?? null) !== null);
    const ops = document.apply(members.map((name) => ["s", `/${name}`, message[name]]), id);
    return this.#moved(document, ops, { added: 0 });
  }

  /** @param {EventId | null} id */
  #isKnown(id) {
    return id !== null && this.id !== null && compareIds(id, this.id) <= 0;
  }

  #repeat() {
    this.repeats += 1;
    Object.assign(this.connection, { isEmpty: false, pingsAhead: 0 });
    return null;
  }

  /**
   * The job has moved to a state. `added`: length of the diff. The end of a job that succeeded without a value is visible, too.
   * @param {Document} document @param {Op[] | null} ops @param {{reason?: string | null, added?: number}} [event] @returns {Applied}
   */
  #moved(document, ops, { reason = null, added = Infinity } = {}) {
    const { position, root } = document;
    const before = this.document;
    this.#requireRoom(root, added, position.id);
    const isOpening = this.connection.isEmpty && reason !== null;
    this.connection.hasProgress ||= !isOpening && !this.#isKnown(position.id);
    Object.assign(this.connection, { isEmpty: false, pingsAhead: 0 });
    this.#applied += 1;
    if (this.#applied >= RESYNC_HEALED) this.#resyncs = 0;
    const isVisible = changesValue(before, document, ops) || (root.status === "succeeded" && this.#visibleSeq === 0);
    const firstSeq = Math.min(this.#visibleSeq + 1, position.id.seq);
    if (isVisible) this.#visibleSeq = position.id.seq;
    this.document = document;
    this.id = position.id;
    return { type: "applied", position, firstSeq, before, isVisible, reason, ops };
  }

  /** Throw if the state is too large. It is measured only if it may be. @param {any} state @param {number} added @param {EventId} id */
  #requireRoom(state, added, id) {
    this.#room -= 3 * added;
    if (this.#room >= 0) return;
    const size = new TextEncoder().encode(JSON.stringify(state)).length;
    this.#room = Math.max(this.maxStateBytes - size, this.maxStateBytes / 16);
    if (size <= this.maxStateBytes) return;
    const what = `the state of the job at event ${id.text} is larger than maxStateBytes, ${this.maxStateBytes}`;
    throw new StateTooLargeError(what, { jobId: this.jobId, lastEventId: this.id?.text });
  }

  /** @param {string} what @param {ErrorDetails["interruption"]} interruption @param {number} [retryAfterMs] */
  #interrupted(what, interruption, retryAfterMs) {
    return new TransportError(what, { jobId: this.jobId, lastEventId: this.id?.text, interruption, retryAfterMs });
  }

  /** Drop the cursor after invalid data, and return the error to throw. @param {InvalidData} error */
  resync({ message, kind }) {
    const details = { jobId: this.jobId, lastEventId: this.id?.text };
    const isTooLarge = kind === "too_large";
    if (isTooLarge && this.id === null) return new StateTooLargeError(message, details); // the event is the snapshot
    this.id = null;
    this.#applied = 0;
    this.#resyncs += 1;
    if (this.#resyncs <= MAX_RESYNCS) return this.#interrupted(message, "resync");
    const Kind = isTooLarge ? StateTooLargeError : kind === "unknown" ? UnsupportedProtocolError : ProtocolError;
    return new Kind(`${message}, after ${MAX_RESYNCS} resyncs`, details);
  }
}

/** @param {string} name @param {string} data */
function fitting(name, data) {
  const message = parse(data);
  if (!FITS[name](message)) throw new InvalidData(`the data of ${name} does not fit its schema`);
  return message;
}

/** @param {Document} document @param {any} done */
async function requireDigest(document, done) {
  document.verify(done.check ?? []);
  const found = await digest(document.root.items);
  if (found !== done.digest) throw new InvalidData(`the digest of the final items is ${found}, not ${done.digest}`);
}

/** Whether an event has changed the value of an item. @param {Document | null} before @param {Document} document @param {Op[] | null} ops */
function changesValue(before, { root }, ops) {
  if (ops) return ops.some(({ tokens: [first = "items", , third = "value"] }) => first === "items" && third === "value");
  const [old, now] = [before?.root, root].map((state) => state?.items.map((/** @type {any} */ item) => item.value ?? null));
  return before ? !same(old, now) : root.status !== "queued" && now.some((/** @type {any} */ value) => value !== null);
}

/**
 * Check that a state is still valid after ops. Each part that they may have made invalid is checked once, because thousands of ops
 * of a diff may change the same part, and a check of a large state takes long.
 * @param {any} state @param {Op[]} ops
 */
function requireShape(state, ops) {
  const changed = /** @type {Map<string | undefined, Op>} */ (new Map());
  for (const op of ops) {
    const [first, second, third] = op.tokens;
    if ((first === "items" && third === "value") || (first === "usage" && second !== undefined)) continue;
    changed.set(first === "items" && third !== undefined ? second : undefined, op);
  }
  for (const [item, { name, path }] of changed) {
    if (item === undefined ? FITS.state(state) && !ENDED.includes(state.status) : FITS.item(state.items[Number(item)])) continue;
    throw new InvalidData(`the op ${name} ${path} leaves an invalid state`);
  }
}
