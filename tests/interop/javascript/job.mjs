// A job: its state, and the log that is the history of it. Every change goes through `#commit`, before anyone hears of it.

import { randomBytes } from "node:crypto";
import { EventEmitter, setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { Failure, isText } from "./endpoints.mjs";
import { apply, crc32, digest, lengthOf } from "./fold.mjs";
import { problem } from "./problems.mjs";

const CHECK_EVERY = 64; // TW-DIF-051
const ENDED = ["succeeded", "failed", "cancelled"];

/** Call `then` after `ms`, which may be longer than setTimeout can wait; the process does not stay for it. */
export function later(ms, then) {
  const longest = 2 ** 31 - 1;
  const handle = {};
  const arm = (left) => {
    handle.timer = setTimeout(() => (left > longest ? arm(left - longest) : then()), Math.min(left, longest)).unref();
  };
  arm(ms);
  handle.stop = () => clearTimeout(handle.timer);
  return handle;
}

export class Job extends EventEmitter {
  seq = 0;
  log = []; // { seq, type, data, bytes }: contiguous, up to seq
  done = null;
  startedAt = null;
  #base = null; // the state before the log's first event, once its start was trimmed
  #logBytes = 0;
  #owed; // changes of the text of each item since its last check
  #stop = new AbortController();

  constructor(name, endpoint, inputs, { batch, deadlineMs, maxLogBytes, stateTtlMs }) {
    super();
    setMaxListeners(0, this, this.#stop.signal);
    Object.assign(this, { name, endpoint, inputs, batch, maxLogBytes, stateTtlMs });
    this.id = randomBytes(16).toString("base64url");
    this.createdAt = now();
    this.columns = isText(endpoint) ? inputs.map((_, at) => `/items/${at}/value`) : [];
    this.#owed = inputs.map(() => 0);
    const items = inputs.map(() => ({ status: "queued", value: null }));
    this.state = { status: "queued", items, usage: {}, notes: [] };
    this.#commit("snapshot", { state: this.state, columns: this.columns, reason: "start" });
    if (deadlineMs !== undefined) this.deadline = later(deadlineMs, () => this.#expire());
  }

  start() {
    this.inputs.forEach((input, at) => this.#run(input, at));
  }

  get head() {
    return `1-${this.seq}`;
  }

  // ---- the log -------------------------------------------------------------------------------------------------

  #commit(type, data) {
    this.seq += 1;
    const event = type === "message" ? "" : `event:${type}\n`;
    const bytes = Buffer.from(`id:${this.head}\n${event}data:${JSON.stringify(data)}\n\n`);
    this.log.push({ seq: this.seq, type, data, bytes });
    this.#logBytes += bytes.length;
    while (this.#logBytes > this.maxLogBytes && this.log.length > 1) this.#trim();
    this.emit("grown");
  }

  #trim() {
    const { type, data, bytes } = this.log.shift();
    this.#base = type === "snapshot" ? data.state : apply(this.#base, this.columns, data);
    this.#logBytes -= bytes.length;
  }

  /** The event with this seq; undefined where it was trimmed or is yet to come. */
  event(seq) {
    return this.log[seq - this.log[0].seq];
  }

  /** The answer to a cursor (section 4.2): what is sent first, and the seq after which the log goes on; null for 204. */
  from(cursor) {
    const first = this.log[0].seq;
    if (cursor === "") return this.snapshotAtHead("compacted");
    if (cursor === "0-0") {
      if (first === 1) return { bytes: null, after: 0 };
      return { bytes: snapshotBytes(first - 1, this.#base, this.columns, "compacted"), after: first - 1 };
    }
    const [epoch, seq] = cursor.split("-").map(Number);
    if (epoch !== 1 || seq > this.seq) return this.snapshotAtHead("rewound");
    if (seq === this.seq) return this.done ? null : { bytes: null, after: seq };
    return seq + 1 >= first ? { bytes: null, after: seq } : this.snapshotAtHead("compacted");
  }

  /** A snapshot at the head; of a job that has ended, at the id before done. */
  snapshotAtHead(reason) {
    const at = this.done ? this.seq - 1 : this.seq;
    const logged = this.event(at);
    if (logged?.type === "snapshot" && reason === "compacted") return { bytes: logged.bytes, after: at };
    return { bytes: snapshotBytes(at, this.state, this.columns, reason), after: at };
  }

  // ---- changes -------------------------------------------------------------------------------------------------

  #change(ops, checks = []) {
    this.#move(checks.length > 0 ? { ops, check: checks } : ops);
  }

  #move(diff) {
    this.state = apply(this.state, this.columns, diff);
    this.#commit("message", diff);
  }

  #check(at) {
    this.#owed[at] = 0;
    const text = this.state.items[at].value;
    return [`/items/${at}/value`, lengthOf(text), crc32(text)];
  }

  #hasEnded(at) {
    return this.done !== null || ENDED.includes(this.state.items[at].status);
  }

  #begin(at) {
    this.startedAt ??= now();
    const job = this.state.status === "queued" ? [["s", "/status", "running"]] : [];
    const value = isText(this.endpoint) ? [["s", `/items/${at}/value`, ""]] : [];
    this.#change([...job, ["s", `/items/${at}/status`, "running"], ...value]);
  }

  #append(at, text) {
    const path = `/items/${at}/value`;
    this.#owed[at] += 1;
    if (this.#owed[at] >= CHECK_EVERY) {
      const whole = this.state.items[at].value + text;
      this.#owed[at] = 0;
      this.#change([["a", path, text]], [[path, lengthOf(whole), crc32(whole)]]);
    } else if (this.columns.length === 1) this.#move(text);
    else this.#change([["a", path, text]]);
  }

  /** End items that have not ended, in one logged event; and the job, if they were the last. */
  #end(places, status, error = null) {
    const open = places.filter((at) => !this.#hasEnded(at));
    const ops = open.flatMap((at) => [
      ...(error ? [["s", `/items/${at}/error`, error]] : []),
      ["s", `/items/${at}/status`, status],
    ]);
    const owing = open.filter((at) => this.#owed[at] > 0);
    if (open.length > 0) this.#change(ops, owing.map((at) => this.#check(at)));
    if (this.done === null && this.state.items.every((item) => ENDED.includes(item.status))) this.#finish();
  }

  #finish() {
    const statuses = this.state.items.map((item) => item.status);
    const some = (status) => statuses.includes(status);
    const status = statuses.every((one) => one === "succeeded")
      ? "succeeded"
      : some("succeeded") ? "partially_failed" : some("failed") ? "failed" : "cancelled";
    this.endedAt = now();
    this.expiresAt = now(this.stateTtlMs);
    const error = status === "failed" ? { error: this.state.items.find((item) => item.status === "failed").error } : {};
    this.done = { status, usage: {}, ...error, check: [], digest: digest(this.state.items), expires_at: this.expiresAt };
    this.deadline?.stop();
    this.#stop.abort();
    this.#commit("done", this.done);
    this.emit("ended");
  }

  async #run(input, at) {
    try {
      await null; // the submit is answered before its work begins
      if (this.#hasEnded(at)) return;
      this.#begin(at);
      for await (const step of this.endpoint.run(input, (ms) => sleep(ms, null, { signal: this.#stop.signal }))) {
        if (this.#hasEnded(at)) return;
        if ("append" in step) this.#append(at, step.append);
        else this.#change([["s", `/items/${at}/value`, step.set]]);
      }
      this.#end([at], "succeeded");
    } catch (error) {
      if (this.#hasEnded(at)) return;
      const told = error instanceof Failure ? { detail: error.message } : {};
      if (!(error instanceof Failure)) console.error(error);
      this.#end([at], "failed", problem("internal", told));
    }
  }

  cancel(places = this.inputs.map((_, at) => at)) {
    this.#end([...new Set(places)], "cancelled");
  }

  #expire() {
    this.#end(this.inputs.map((_, at) => at), "failed", problem("deadline_exceeded"));
  }

  // ---- reading -------------------------------------------------------------------------------------------------

  /** The body of section 6.4; `link` makes links. */
  body(link) {
    const ended = this.done && { status: this.done.status, usage: this.done.usage, ...(this.done.error && { error: this.done.error }) };
    const self = `/v1/jobs/${this.id}`;
    return {
      id: this.id,
      endpoint: this.name,
      status: this.done?.status ?? this.state.status,
      batch: this.batch,
      state: { ...this.state, ...ended },
      columns: this.columns,
      cursor: this.head,
      attempt: 1,
      created_at: this.createdAt,
      ...(this.startedAt && { started_at: this.startedAt }),
      ...(this.done && { ended_at: this.endedAt, expires_at: this.expiresAt, done: this.done }),
      links: { self: link(self), events: link(`${self}/events`), cancel: link(`${self}/cancel`) },
    };
  }
}

function snapshotBytes(seq, state, columns, reason) {
  return Buffer.from(`id:1-${seq}\nevent:snapshot\ndata:${JSON.stringify({ state, columns, reason })}\n\n`);
}

function now(plusMs = 0) {
  return new Date(Date.now() + plusMs).toISOString();
}
