/**
 * The event stream of one job over several connections.
 *
 * `follower.js` decides what an event means and `retry_policy.js` how long to wait. This module moves bytes and time. It
 * reads only while a caller waits, so a slow caller slows the server down instead of filling memory.
 */

import { Decoder, EventTooLargeError } from "./event_decoder.js";
import { ProtocolError, SilenceTimeoutError, TransportError } from "./errors.js";
import { Follower } from "./follower.js";
import { GiveUp, actionFor, isEventStream, retryAfterMs } from "./retry_policy.js";
import { HELLO_TIMEOUT_MS, sleep } from "./session.js";

/** @typedef {import("./follower.js").Applied} Applied */
/** @typedef {import("./follower.js").Action} Action */
/** @typedef {import("./session.js").Connection} Connection */

/**
 * State of the connection: `connecting`, `connected`, `lost` with the wait before the next attempt, `resync` likewise if an
 * event did not match the state, `polling` if the stream delivers nothing and the job is read instead, or `closed`.
 * @typedef {object} ConnectionEvent
 * @property {"connection"} type
 * @property {"connecting" | "connected" | "lost" | "resync" | "polling" | "closed"} state
 * @property {number} connections Number of connections that were opened, this one included.
 * @property {string | null} lastEventId Event after which the stream continues, or null if it begins with a snapshot.
 * @property {string} [why] Reason of `lost` and `resync`.
 * @property {number} [retryInMs] Wait before the next attempt.
 * @property {number} [failures] Failures in a row without progress.
 */

const DEFAULT_HEARTBEAT_MS = 15_000;
const SILENT_HEARTBEATS = 2.5;
/** Connections in a row that delivered nothing after which the job is read instead of its stream. */
const SILENT_CONNECTIONS = 2;
/** Reads of the job after which its stream is requested again. */
const READS_PER_STREAM = 8;
/** Smallest limit for the size of an event, in bytes. */
const LEAST_EVENT_BYTES = 2 ** 20;
/** Marks that the job object was closed. */
const CLOSED = Symbol("closed");

export class JobStream {
  /** @type {Connection | null} */
  #connection = null;
  /** @type {Decoder | null} */
  #decoder = null;
  /** @type {Iterator<import("./event_decoder.js").ServerEvent, void>} */
  #events = [][Symbol.iterator]();
  #silenceMs = 0;
  #helloUntil = 0;
  #silentConnections = 0;
  #reads = 0;
  #unchangedReads = 0;
  #connections = 0;
  #stop = new AbortController();
  #state;

  /** @param {import("./session.js").Session} session @param {Follower} follower @param {string} jobUrl @param {string} eventsUrl */
  constructor(session, follower, jobUrl, eventsUrl) {
    this.session = session;
    this.follower = follower;
    this.jobUrl = jobUrl;
    this.eventsUrl = eventsUrl;
    /** Receives the states of the connection. @type {(event: ConnectionEvent) => void} */
    this.tell = () => {};
    /** The job in the response to its submit, until it was adopted. @type {any} */
    this.initial = null;
    this.#state = session.retryState();
  }

  get ended() {
    return this.follower.done !== null;
  }

  /** Close the connection. A later call of `next` opens another one. */
  close() {
    if (this.#connection !== null) this.#report("closed");
    this.#stop.abort(CLOSED);
    this.#stop = new AbortController();
    this.#disconnect();
  }

  #disconnect() {
    this.#connection?.close();
    this.#connection = null;
    this.#decoder = null;
    this.#events = [][Symbol.iterator]();
  }

  /** @param {ConnectionEvent["state"]} state @param {Partial<ConnectionEvent>} [members] */
  #report(state, members = {}) {
    this.tell({ type: "connection", state, connections: this.#connections, lastEventId: this.follower.id?.text ?? null, ...members });
  }

  /**
   * The next change or notice. It reconnects as often as the retry policy allows.
   * @returns {Promise<Applied | {do: "notice", type: "queue" | "progress", data: any} | null>} Null if the stream was closed.
   */
  async next() {
    const stop = this.#stop.signal;
    try {
      for (;;) {
        const action = await this.#step(stop);
        if (stop.aborted || this.ended) this.#disconnect();
        // The state has changed, so the change must be delivered, even if the stream was closed meanwhile.
        if (action.do === "applied" || action.do === "notice") return action;
        if (stop.aborted) return null;
        if (action.do === "hello") {
          this.#silenceMs = action.heartbeatMs * SILENT_HEARTBEATS;
          this.#state.live();
          this.#followLink();
          this.#report("connected");
        } else if (action.do === "fatal") throw action.error;
        else if (action.do !== "ignore") await this.#reconnect(action, stop);
      }
    } catch (error) {
      this.#disconnect();
      if (stop.aborted) return null;
      throw error;
    }
  }

  #followLink() {
    const { events } = this.follower;
    if (events !== null && this.#connection) this.eventsUrl = this.session.link(events, this.#connection.url, this.eventsUrl);
  }

  /** Take one event, or read, or connect. @param {AbortSignal} stop @returns {Promise<Action>} */
  async #step(stop) {
    try {
      if (this.initial !== null) {
        const job = this.initial;
        this.initial = null;
        return await this.follower.adopt(job);
      }
      if (this.#connection === null) {
        const reads = this.session.options.onDisconnect === "cancel" ? 1 : READS_PER_STREAM;
        return this.#silentConnections >= SILENT_CONNECTIONS && this.#reads < reads ? await this.#poll(stop) : await this.#connect(stop);
      }
      const { value: event } = this.#events.next();
      const decoder = /** @type {Decoder} */ (this.#decoder);
      if (decoder.retryMs !== null) this.#state.delayMs = decoder.retryMs;
      if (event) {
        const action = await this.follower.receive(event);
        if (action.do === "applied") this.#silentConnections = 0;
        return action;
      }
      const { isGreeted } = this.follower;
      const within = isGreeted ? this.#silenceMs : Math.max(1, Math.min(this.#silenceMs, this.#helloUntil - performance.now()));
      const chunk = await this.#connection.next(within);
      if (chunk === null) return { do: "cut" };
      this.#events = decoder.feed(chunk);
      return { do: "ignore" };
    } catch (error) {
      if (error instanceof EventTooLargeError) return this.follower.resync(error.message);
      if (!(error instanceof TransportError) || error.advice) throw error;
      return this.#failed(error);
    }
  }

  /** @param {TransportError} error @returns {Action & {error?: TransportError}} */
  #failed(error) {
    const isSilent = error instanceof SilenceTimeoutError;
    if (isSilent && this.follower.hasDeliveredNothing) this.#silentConnections += 1;
    return { do: "cut", error };
  }

  /** @param {any} action @param {AbortSignal} stop */
  async #reconnect(action, stop) {
    const { follower, session } = this;
    const error = action.error ?? new TransportError(action.why ?? "the stream ended before the job did", { url: this.eventsUrl, jobId: follower.jobId });
    if (follower.hasProgress) this.#state.progress();
    const isSilentStream = this.#connection !== null && follower.isGreeted && error instanceof SilenceTimeoutError;
    this.#disconnect();
    const wait =
      action.waitMs ??
      this.#state.retry({
        askedMs: action.askedMs ?? null,
        isFailure: action.do === "goaway" ? !follower.hasProgress : (action.askedMs ?? null) === null,
        isFirstContact: !session.contacted && error.sent === false,
        silenceMs: isSilentStream ? this.#silenceMs : 0,
      });
    if (wait instanceof GiveUp) {
      error.message += ` The client gave up: ${wait.why}.`;
      throw error;
    }
    if (action.do !== "poll") {
      const members = { why: error.what ?? action.why, retryInMs: wait, failures: this.#state.failures };
      this.#report(action.do === "resync" ? "resync" : "lost", members);
    }
    await sleep(wait, stop);
  }

  // ---- requests ------------------------------------------------------------------------------------------------

  /** @param {AbortSignal} stop @returns {Promise<Action>} */
  async #connect(stop) {
    const { follower, session } = this;
    this.#reads = 0;
    follower.connected();
    this.#state.begin();
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
      this.#decoder = new Decoder({ maxEventBytes: Math.max(session.maxStateBytes, LEAST_EVENT_BYTES) });
      this.#silenceMs = DEFAULT_HEARTBEAT_MS * SILENT_HEARTBEATS;
      this.#helloUntil = performance.now() + HELLO_TIMEOUT_MS;
      return { do: "ignore" };
    }
    if (action === "read_job") {
      connection.close();
      return this.#afterEnd(stop);
    }
    const isResponse = connection.status === 200 || action === "cut";
    const problem = isResponse && connection.status === 200 ? (connection.close(), null) : await session.problemOf(connection);
    const error = session.refusal(connection, problem, { jobId: follower.jobId, lastEventId: follower.id?.text });
    if (action === "resync") return follower.resync(`the server rejected the cursor ${follower.id?.text}`);
    if (action === "wait") {
      const askedMs = retryAfterMs(connection.headers.get("retry-after")) ?? problem?.retry_after_ms ?? null;
      return /** @type {Action} */ ({ do: "busy", askedMs, why: error.what, error });
    }
    if (action !== "cut" || connection.isHidden) throw error;
    return /** @type {Action} */ ({ do: "cut", error });
  }

  /** The log has no events after the cursor: the job has ended, or the cursor is of no use. @param {AbortSignal} stop @returns {Promise<Action>} */
  async #afterEnd(stop) {
    const job = await this.readJob(stop);
    if (job.done ?? null) return this.follower.adopt(job);
    this.follower.id = null;
    return { do: "cut" };
  }

  /** Read the job instead of its stream, because a proxy may hold the stream back. @param {AbortSignal} stop @returns {Promise<Action>} */
  async #poll(stop) {
    if (this.#reads === 0) this.#report("polling");
    else await sleep(this.#pollWaitMs(), stop);
    this.#reads += 1;
    this.follower.connected();
    const action = await this.follower.adopt(await this.readJob(stop));
    this.#state.progress();
    this.#unchangedReads = action.do === "applied" ? 0 : this.#unchangedReads + 1;
    return action;
  }

  #pollWaitMs() {
    return Math.min(30_000, 1000 * 2 ** Math.min(this.#unchangedReads, 10)) * (0.5 + Math.random());
  }

  /** @param {AbortSignal} [signal] */
  async readJob(signal) {
    const { body } = await this.session.request(this.jobUrl, "job", { jobId: this.follower.jobId, signal, state: this.#state });
    if (body.id !== this.follower.jobId) throw new ProtocolError(`the server sent the job ${body.id}`, { url: this.jobUrl, jobId: this.follower.jobId });
    return body;
  }
}

