/** Jobs: loops over their updates, text and tokens, and calls that wait for their end. */

import { onAbort } from "./abort_callbacks.js";
import { lengthOf } from "./code_points.js";
import { changeOfText, textAt, tokensOf, valueAt } from "./document.js";
import {
  ClientClosedError, ConcurrentReadError, ItemFailedError, JobCancelledError, JobFailedError, NoTextError, SeveralItemsError,
  TotalTimeoutError, VoidTextError,
} from "./errors.js";
import { JobStream } from "./job_stream.js";
import { ENDED, PROTOCOL, parseId } from "./messages.js";
import { sleep } from "./session.js";
import { copy, same } from "./strict_json.js";
import { tokenRows } from "./tokens.js";
import { Update, merged, voidText } from "./updates.js";

/** @import { Applied, Change, Checkpoint, JobEvent, JobParts, Listener, LoopOptions, Op, Position, Token, WaitOptions } from "./types.js" */

/** Changes that `iterText` keeps apart while it waits for text to become stable. */
const MAX_HELD = 1024;

/** Members that `Job` and `BatchJob` share. */
export class JobBase {
  /** Changes that wait for a loop, merged by item. @type {Map<number, Change>} */
  #pending = new Map();
  /** Identity of the loop that takes the changes, or null. @type {object | null} */
  #loop = null;
  #readers = 0;
  #pulling = /** @type {Promise<void> | null} */ (null);
  #closes = 0;
  /** Changes whose text a loop holds back. The next loop begins with them. @protected @type {Change[]} */
  held = [];
  /** Position of the last event. @type {Position | null} */
  #last = null;
  /** Position of the last delivered change. @type {Position | null} */
  #delivered = null;
  /** The checkpoint at the last delivered change, if the job is read without a loop. @type {Checkpoint | null} */
  #saved = null;
  /** The texts of the items, their columns and lengths, by index. @type {Map<number, {column: string, text: string, length: number}>} */
  #texts = new Map();
  /** What was reported to the listener. @type {{status: string, notes: number, usage: any, items: Map<number, string>} | null} */
  #reported = null;

  /** @param {import("./client.js").Client} client @param {JobParts} parts */
  constructor(client, parts) {
    const { id, checkpoint, listener } = parts;
    this.client = client;
    /** Id of the job. */
    this.id = id;
    /** Function that receives events other than updates while a loop or a call reads the job. @type {Listener | null} */
    this.listener = listener ?? client.options.listener ?? null;
    /** The last queue position that was reported, or null. @type {Extract<JobEvent, {type: "queue"}> | null} */
    this.queue = null;
    /** The last progress that was reported, or null. @type {Extract<JobEvent, {type: "progress"}> | null} */
    this.progress = null;
    /** @protected */
    this.stream = new JobStream(client.session, parts, (event) => this.tell(event));
    const cursor = parseId(checkpoint?.cursor);
    if (!cursor || !checkpoint) return;
    const document = this.stream.follower.restore(checkpoint.state, checkpoint.columns ?? [], cursor);
    const position = (this.#last = this.#delivered = document.position);
    const rest = document.root.items.map((/** @type {any} */ _, /** @type {number} */ index) => this.#textChange(index, null));
    for (const { index, first_seq: firstSeq, deleted, text, visible: isVisible } of checkpoint.undelivered ?? []) {
      this.#enqueue({ ...rest[index], position, firstSeq, index, deleted, text, isVisible, ops: null, reason: null });
    }
  }

  /** Whether the client has received the job's end. */
  get ended() {
    return this.stream.follower.ended;
  }

  /** Number of items; 0 until the client has received the job's state. */
  get itemCount() {
    return this.state?.items.length ?? 0;
  }

  /** The job's state as received, or null. It is not a copy: later events change it, and a caller must not. @returns {any} */
  get state() {
    return this.stream.follower.document?.root ?? null;
  }

  /** Id of the last event that was received, or null. @returns {string | null} */
  get lastEventId() {
    return this.stream.follower.id?.text ?? null;
  }

  /** Request the job's status from the server. @param {LoopOptions} [options] @returns {Promise<string>} */
  async status(options = {}) {
    return (await this.read(options)).status;
  }

  /** Request the whole job from the server. @param {LoopOptions} [options] @returns {Promise<any>} */
  async read({ signal } = {}) {
    return this.stream.readJob(signal);
  }

  /** @protected @param {{items?: number[]}} members @param {AbortSignal} [signal] @returns {Promise<string>} */
  async cancelWith(members, signal) {
    const options = { json: members, jobId: this.id, signal };
    return (await this.client.session.request(`${this.stream.jobUrl}/cancel`, "job", options)).body.status;
  }

  /**
   * Close the connection. The job continues on the server. Calls and loops that have not received everything throw ClientClosedError,
   * a loop whose body runs at its next step. Another loop may start at once, and continues after the last delivered update.
   */
  close() {
    this.#loop = null;
    if (!this.ended || this.#pending.size > 0) {
      this.#closes += 1;
      this.#readers = 0;
    }
    this.stream.close();
  }

  /** Wait until the job has ended, whether it succeeded or not. The call consumes no updates. @param {WaitOptions} [options] */
  async wait({ timeoutMs = this.client.options.timeoutMs, signal } = {}) {
    for await (const _ of this.reads({ timeoutMs, signal }));
  }

  /** The position after the last delivered update, with the whole state. `client.job({ checkpoint })` continues from it. */
  checkpoint() {
    if (this.#saved !== null) return copy(this.#saved);
    const saved = /** @type {Checkpoint} */ ({ protocol: PROTOCOL, job: this.id, url: this.client.url });
    if (this.#delivered === null) return saved;
    const rest = [...this.#pending.values()].filter(({ isVisible }) => isVisible && this.itemCount > 1);
    const position = (rest.length > 0 && this.#last) || this.#delivered;
    const { document, id } = position;
    Object.assign(saved, { state: document.read(position, []), columns: [...document.columns], cursor: id.text });
    if (rest.length === 0) return saved;
    return { ...saved, undelivered: rest.map(({ firstSeq, index, deleted, text }) => ({ index, first_seq: firstSeq, deleted, text, visible: true })) };
  }

  /** Yields before the first and after each read of the stream, until the job has ended. @protected @param {WaitOptions} [options] */
  async *reads({ timeoutMs = Infinity, signal } = {}) {
    const until = performance.now() + timeoutMs;
    const closes = this.#closes;
    this.#readers += 1;
    try {
      for (;;) {
        if (this instanceof Job && this.itemCount > 1) throw new SeveralItemsError(`this job has ${this.itemCount} items, not one`, { jobId: this.id });
        yield;
        this.#requireOpen(closes);
        if (this.ended) return;
        const left = until - performance.now();
        if (left <= 0) throw new TotalTimeoutError("the time limit timeoutMs has passed, and the job has not ended", { jobId: this.id });
        signal?.throwIfAborted();
        this.#pulling ??= this.#advance().finally(() => (this.#pulling = null));
        const end = new AbortController();
        const removeAbort = onAbort(signal, () => end.abort(signal?.reason));
        await Promise.race([this.#pulling, sleep(left, end.signal)]).finally(() => {
          removeAbort();
          end.abort("done");
        });
        this.#requireOpen(closes);
      }
    } finally {
      // After a close, the connection belongs to later readers.
      if (closes === this.#closes && --this.#readers === 0) this.stream.close();
    }
  }

  /** @param {number} closes Number of calls of `close` before the caller started to read. */
  #requireOpen(closes) {
    if (closes !== this.#closes) throw new ClientClosedError("the job was closed", { jobId: this.id });
  }

  /** Read the stream once, for all callers that wait. */
  async #advance() {
    const applied = await this.stream.next();
    if (applied === null) return;
    const { position, firstSeq, isVisible, reason } = applied;
    // Without a loop, the delivered position may stay behind for long, and its distance must not use memory.
    if (this.#loop === null && this.#delivered !== null) {
      this.#saved ??= this.checkpoint();
      this.#delivered = null;
    }
    this.#last = position;
    const changed = changedItems(applied);
    for (const [index, ops] of changed) {
      this.#enqueue({ position, firstSeq, index, ...this.#textChange(index, ops), isVisible, ops: isVisible ? ops : [], reason });
    }
    if (this.listener !== null) this.#report(changed.map(([index]) => index));
  }

  /** Changes in order, also those that changed no value. @protected @param {LoopOptions} [options] */
  async *changes({ signal } = {}) {
    if (this.#loop !== null) throw new ConcurrentReadError("another loop reads this job", { jobId: this.id });
    const loop = (this.#loop = {});
    for (const change of this.held.splice(0).reverse()) this.#requeue(change);
    try {
      for await (const _ of this.reads({ signal })) {
        for (let change; this.#loop === loop && (change = this.#pending.values().next().value); ) {
          this.#pending.delete(change.index);
          yield change;
        }
      }
    } finally {
      if (this.#loop === loop) this.#loop = null;
    }
  }

  /** A change was delivered, so a checkpoint contains it. @protected @param {Position} position */
  commit(position) {
    this.#delivered = position;
    this.#saved = null;
  }

  /** @param {Change} change */
  #enqueue(change) {
    const earlier = this.#pending.get(change.index);
    this.#pending.delete(change.index);
    this.#pending.set(change.index, earlier ? merged(earlier, change) : change);
  }

  /** Put a change that was not delivered before the pending ones. @param {Change} change */
  #requeue(change) {
    const later = this.#pending.get(change.index);
    this.#pending.set(change.index, change);
    if (later) this.#enqueue(later);
  }

  /** The change of an item's text, the length of the new text, and that of its stable part. @param {number} index @param {Op[] | null} ops */
  #textChange(index, ops) {
    const column = this.textColumn(index);
    if (column === undefined) return { deleted: 0, text: "", length: 0, stable: Infinity };
    const before = this.#texts.get(index) ?? { column, text: "", length: 0 };
    const after = textAt(this.state, tokensOf(column));
    const { deleted, text } = changeOfText(column, before.text, after, before.column === column ? ops : null);
    const length = before.length - deleted + lengthOf(text);
    this.#texts.set(index, { column, text: after, length });
    const { stable } = this.state.items[index];
    return { deleted, text, length, stable: stable && !this.ended ? stable[column.slice(`/items/${index}/value`.length)] ?? 0 : Infinity };
  }

  /** Pointer of the text of an item, or undefined if it has none. @protected @param {number} index */
  textColumn(index) {
    const columns = this.stream.follower.document?.columns ?? [];
    const root = `/items/${index}/value`;
    const found = columns.find((path) => `${path}/`.startsWith(`${root}/`) && typeof valueAt(this.state, tokensOf(path)) === "string");
    return found ?? this.#texts.get(index)?.column;
  }

  /** Report what differs from the last report. @param {number[]} changed Items that may differ. */
  #report(changed) {
    const { status, notes = [], usage = {}, items } = this.state;
    if (this.#reported === null) changed = [...items.keys()];
    const last = (this.#reported ??= { status: "", notes: 0, usage: {}, items: new Map() });
    if (status !== last.status) this.tell({ type: "status", status: (last.status = status) });
    for (const index of changed) {
      const { status: itemStatus, error = null } = items[index];
      if (itemStatus !== last.items.get(index)) this.tell({ type: "item", index, status: itemStatus, error: copy(error) });
      last.items.set(index, itemStatus);
    }
    for (const { level, text } of notes.slice(notes.length < last.notes ? 0 : last.notes)) this.tell({ type: "note", level, text });
    last.notes = notes.length;
    if (!same(usage, last.usage)) this.tell({ type: "usage", usage: copy((last.usage = copy(usage))) });
    if (this.ended) this.tell({ type: "end", status, error: copy(this.state.error ?? null) });
  }

  /** Call the listener. Its errors do not break the stream. @param {JobEvent} event */
  tell(event) {
    if (event.type === "queue") this.queue = event;
    if (event.type === "progress") this.progress = event;
    try {
      this.listener?.(event, this);
    } catch (error) {
      console.error("tidewire: ignored an error in the listener of a job", error);
    }
  }

  [Symbol.asyncIterator]() {
    return this.updates();
  }

  /**
   * Each change of the value of an item, exactly once, whatever happens to the connection.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<Update, void, undefined>}
   * @throws {JobFailedError} A `Job` failed. @throws {JobCancelledError} A `Job` was cancelled.
   */
  async *updates({ signal } = {}) {
    for await (const change of this.changes({ signal })) {
      this.commit(change.position);
      if (change.isVisible) yield new Update(change);
    }
    if (this instanceof Job) this.requireSuccess();
  }

  /** Throw if the job has ended without success. @protected */
  requireSuccess() {
    const { status, error, items } = this.state;
    if (status !== "failed" && status !== "cancelled") return;
    const { value = null, error: itemError = null } = items[0];
    const problem = copy(error ?? itemError);
    const details = { jobId: this.id, problem, value: copy(value) };
    if (status === "cancelled") throw new JobCancelledError("the job was cancelled", details);
    throw new JobFailedError("the job failed", details);
  }
}

/** The items that an event has changed, with the ops that changed them. @param {Applied} applied @returns {[index: number, ops: Op[] | null][]} */
function changedItems({ position: { document }, before, ops }) {
  const items = /** @type {any[]} */ (document.root.items);
  const inItems = ops && ops.filter(({ tokens: [first = "items"] }) => first === "items");
  if (items.length === 1 || inItems?.some(({ tokens }) => tokens.length < 2)) return items.map((_, index) => [index, inItems]);
  if (inItems === null) return [...items.keys()].filter((index) => !same(items[index], before?.root.items[index])).map((index) => [index, null]);
  const found = /** @type {Map<number, Op[]>} */ (new Map());
  for (const op of inItems) {
    const index = Number(op.tokens[1]);
    if (!found.get(index)?.push(op)) found.set(index, [op]);
  }
  return [...found].sort(([one], [other]) => one - other);
}

/** A job with one input. The server runs the job even if no client reads its event stream. */
export class Job extends JobBase {
  /**
   * The job's text in pieces, as they arrive. If the server announces which part is stable, the rest is held back until then.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<string, void, undefined>}
   * @throws {VoidTextError} The server retracted text that was yielded. @throws {NoTextError} The server streams no text.
   */
  async *iterText({ signal } = {}) {
    const { held } = this; // none of these changes shortens the text of an earlier one
    for await (let change of this.changes({ signal })) {
      for (let last; (last = held.at(-1)) && (last.length > change.length - lengthOf(change.text) || held.length >= MAX_HELD); held.pop()) {
        change = merged(last, change);
      }
      held.push(change);
      if (change.deleted > 0) throw voidText(change, this.id);
      const ready = held.splice(0, held.filter(({ length }) => length <= change.stable).length);
      if (ready.length === 0) continue;
      this.commit(ready[ready.length - 1].position);
      const piece = ready.map(({ text }) => text).join("");
      if (piece !== "") yield piece;
    }
    this.requireSuccess();
    if (this.textColumn(0) === undefined) throw new NoTextError("the server streams no text in the value of this job", { jobId: this.id });
  }

  /** The changes of the text: `deleted` code points are removed from its end, then `text` is appended. @param {LoopOptions} [options] */
  async *iterTextDeltas(options) {
    for await (const { deleted, text } of this.updates(options)) if (deleted > 0 || text !== "") yield { deleted, text };
  }

  /**
   * All generated tokens from the first one, as they arrive. This loop consumes no updates, so it may run next to another loop.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<Token, void, undefined>} @throws {VoidTextError} Yielded tokens were retracted.
   */
  async *tokens({ signal } = {}) {
    const yielded = /** @type {number[]} */ ([]);
    let vocabulary = /** @type {((id: number) => string) | null | undefined} */ (undefined);
    /** Document and number of its rewrites for which the yielded tokens were compared. @type {any[]} */
    let compared = [];
    for await (const _ of this.reads({ signal })) {
      const { document } = this.stream.follower;
      const value = document?.root.items[0].value;
      const ids = value?.token_ids ?? [];
      if (compared[0] !== document || compared[1] !== document?.rewrites) {
        compared = [document, document?.rewrites];
        const advice = "Call job.tokens() again, which starts with the first token.";
        if (yielded.some((id, at) => ids[at] !== id)) throw new VoidTextError("the server retracted yielded tokens", { jobId: this.id, advice });
      }
      if (ids.length === yielded.length) continue;
      if (vocabulary === undefined && (!value.token_text || (value.top_ids && !value.top_text))) {
        vocabulary = await this.client.vocabulary((await this.read({ signal })).endpoint);
      }
      for (const token of tokenRows(value, yielded.length, vocabulary)) {
        yielded.push(token.id);
        yield token;
      }
    }
    this.requireSuccess();
    if (yielded.length === 0) tokenRows(this.state?.items[0].value);
  }

  /** Wait for the job's end, and return its value. The call consumes no updates. @param {WaitOptions} [options] @returns {Promise<any>} */
  async result(options = {}) {
    await this.wait(options);
    this.requireSuccess();
    return copy(this.state?.items[0].value ?? null);
  }

  /** Cancel the job on the server, and return its status. @param {LoopOptions} [options] */
  cancel({ signal } = {}) {
    return this.cancelWith({}, signal);
  }
}

/** A job with many inputs. */
export class BatchJob extends JobBase {
  /**
   * The index and the result of each item as it ends. The loop consumes no updates. An item that failed has an ItemFailedError.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<[index: number, result: any], void, undefined>}
   */
  async *asCompleted({ signal } = {}) {
    const yielded = /** @type {Set<number>} */ (new Set());
    for await (const _ of this.reads({ signal })) {
      for (const index of this.state?.items.keys() ?? []) {
        if (yielded.has(index) || !ENDED.includes(this.state.items[index].status)) continue;
        yielded.add(index);
        yield [index, this.#resultOf(index)];
      }
    }
  }

  /**
   * Wait for the end of all items, and return their values in the order of the inputs.
   * @param {WaitOptions & {returnExceptions?: boolean}} [options] Whether to return errors of items, and not to throw the first.
   * @returns {Promise<any[]>} @throws {ItemFailedError} An item failed or was cancelled.
   */
  async results({ returnExceptions = false, ...options } = {}) {
    await this.wait(options);
    const results = this.state.items.map((/** @type {any} */ _, /** @type {number} */ index) => this.#resultOf(index));
    const failed = results.find((/** @type {any} */ result) => result instanceof ItemFailedError);
    if (failed && !returnExceptions) throw failed;
    return results;
  }

  /** @param {number} index */
  #resultOf(index) {
    const { status, value = null, error = null } = copy(this.state.items[index]);
    if (status === "succeeded") return value;
    const what = `item ${index} ${status === "cancelled" ? "was cancelled" : "failed"}`;
    return new ItemFailedError(what, { jobId: this.id, problem: error, value, index, ended: status });
  }

  /** Cancel items, by default all, and return the job's status. @param {number[] | null} [items] Indices. @param {LoopOptions} [options] */
  cancel(items = null, { signal } = {}) {
    return this.cancelWith(items === null ? {} : { items }, signal);
  }
}
