// What a client holds of one job, and what each event does to it: chapter 13 without sockets and clocks.
//
// `take` answers with what is to be done:
//
//   ignore                  nothing
//   hello    events, heartbeatMs
//   update   update         hand it over
//   done     update         hand it over; the job has ended
//   cut                     close, wait, come back with the cursor
//   goaway   retryMs        the same, after that time
//   busy     retryMs        the same, as after a 503
//   resync   reason, unknown    close, wait, come back without a cursor; unknown: it may be a newer protocol
//   fatal    error
//
// The state that was handed over stays when the cursor is dropped: the snapshot that follows is compared with it.

import { Refused, apply, baseOf, digest, textChanges, verify } from "./fold.mjs";
import { ENDS, FITS, compareIds, parseId } from "./messages.mjs";
import { JSONError, parse } from "./strict_json.mjs";

const MAX_RESYNCS = 3; // TW-CLI-031
const FORGIVEN_AFTER = 256;

/** The other side does not keep to the protocol. */
export class ProtocolError extends Error {}
/** It keeps to another version of it. */
export class UnsupportedProtocol extends ProtocolError {}

class Malformed extends Error {}

export class Follower {
  #resyncs = 0;
  #appliedSince = 0;

  /** `saved`: a checkpoint. A cursor is worth what is kept with it: an id alone is none (TW-CLI-003). */
  constructor(job, saved = {}) {
    const whole = FITS.state(saved.state) && Array.isArray(saved.columns);
    this.job = job;
    this.id = whole && typeof saved.id === "string" ? parseId(saved.id) : null;
    this.state = whole ? saved.state : null;
    this.columns = whole ? saved.columns : null;
    this.done = null;
    this.dropped = 0;
    this.resyncs = 0;
    this.opened();
  }

  /** A connection begins. */
  opened() {
    this.progressed = false;
    this.greeted = false;
    this.firstLogged = true;
    this.pingsAhead = 0;
    this.helloHead = null;
  }

  take(event) {
    try {
      return this.#taken(event);
    } catch (error) {
      if (error instanceof JSONError || error instanceof Malformed) return this.resync(error.message);
      if (error instanceof Refused) return this.resync(error.message, error.kind === "unknown");
      throw error;
    }
  }

  #taken(event) {
    switch (event.type) {
      case "snapshot":
      case "message":
      case "done":
        return this.#logged(event);
      case "hello":
      case "ping":
      case "goaway":
      case "queue":
      case "progress":
        return this[`_${event.type}`](parse(event.data));
      case "problem":
        return problem(fitting("problem", parse(event.data)));
      default:
        if (event.id === null) return IGNORE;
        return this.#isKnown(parseId(event.id)) ? this.#drop() : this.resync(`unknown event ${event.type}`, true);
    }
  }

  // ---- ephemeral events ----------------------------------------------------------------------------------------

  _hello(data) {
    fitting("hello", data);
    if (data.protocol !== "tidewire/1") {
      return { do: "fatal", error: new UnsupportedProtocol(`the server speaks ${data.protocol}`) };
    }
    if (data.job !== this.job) return { do: "fatal", error: new ProtocolError(`the stream of another job: ${data.job}`) };
    this.greeted = true;
    this.helloHead = parseId(data.head);
    return { do: "hello", events: data.events, heartbeatMs: data.heartbeat_ms };
  }

  _ping(data) {
    const head = parseId(fitting("ping", data).head);
    const ahead = this.id !== null && [head, this.helloHead].some((each) => each !== null && compareIds(each, this.id) > 0);
    this.pingsAhead = this.id === null || ahead ? this.pingsAhead + 1 : 0;
    return this.pingsAhead < 2 ? IGNORE : { do: "cut" }; // TW-CLI-012, TW-CLI-061
  }

  _goaway(data) {
    return { do: "goaway", retryMs: Math.max(100, fitting("goaway", data).retry_ms) };
  }

  _queue(data) {
    fitting("queue", data);
    return IGNORE;
  }

  _progress(data) {
    fitting("progress", data);
    return IGNORE;
  }

  // ---- logged events -------------------------------------------------------------------------------------------

  #logged({ type, id: text, data }) {
    const id = text === null ? null : parseId(text);
    if (id === null) throw new Malformed(`${type} with the id ${JSON.stringify(text)}`);
    if (!this.greeted) throw new Malformed(`${type} before hello`);
    const opening = this.firstLogged && type === "snapshot";
    this.firstLogged = false;
    this.pingsAhead = 0;
    const forward = !this.#isKnown(id);
    if (!forward && type !== "snapshot") return this.#drop();
    const content = parse(data);
    if (type === "snapshot") {
      fitting("snapshot", content);
      if (!forward && content.reason !== "rewound") return this.#drop();
      if (ENDS.includes(content.state.status)) throw new Malformed("a snapshot of a job that has ended");
      return this.#moved(id, content.state, content.columns, forward && !opening, content.reason);
    }
    const base = type === "done" ? id.seq - 1 : baseOf(content, id.seq);
    if (type === "done") fitting("done", content);
    if (this.id === null || this.id.epoch !== id.epoch || this.id.seq !== base) {
      throw new Malformed(`${text} continues ${base}, not ${this.id?.text}`);
    }
    if (type === "done") return this.#ended(id, content);
    const state = apply(this.state, this.columns, content, id.seq);
    if (!FITS.state(state) || ENDS.includes(state.status)) throw new Malformed(`${text} leaves no state`);
    return this.#moved(id, state, this.columns, true, null);
  }

  #isKnown(id) {
    return id !== null && this.id !== null && compareIds(id, this.id) <= 0;
  }

  #drop() {
    this.dropped += 1;
    return IGNORE;
  }

  #moved(id, state, columns, progress, reason) {
    const update = { id: id.text, reason, texts: [...this.#texts(state)], state };
    Object.assign(this, { id, state, columns });
    this.progressed ||= progress;
    this.#appliedSince += 1;
    if (this.#appliedSince >= FORGIVEN_AFTER) this.#resyncs = 0;
    return { do: "update", update };
  }

  #ended(id, done) {
    const moved = this.#moved(id, finalState(this.state, done), this.columns, true, null);
    this.done = done;
    return { do: "done", update: moved.update };
  }

  /** A job as a submit answered it: its state is handed over first, and the stream goes on from there. */
  begin(job) {
    if (ENDS.includes(job.status)) return this.ended(job);
    return this.#moved(parseId(job.cursor), job.state, job.columns, false, null);
  }

  /** The job as it was read in place of its stream (TW-CLI-059): a newer state, its end, or null. */
  polled(job) {
    if (ENDS.includes(job.status)) return this.ended(job);
    const id = parseId(job.cursor);
    return this.#isKnown(id) ? null : this.#moved(id, job.state, job.columns, true, null);
  }

  /** The job as it was read, after a 204: its end, or null where it still runs. */
  ended(job) {
    if (!FITS.job(job) || job.id !== this.job) throw new ProtocolError("what was read is not this job");
    if (!ENDS.includes(job.status)) {
      this.id = null;
      return null;
    }
    if (!job.done) return this.resync("a job that has ended, without its done");
    try {
      finalState(job.state, fitting("done", job.done));
    } catch (error) {
      if (error instanceof Refused || error instanceof Malformed) return this.resync(error.message);
      throw error;
    }
    const moved = this.#moved(parseId(job.cursor), job.state, job.columns, true, null);
    this.done = job.done;
    return { do: "done", update: moved.update };
  }

  *#texts(state) {
    const before = this.state?.items ?? [];
    for (let at = 0; at < Math.max(before.length, state.items.length); at += 1) {
      yield* textChanges(before[at]?.value, state.items[at]?.value, `/items/${at}/value`);
    }
  }

  /** Begin anew from a snapshot; the fourth time is one too many. */
  resync(reason, unknown = false) {
    this.id = null;
    this.#appliedSince = 0;
    this.#resyncs += 1;
    this.resyncs += 1;
    if (this.#resyncs <= MAX_RESYNCS) return { do: "resync", reason, unknown };
    const kind = unknown ? UnsupportedProtocol : ProtocolError;
    return { do: "fatal", error: new kind(`${this.#resyncs} times in a row: ${reason}`) };
  }

  checkpoint() {
    return { job: this.job, id: this.id?.text ?? null, state: this.state, columns: this.columns };
  }
}

const IGNORE = { do: "ignore" };

function fitting(name, data) {
  if (!FITS[name](data)) throw new Malformed(`${name} does not fit its schema`);
  return data;
}

/** The state with what `done` sets, verified. */
function finalState(state, done) {
  const final = Object.assign(Object.create(null), state, { status: done.status });
  if (done.usage) final.usage = done.usage;
  if (done.error) final.error = done.error;
  verify(final, done.check ?? []);
  if (digest(final.items) !== done.digest) throw new Refused("check", "the digest fails");
  return final;
}

function problem(data) {
  if (data.retryable) return { do: "busy", retryMs: data.retry_after_ms ?? null };
  return { do: "fatal", problem: data };
}
