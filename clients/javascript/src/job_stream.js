/**
 * The event stream of one job over several connections.
 *
 * `follower.js` decides what an event means and `retry_policy.js` how long to wait. This module moves bytes and time. It
 * reads only while a caller waits, so a slow caller slows the server down instead of filling memory.
 */

import { Decoder } from "./event_decoder.js";
import { InvalidData, ProtocolError, SilenceTimeoutError, TransportError } from "./errors.js";
import { Follower, Interruption } from "./follower.js";
import { actionFor, isEventStream } from "./retry_policy.js";
import { sleep } from "./session.js";

/** @import { Applied, ConnectionEvent, Notice, ServerEvent } from "./types.js" */

/** Time for the status line of a stream, and then for `hello`. */
const HELLO_TIMEOUT_MS = 10_000;
const DEFAULT_HEARTBEAT_MS = 15_000;
const SILENT_HEARTBEATS = 2.5;
/** Connections in a row that delivered nothing after which the job is read instead of its stream. */
const SILENT_CONNECTIONS = 2;
/** Reads of the job after which its stream is requested again. */
const READS_PER_STREAM = 8;
/** Smallest limit for the length of an event. */
const LEAST_EVENT_LENGTH = 2 ** 20;

export class JobStream {
  /** @type {import("./session.js").Connection | null} */
  #connection = null;
  #decoder = new Decoder();
  /** @type {Iterator<ServerEvent, void>} */
  #events = [][Symbol.iterator]();
  #helloUntil = 0;
  #silentConnections = 0;
  #reads = 0;
  #unchangedReads = 0;
  #connections = 0;
  #stop = new AbortController();
  #retries;

  /** @param {import("./session.js").Session} session @param {string} id @param {string} jobUrl @param {(event: ConnectionEvent) => void} tell */
  constructor(session, id, jobUrl, tell) {
    this.session = session;
    this.follower = new Follower(id, session.maxStateBytes);
    this.jobUrl = jobUrl;
    this.eventsUrl = `${jobUrl}/events`;
    this.tell = tell;
    /** The job in the response to its submit, until it was adopted. @type {any} */
    this.initial = null;
    this.#retries = session.retryState();
  }

  /** Close the connection. A later call of `next` opens another one. */
  close() {
    if (this.#connection !== null) this.#report("closed");
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#disconnect();
  }

  #disconnect() {
    this.#connection?.close();
    this.#connection = null;
    this.#events = [][Symbol.iterator]();
  }

  /** @param {ConnectionEvent["state"]} state @param {Partial<ConnectionEvent>} [members] */
  #report(state, members = {}) {
    this.tell({ type: "connection", state, connections: this.#connections, lastEventId: this.follower.id?.text ?? null, ...members });
  }

  /**
   * The next change or notice, or null if the stream was closed. It reconnects as often as the retry policy allows.
   * @returns {Promise<Applied | Notice | null>}
   */
  async next() {
    const stop = this.#stop.signal;
    while (!stop.aborted) {
      try {
        const found = await this.#step(stop);
        if (stop.aborted || this.follower.done) this.#disconnect();
        // The state has changed, so the change must be delivered, even if the stream was closed meanwhile.
        if (found) return found;
      } catch (error) {
        const wait = stop.aborted ? 0 : this.#waitAfter(error instanceof InvalidData ? this.follower.resync(error) : error);
        await sleep(wait, stop).catch(() => {});
      }
    }
    this.#disconnect();
    return null;
  }

  /** Take one event, or read, or connect. @param {AbortSignal} stop @returns {Promise<Applied | Notice | null>} */
  async #step(stop) {
    const { follower } = this;
    if (this.initial !== null) {
      const job = this.initial;
      this.initial = null;
      return follower.adopt(job);
    }
    if (this.#connection === null) {
      const reads = this.session.options.onDisconnect === "cancel" ? 1 : READS_PER_STREAM;
      return this.#silentConnections >= SILENT_CONNECTIONS && this.#reads < reads ? this.#poll(stop) : this.#connect(stop);
    }
    const { value: event } = this.#events.next();
    this.#retries.delayMs = this.#decoder.retryMs ?? this.#retries.delayMs;
    if (!event) {
      const helloMs = follower.hello ? Infinity : Math.max(1, this.#helloUntil - performance.now());
      const chunk = await this.#connection.next(Math.min(this.#silenceMs(), helloMs));
      if (chunk === null) throw new Interruption("the stream ended before the job did");
      this.#events = this.#decoder.feed(chunk);
      return null;
    }
    const found = await follower.receive(event);
    if (found?.type === "applied") this.#silentConnections = 0;
    if (event.type === "hello" && this.#connection) {
      this.#retries.live();
      this.eventsUrl = this.session.link(follower.hello.events, this.#connection.url) ?? this.eventsUrl;
      this.#report("connected");
    }
    return found;
  }

  #silenceMs() {
    return SILENT_HEARTBEATS * (this.follower.hello?.heartbeat_ms ?? DEFAULT_HEARTBEAT_MS);
  }

  /** The wait after an error. Errors after which the stream cannot continue are thrown. @param {any} error */
  #waitAfter(error) {
    const { follower, session } = this;
    const isSilent = error instanceof SilenceTimeoutError;
    if (isSilent && follower.hasDeliveredNothing) this.#silentConnections += 1;
    const silenceMs = isSilent && this.#connection !== null && follower.hello ? this.#silenceMs() : 0;
    this.#disconnect();
    if (!(error instanceof Interruption || error instanceof TransportError)) throw error;
    const { kind, askedMs, error: own } = error instanceof Interruption ? error : new Interruption(error.what, { error });
    const final = own ?? new TransportError(error.message, { url: this.eventsUrl, jobId: follower.jobId });
    if (follower.hasProgress) this.#retries.progress();
    const retryInMs = this.#retries.waitAfter(final, {
      askedMs,
      isFailure: kind === "goaway" ? !follower.hasProgress : askedMs === null,
      isFirstContact: !session.contacted && error instanceof TransportError && !error.sent,
      silenceMs,
    });
    this.#report(kind === "resync" ? "resync" : "lost", { why: final.what, retryInMs, failures: this.#retries.failures });
    return retryInMs;
  }

  // ---- requests ------------------------------------------------------------------------------------------------

  /** @param {AbortSignal} stop @returns {Promise<Applied | null>} */
  async #connect(stop) {
    const { follower, session } = this;
    this.#reads = 0;
    follower.connected();
    this.#retries.begin();
    this.#connections += 1;
    this.#report("connecting");
    /** @type {Record<string, string>} */
    const headers = { accept: "text/event-stream" };
    if (follower.id) headers["last-event-id"] = follower.id.text;
    const connection = await session.send(this.eventsUrl, { headers, timeoutMs: HELLO_TIMEOUT_MS, signal: stop });
    const action = actionFor(connection.status, "stream", { hasCursor: follower.id !== null, usable: isEventStream(connection.headers) });
    if (action === "use") {
      session.contacted = true;
      this.#connection = connection;
      this.#decoder = new Decoder({ maxEventLength: Math.max(session.maxStateBytes, LEAST_EVENT_LENGTH) });
      this.#helloUntil = performance.now() + HELLO_TIMEOUT_MS;
      return null;
    }
    if (action === "read_job") {
      connection.close();
      const job = await this.#readJob(stop);
      if (job.done ?? null) return follower.adopt(job);
      follower.id = null; // the log has no events after the cursor, so the cursor is of no use
      throw new Interruption("the server has no events after the cursor");
    }
    const error = await session.refused(connection, { jobId: follower.jobId, lastEventId: follower.id?.text });
    if (action === "resync") throw new InvalidData(`the server rejected the cursor ${follower.id?.text}`);
    if (action === "wait") throw new Interruption(error.what, { kind: "busy", askedMs: error.retryAfterMs, error });
    throw action === "cut" && !connection.isHidden ? new Interruption(error.what, { error }) : error;
  }

  /** Read the job instead of its stream, because a proxy may hold the stream back. @param {AbortSignal} stop */
  async #poll(stop) {
    if (this.#reads === 0) this.#report("polling");
    else await sleep(Math.min(30_000, 1000 * 2 ** Math.min(this.#unchangedReads, 10)) * (0.5 + Math.random()), stop);
    this.#reads += 1;
    this.follower.connected();
    const applied = await this.follower.adopt(await this.#readJob(stop));
    this.#retries.progress();
    this.#unchangedReads = applied ? 0 : this.#unchangedReads + 1;
    return applied;
  }

  /** @param {AbortSignal} signal */
  async #readJob(signal) {
    const { jobId } = this.follower;
    const { body } = await this.session.request(this.jobUrl, "job", { jobId, signal, state: this.#retries });
    if (body.id !== jobId) throw new ProtocolError(`the server sent the job ${body.id}`, { url: this.jobUrl, jobId });
    return body;
  }
}
