/** Jobs: loops over their updates, text and tokens, and calls that wait for their end. */

import { lengthOf } from "./code_points.js";
import { tokensOf, valueAt } from "./document.js";
import {
  ClientClosedError, ConcurrentReadError, ItemFailedError, JobCancelledError, JobFailedError, NoTextError,
  SeveralItemsError, TidewireError, TotalTimeoutError, VoidTextError,
} from "./errors.js";
import { ENDED, PROTOCOL } from "./messages.js";
import { copy, isObject, same } from "./strict_json.js";
import { hasTokenTexts, tokenRows } from "./tokens.js";
import { Update, causeOf, merge } from "./updates.js";

/** @typedef {import("./follower.js").Applied} Applied */
/** @typedef {import("./updates.js").Change} Change */
/** @typedef {import("./errors.js").Problem} Problem */
/** @typedef {import("./code_points.js").TextChange} TextChange */
/** @typedef {import("./tokens.js").Token} Token */

/**
 * What a listener receives, in addition to the updates of a loop:
 * `queue` and `progress` as the server reports them, `status` of the job, `item` when the status of an item changes,
 * `note` for each note of the function, `usage` when it changes, `connection` for the state of the connection, and `end`.
 * @typedef {{type: "queue", position: number, etaMs: number | null, waitsFor: string | null}
 *   | {type: "progress", current?: number | null, total?: number | null, unit?: string | null, phase?: string | null, item?: number | null}
 *   | {type: "status", status: string} | {type: "item", index: number, status: string, error: Problem | null}
 *   | {type: "note", level: string, text: string} | {type: "usage", usage: Record<string, any>}
 *   | {type: "end", status: string, error: Problem | null} | import("./job_stream.js").ConnectionEvent} JobEvent
 */
/** @typedef {(event: JobEvent, job: JobBase) => void} Listener */
/** @typedef {{signal?: AbortSignal}} LoopOptions */
/** @typedef {{timeoutMs?: number, signal?: AbortSignal}} WaitOptions */

/**
 * A saved position in a job's updates, as JSON. The Python client reads and writes the same members.
 * @typedef {object} Checkpoint
 * @property {string} protocol
 * @property {string} job
 * @property {string | null} [url]
 * @property {any} [state]
 * @property {string[]} [columns]
 * @property {string | null} [cursor]
 * @property {{index: number, first_seq: number, deleted: number, text: string, visible: boolean}[]} [undelivered]
 */

/** Changes that wait for a loop. If there are more, changes of one item are merged. */
const MAX_QUEUED = 1024;
/** Changes of text that `iterText` holds back until they are stable. If there are more, they are merged. */
const MAX_HELD = 1024;

/** Members that `Job` and `BatchJob` share. */
export class JobBase {
  /** @type {Change[]} */
  #queue = [];
  /** The loop that reads this job, if there is one. @type {{isSilent: boolean} | null} */
  #loop = null;
  #waiting = 0;
  /** @type {Promise<void> | null} */
  #pulling = null;
  #closes = 0;
  /** Position of the last delivered change: a change, or a copy of its state. @type {Change | {state: any, columns: string[], id: string} | null} */
  #delivered = null;
  #hasUpdates = false;
  /** Columns of the texts of the items, by index. @type {Map<number, string>} */
  #texts = new Map();
  #notes = 0;
  #status = "";
  /** @type {Map<number, string>} */
  #itemStatuses = new Map();
  /** @type {any} */
  #usage = {};
  #reported = false;

  /** @param {import("./client.js").JobParts} parts */
  constructor({ client, stream, listener, endpoint, delivered, undelivered }) {
    this.client = client;
    /** @protected */
    this.stream = stream;
    /** Function that receives events other than updates while a loop or a call reads the job. @type {Listener | null} */
    this.listener = listener;
    /** @protected */
    this.endpoint = endpoint;
    stream.tell = (event) => this.tell(event);
    /** The last queue position that was reported, or null. @type {Extract<JobEvent, {type: "queue"}> | null} */
    this.queue = null;
    /** The last progress that was reported, or null. @type {Extract<JobEvent, {type: "progress"}> | null} */
    this.progress = null;
    if (delivered) {
      const { document, id } = stream.follower;
      if (document === null || id === null) throw new TidewireError("a checkpoint without a state");
      const position = { document, version: document.version, id, deleted: 0, text: "", isVisible: true, settles: true, diffs: null, reason: null };
      this.#delivered = { ...position, firstSeq: id.seq, index: 0 };
      this.#hasUpdates = true;
      document.root.items.forEach((/** @type {any} */ _, /** @type {number} */ index) => this.#textColumn(index));
      this.#queue = (undelivered ?? []).map((one, at, all) => ({
        ...position, index: one.index, firstSeq: one.first_seq, deleted: one.deleted, text: one.text, isVisible: one.visible,
        settles: at === all.length - 1,
      }));
    }
  }

  /** Id of the job. */
  get id() {
    return this.stream.follower.jobId;
  }

  /** Whether the client has received the job's end. */
  get ended() {
    return this.stream.ended;
  }

  /** Number of items; 0 until the client has received the job's state. */
  get itemCount() {
    return this.state?.items.length ?? 0;
  }

  /**
   * The job's state as far as it was received, or null. It is not a copy: later events change it, and a caller must not.
   * A page that draws often reads it in place of `update.value`.
   * @returns {any}
   */
  get state() {
    return this.stream.follower.document?.root ?? null;
  }

  /** Id of the last event that was received, or null. @returns {string | null} */
  get lastEventId() {
    return this.stream.follower.id?.text ?? null;
  }

  /** Request the job's status from the server. @param {{signal?: AbortSignal}} [options] @returns {Promise<string>} */
  async status(options = {}) {
    return (await this.read(options)).status;
  }

  /** Request the whole job from the server. @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
  async read({ signal } = {}) {
    const { body } = await this.client.session.request(this.stream.jobUrl, "job", { jobId: this.id, signal });
    return copy(body);
  }

  /** @protected @param {string} body @param {AbortSignal} [signal] @returns {Promise<string>} */
  async cancelWith(body, signal) {
    const headers = { "content-type": "application/json" };
    const { body: job } = await this.client.session.request(`${this.stream.jobUrl}/cancel`, "job", { method: "POST", headers, body, jobId: this.id, signal });
    return job.status;
  }

  /** Close the connection. The job continues on the server. Pending loops and calls throw ClientClosedError. */
  close() {
    this.#closes += 1;
    this.stream.close();
  }

  /** Wait until the job has ended, whether it succeeded or not. The call consumes no updates. @param {WaitOptions} [options] */
  async wait({ timeoutMs = this.client.options.timeoutMs ?? Infinity, signal } = {}) {
    const until = performance.now() + timeoutMs;
    this.#waiting += 1;
    try {
      for (;;) {
        this.requireItems();
        if (this.ended) return;
        const left = until - performance.now();
        if (left <= 0) throw new TotalTimeoutError(`the time of ${timeoutMs} ms has passed, and the job has not ended`, { jobId: this.id });
        await this.#changed(signal, left);
      }
    } finally {
      this.#waiting -= 1;
      this.#pauseIfUnused();
    }
  }

  /**
   * The position after the last delivered update. `client.job({ checkpoint })` continues from it. It contains the whole state.
   * @returns {Checkpoint}
   */
  checkpoint() {
    /** @type {Checkpoint} */
    const saved = { protocol: PROTOCOL, job: this.id, url: this.client.url };
    const last = this.#delivered;
    if (last === null) return saved;
    if ("state" in last) return { ...saved, state: copy(last.state), columns: [...last.columns], cursor: last.id };
    const rest = last.settles ? [] : this.#queue.slice(0, this.#queue.findIndex((change) => change.settles) + 1);
    const { document, version, id } = rest[rest.length - 1] ?? last;
    const undelivered = rest.map(({ index, firstSeq, deleted, text, isVisible }) => ({ index, first_seq: firstSeq, deleted, text, visible: isVisible }));
    return { ...saved, state: document.read(version, []), columns: [...document.columns], cursor: id.text, ...(rest.length ? { undelivered } : {}) };
  }

  // ---- reading -------------------------------------------------------------------------------------------------

  /**
   * Wait until something may have changed. Concurrent callers share one read of the stream.
   * @param {AbortSignal} [signal] @param {number} [timeoutMs]
   */
  async #changed(signal, timeoutMs = Infinity) {
    signal?.throwIfAborted();
    const closes = this.#closes;
    const { stop, stopped } = whenAborted(signal, timeoutMs);
    try {
      this.#pulling ??= this.#advance().finally(() => (this.#pulling = null));
      await Promise.race([this.#pulling, stopped]);
    } finally {
      stop();
    }
    signal?.throwIfAborted();
    if (closes !== this.#closes) throw new ClientClosedError("the job was closed", { jobId: this.id });
  }

  async #advance() {
    const action = await this.stream.next();
    if (action?.do === "notice") this.#notice(action.type, action.data);
    else if (action) this.#applied(action);
  }

  #pauseIfUnused() {
    if (this.#loop === null && this.#waiting === 0) this.stream.close();
  }

  /**
   * Changes in order. Only one loop reads a job at a time.
   * @protected @param {{isSilent?: boolean, signal?: AbortSignal}} [options] `isSilent` also yields changes that changed no value.
   * @returns {AsyncGenerator<Change, void, undefined>}
   */
  async *changes({ isSilent = false, signal } = {}) {
    if (this.#loop !== null) throw new ConcurrentReadError("another loop reads this job", { jobId: this.id });
    this.#loop = { isSilent };
    try {
      for (;;) {
        this.requireItems();
        const change = this.#queue.shift();
        if (change) {
          if (isSilent || change.isVisible) yield change;
        } else if (this.ended) return;
        else await this.#changed(signal);
      }
    } finally {
      this.#loop = null;
      this.#pauseIfUnused();
    }
  }

  /**
   * The value of the first item after each change, without a copy, which must not be changed. `rewrites` differs if it did more than grow.
   * @protected @param {AbortSignal} [signal] @returns {AsyncGenerator<{value: any, rewrites: string}, void, undefined>}
   */
  async *values(signal) {
    let known = null;
    let documents = 0;
    this.#waiting += 1;
    try {
      for (let seen = null; ; ) {
        const { document } = this.stream.follower;
        this.requireItems();
        if (document && document.version !== seen) {
          if (document !== known) documents += 1;
          known = document;
          seen = document.version;
          yield { value: document.root.items[0].value, rewrites: `${documents} ${document.rewrites}` };
        } else if (this.ended) return;
        else await this.#changed(signal);
      }
    } finally {
      this.#waiting -= 1;
      this.#pauseIfUnused();
    }
  }

  /** A change was delivered, so a checkpoint contains it. @protected @param {Change} change */
  commit(change) {
    this.#delivered = change;
  }

  /** Return changes that were not delivered, for the next loop. @protected @param {Change[]} changes */
  requeue(changes) {
    this.#queue.unshift(...changes);
  }

  /** Throw if the job's items cannot be read in this way. @protected */
  requireItems() {}

  /** @param {Applied} applied */
  #applied(applied) {
    const { document, version, id, firstSeq, texts, diff, reason } = applied;
    const { done } = this.stream.follower;
    const indices = this.#changedItems(applied);
    const isOnlyUpdate = done !== null && !this.#hasUpdates && done.status === "succeeded";
    const isVisible = applied.isVisible || isOnlyUpdate;
    this.#hasUpdates ||= isVisible;
    if (this.#loop === null && this.#delivered !== null && "settles" in this.#delivered && this.#delivered.settles) {
      // Without a loop, the delivered position may stay behind for long, and its distance must not use memory.
      const saved = this.checkpoint();
      this.#delivered = { state: saved.state, columns: saved.columns ?? [], id: saved.cursor ?? "" };
    }
    if (isVisible || this.#loop?.isSilent) {
      indices.forEach((index, at) => {
        const { deleted, text } = this.#textChange(index, texts);
        const diffs = applied.ops === null ? null : diff === null ? [] : [diff];
        this.#enqueue({ document, version, id, firstSeq, index, deleted, text, isVisible, settles: at === indices.length - 1, diffs, reason });
      });
    }
    this.#report(applied);
  }

  /** @param {Change} change */
  #enqueue(change) {
    const queue = this.#queue;
    if (queue.length < (this.#loop === null ? 1 : MAX_QUEUED)) {
      queue.push(change);
      return;
    }
    const last = queue.map((each) => each.index).lastIndexOf(change.index);
    if (last < 0) queue.push(change);
    else if (last === queue.length - 1) merge(queue[last], change);
    else {
      const [earlier] = queue.splice(last, 1);
      merge(earlier, change);
      queue.push(earlier);
    }
  }

  /** Indices of the items that an event has changed. @param {Applied} applied @returns {number[]} */
  #changedItems({ document, before, ops }) {
    const items = document.root.items;
    if (items.length === 1) return [0];
    if (ops === null) {
      const old = before?.root.items ?? [];
      return [...items.keys()].filter((at) => at >= old.length || !same(items[at], old[at]));
    }
    const found = new Set();
    for (const op of ops) {
      for (const path of op[0] === "r" ? document.columns : [op[1]]) {
        const [first, second] = tokensOf(path);
        if (first === undefined || (first === "items" && second === undefined)) return [...items.keys()];
        if (first === "items") found.add(Number(second));
      }
    }
    return [...found].sort((one, other) => one - other);
  }

  /** @param {number} index */
  #textColumn(index) {
    const { document } = this.stream.follower;
    const root = `/items/${index}/value`;
    const known = this.#texts.get(index);
    if (document === null || (known !== undefined && document.columns.includes(known))) return known;
    const columns = document.columns.filter((path) => path === root || path.startsWith(`${root}/`));
    const found = columns.find((path) => typeof valueAt(document.root, tokensOf(path)) === "string") ?? known;
    if (found !== undefined) this.#texts.set(index, found);
    return found;
  }

  /** @param {number} index @param {Map<string, TextChange>} texts */
  #textChange(index, texts) {
    if (texts.size === 0) return { deleted: 0, text: "" };
    const before = this.#texts.get(index);
    const now = this.#textColumn(index);
    return { deleted: texts.get(before ?? "")?.deleted ?? 0, text: texts.get(now ?? "")?.text ?? "" };
  }

  /** Pointer of the text of an item, or undefined if it has none. @protected @param {number} index */
  textColumn(index) {
    return this.#textColumn(index);
  }

  // ---- events --------------------------------------------------------------------------------------------------

  /** @param {"queue" | "progress"} type @param {any} data */
  #notice(type, data) {
    if (type === "queue") this.tell((this.queue = { type, position: data.position, etaMs: data.eta_ms ?? null, waitsFor: data.waits_for ?? null }));
    else this.tell((this.progress = { ...data, type }));
  }

  /** @param {Applied} applied */
  #report({ document, ops }) {
    if (this.listener === null) return;
    const { status, notes = [], usage = {}, items } = document.root;
    const isWhole = ops === null || !this.#reported;
    this.#reported = true;
    if (status !== this.#status) this.tell({ type: "status", status: (this.#status = status) });
    const touched = isWhole ? items.keys() : ops.flatMap(([, path]) => (typeof path === "string" && path.endsWith("/status") && path.startsWith("/items/") ? [Number(path.split("/")[2])] : []));
    for (const index of touched) {
      const item = items[index];
      if (!item || this.#itemStatuses.get(index) === item.status) continue;
      this.#itemStatuses.set(index, item.status);
      this.tell({ type: "item", index, status: item.status, error: copy(item.error ?? null) });
    }
    if (notes.length < this.#notes) this.#notes = 0;
    for (; this.#notes < notes.length; this.#notes += 1) this.tell({ type: "note", level: notes[this.#notes].level, text: notes[this.#notes].text });
    if ((isWhole || ops.some(([, path]) => typeof path === "string" && path.startsWith("/usage"))) && !same(usage, this.#usage)) {
      this.tell({ type: "usage", usage: copy((this.#usage = copy(usage))) });
    }
    const { done } = this.stream.follower;
    if (done) this.tell({ type: "end", status: done.status, error: copy(done.error ?? null) });
  }

  /** Call the listener. Its errors do not break the stream. @param {JobEvent} event */
  tell(event) {
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
   * Each change of the value of an item, exactly once, whatever happens to the connection. If a `Job` failed or was
   * cancelled, the loop then throws JobFailedError or JobCancelledError; for a `BatchJob`, it throws neither.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<Update, void, undefined>}
   */
  async *updates(options = {}) {
    for await (const change of this.changes(options)) {
      this.commit(change);
      yield new Update(change);
    }
    this.requireOutcome();
  }

  // ---- ends ----------------------------------------------------------------------------------------------------

  /** Throw what a loop over the updates throws after the job's end. @protected */
  requireOutcome() {}

  /** Throw the error of a job that has failed or was cancelled. @protected */
  requireSuccess() {
    const { done, document } = this.stream.follower;
    if (done === null || done.status === "succeeded" || done.status === "partially_failed") return;
    const item = document?.root.items[0];
    const problem = copy(done.error ?? item?.error ?? null);
    const details = { jobId: this.id, problem, value: copy(item?.value ?? null) };
    if (done.status === "cancelled") throw new JobCancelledError("the job was cancelled", details);
    throw new JobFailedError(`the job failed${problem ? `: ${problem.detail ?? problem.title} [${problem.code}]` : ""}`, details);
  }
}

/** A promise that resolves when a signal aborts or a time has passed. @param {AbortSignal | undefined} signal @param {number} timeoutMs */
function whenAborted(signal, timeoutMs) {
  /** @type {() => void} */
  let resolve = () => {};
  const stopped = /** @type {Promise<void>} */ (new Promise((done) => (resolve = done)));
  const timer = timeoutMs === Infinity ? undefined : setTimeout(resolve, Math.min(timeoutMs, 2 ** 31 - 1));
  signal?.addEventListener("abort", resolve, { once: true });
  const stop = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", resolve);
  };
  return { stop, stopped };
}

/** A job with one input. The server runs the job even if no client reads its event stream. */
export class Job extends JobBase {
  /** @protected @override */
  requireItems() {
    const count = this.itemCount;
    if (count > 1) throw new SeveralItemsError(`this job has ${count} items, not one`, { jobId: this.id });
  }

  /** @protected @override */
  requireOutcome() {
    this.requireSuccess();
  }

  /**
   * The job's text in pieces, as they arrive. If the server announces which part of the text is stable, the rest is held
   * back until it is stable or the job has ended.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<string, void, undefined>}
   * @throws {VoidTextError} The server retracted text that was yielded. @throws {NoTextError} The value contains no text that the server streams.
   */
  async *iterText(options = {}) {
    /** @type {{end: number, change: Change}[]} */
    let held = [];
    const column = this.textColumn(0);
    const { document } = this.stream.follower;
    let yielded = column && document ? lengthOf(valueAt(document.root, tokensOf(column)) ?? "") : 0;
    let length = yielded;
    try {
      for await (const change of this.changes({ ...options, isSilent: true })) {
        length -= change.deleted;
        if (length < yielded) {
          held.push({ end: length, change });
          const what = `the server retracted ${yielded - length} code points of text that this loop had yielded, ${causeOf(change.reason)}`;
          throw new VoidTextError(what, { jobId: this.id, lastEventId: change.id.text });
        }
        let merged = { ...change };
        while (held.length && (held[held.length - 1].end > length || held.length >= MAX_HELD)) {
          const last = /** @type {{end: number, change: Change}} */ (held.pop());
          merge(last.change, merged);
          merged = last.change;
        }
        length += lengthOf(change.text);
        held.push({ end: length, change: merged });
        const stable = this.#stableLength(change);
        const count = held.findIndex(({ end }) => end > (stable ?? length));
        const ready = held.splice(0, count < 0 ? held.length : count);
        if (ready.length === 0) continue;
        yielded = ready[ready.length - 1].end;
        const text = ready.map(({ change: { text: piece } }) => piece).join("");
        this.commit(ready[ready.length - 1].change);
        if (text !== "") yield text;
      }
      const rest = held.splice(0);
      if (rest.length) this.commit(rest[rest.length - 1].change);
      const text = rest.map(({ change: { text: piece } }) => piece).join("");
      if (text !== "") yield text;
    } finally {
      this.requeue(held.map(({ change }) => change));
    }
    this.requireSuccess();
    if (this.textColumn(0) === undefined) throw new NoTextError("the server streams no text in the value of this job", { jobId: this.id });
  }

  /** @param {Change} change */
  #stableLength({ document, version }) {
    const stable = document.read(version, ["items", "0", "stable"]);
    if (!isObject(stable)) return null;
    const column = this.textColumn(0);
    return column === undefined ? 0 : stable[column.slice("/items/0/value".length)] ?? 0;
  }

  /**
   * The changes of the job's text as they arrive: `deleted` code points are removed from its end, then `text` is appended.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<TextChange, void, undefined>}
   */
  async *iterTextDeltas(options = {}) {
    for await (const change of this.changes(options)) {
      this.commit(change);
      if (change.deleted > 0 || change.text !== "") yield { deleted: change.deleted, text: change.text };
    }
    this.requireSuccess();
  }

  /**
   * All generated tokens from the first one, as they arrive. This loop consumes no updates, so it may run next to another
   * loop over the job. Unlike `iterText`, it does not hold back what is not stable.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<Token, void, undefined>}
   * @throws {VoidTextError} The server retracted tokens that were yielded.
   */
  async *tokens({ signal } = {}) {
    /** @type {number[]} */
    const yielded = [];
    /** @type {import("./tokens.js").Vocabulary | null | undefined} */
    let vocabulary;
    let checked = "";
    for await (const { value, rewrites } of this.values(signal)) {
      const ids = value?.token_ids ?? [];
      const isRetracted = rewrites !== checked && (ids.length < yielded.length || yielded.some((id, at) => ids[at] !== id));
      checked = rewrites;
      if (isRetracted) {
        throw new VoidTextError("the server retracted tokens that this loop had yielded", { jobId: this.id, advice: "Call job.tokens() again, which starts with the first token." });
      }
      if (ids.length === yielded.length) continue;
      if (vocabulary === undefined) vocabulary = hasTokenTexts(value) ? null : await this.client.vocabulary(await this.#endpointName());
      for (const token of tokenRows(value, yielded.length, vocabulary)) {
        yielded.push(token.id);
        yield token;
      }
    }
    this.requireSuccess();
    if (yielded.length === 0) tokenRows(this.stream.follower.document?.root.items[0].value, 0, null);
  }

  async #endpointName() {
    return (this.endpoint ??= (await this.read()).endpoint);
  }

  /** Wait for the job's end, and return its value. The call consumes no updates. @param {WaitOptions} [options] @returns {Promise<any>} */
  async result(options = {}) {
    await this.wait(options);
    this.requireSuccess();
    return copy(this.stream.follower.document?.root.items[0].value ?? null);
  }

  /** Cancel the job on the server, and return its status. @param {{signal?: AbortSignal}} [options] */
  cancel({ signal } = {}) {
    return this.cancelWith("{}", signal);
  }
}

/** A job with many inputs. */
export class BatchJob extends JobBase {
  /**
   * The results of the items as they end, each with the index of its input. The result of an item that failed is an ItemFailedError.
   * @param {LoopOptions} [options] @returns {AsyncGenerator<[index: number, result: any], void, undefined>}
   */
  async *asCompleted(options = {}) {
    /** @type {Set<number>} */
    const yielded = new Set();
    /** @param {number} index */
    const isNew = (index) => ENDED.includes(this.stream.follower.document?.root.items[index].status) && !yielded.has(index) && yielded.add(index);
    for await (const change of this.changes({ ...options, isSilent: true })) {
      this.commit(change);
      const first = yielded.size === 0 ? [...new Array(this.itemCount).keys()] : [change.index];
      for (const index of first) if (isNew(index)) yield [index, this.#resultOf(index)];
    }
    for (let index = 0; index < this.itemCount; index += 1) if (isNew(index)) yield [index, this.#resultOf(index)];
  }

  /**
   * Wait for the end of all items, and return their values in the order of the inputs.
   * @param {WaitOptions & {returnExceptions?: boolean}} [options] With `returnExceptions`, the result of an item that failed is
   * an ItemFailedError. Otherwise the call throws the error of the first of them.
   * @returns {Promise<any[]>}
   */
  async results({ returnExceptions = false, ...options } = {}) {
    await this.wait(options);
    const results = [...new Array(this.itemCount).keys()].map((index) => this.#resultOf(index));
    const failed = results.find((result) => result instanceof ItemFailedError);
    if (failed && !returnExceptions) throw failed;
    return results;
  }

  /** @param {number} index */
  #resultOf(index) {
    const item = this.stream.follower.document?.root.items[index];
    if (item.status === "succeeded") return copy(item.value ?? null);
    const problem = copy(item.error ?? null);
    const why = problem ? `: ${problem.detail ?? problem.title} [${problem.code}]` : "";
    const what = `item ${index} ${item.status === "cancelled" ? "was cancelled" : "failed"}${why}`;
    return new ItemFailedError(what, { jobId: this.id, problem, value: copy(item.value ?? null), index, ended: item.status });
  }

  /**
   * Cancel the job or some of its items, and return the job's status.
   * @param {number[] | null} [items] Indices of the items to cancel. By default, all. @param {{signal?: AbortSignal}} [options]
   */
  cancel(items = null, { signal } = {}) {
    return this.cancelWith(items === null ? "{}" : JSON.stringify({ items }), signal);
  }
}
