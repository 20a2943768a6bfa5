/** The event stream of one job over several connections. It reads only while a caller waits, so a slow caller fills no memory. */

import { Decoder } from "./event_decoder.js";
import { SilenceTimeoutError, TransportError } from "./errors.js";
import { Follower } from "./follower.js";
import { actionFor, isEventStream } from "./retry_policy.js";
import { IS_BROWSER, sleep } from "./session.js";
import { InvalidData } from "./strict_json.js";

/** @import { Applied, ConnectionEvent, JobEvent, JobParts } from "./types.js" */

/** Time for the status line of a stream, and then for `hello`. */
const HELLO_TIMEOUT_MS = 10_000;
const SILENT_HEARTBEATS = 2.5;
/** Connections in a row that delivered nothing after which the job is read instead of its stream. */
const SILENT_CONNECTIONS = 2;
/** Reads of the job after which its stream is requested again. */
const READS_PER_STREAM = 8;
const LONGEST_POLL_MS = 30_000;

export class JobStream {
  #changes = /** @type {AsyncGenerator<Applied, void> | null} */ (null);
  #stop = new AbortController();
  #silentConnections = 0;
  #connections = 0;
  #initial;
  #retries;

  /** @param {import("./session.js").Session} session @param {JobParts} parts @param {(event: JobEvent) => void} tell */
  constructor(session, { id, url, eventsUrl, initial }, tell) {
    this.session = session;
    this.follower = new Follower(id, session.maxStateBytes);
    this.jobUrl = url;
    this.eventsUrl = eventsUrl ?? `${url}/events`;
    this.tell = tell;
    this.#initial = initial;
    this.#retries = session.retryState();
  }

  /** The next change, or null if the stream was closed. It reconnects as often as the retry policy allows. */
  async next() {
    this.#changes ??= this.#read(this.#stop.signal);
    const { value } = await this.#changes.next();
    if (!value || this.follower.ended) this.close();
    return value ?? null;
  }

  /** Close the connection. A later call of `next` opens another one. */
  close() {
    if (this.#changes !== null && !this.follower.ended) this.#report("closed");
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#changes?.return();
    this.#changes = null;
  }

  /** @param {ConnectionEvent["state"]} state @param {Partial<ConnectionEvent>} [members] */
  #report(state, members = {}) {
    this.tell({ type: "connection", state, connections: this.#connections, lastEventId: this.follower.id?.text ?? null, ...members });
  }

  /** @param {AbortSignal} stop @returns {AsyncGenerator<Applied, void>} */
  async *#read(stop) {
    while (!stop.aborted) {
      try {
        const job = this.#initial;
        this.#initial = null;
        const first = job && (await this.follower.adopt(job));
        if (first) yield first;
        if (this.#silentConnections >= SILENT_CONNECTIONS) yield* this.#poll(stop);
        yield* this.#connect(stop);
      } catch (caught) {
        if (stop.aborted) return;
        const error = caught instanceof InvalidData ? this.follower.resync(caught) : /** @type {any} */ (caught);
        const { isEmpty, hasProgress } = this.follower.connection;
        if (error instanceof SilenceTimeoutError && isEmpty) this.#silentConnections += 1;
        if (!error?.interruption) throw error;
        const isFirstContact = !this.session.contacted && !error.sent;
        const retryInMs = this.#retries.waitAfter(error, { isFirstContact, hasProgress });
        const state = error.interruption === "resync" ? "resync" : "lost";
        // A page with a wrong URL looks like a page that was loaded while the server is away, so the client cannot give up.
        const why = !this.session.contacted && error.advice ? `${error.what}. ${error.advice}` : error.what;
        this.#report(state, { why, retryInMs, failures: this.#retries.failures });
        await sleep(retryInMs, stop).catch(() => {});
      }
    }
  }

  /** Request the stream once, and read it until it is interrupted. @param {AbortSignal} stop @returns {AsyncGenerator<Applied, void>} */
  async *#connect(stop) {
    const { follower, session } = this;
    follower.connected();
    this.#retries.begin();
    this.#connections += 1;
    this.#report("connecting");
    const cursor = follower.id?.text;
    const headers = { accept: "text/event-stream", ...(cursor === undefined ? {} : { "last-event-id": cursor }) };
    const connection = await session.send(this.eventsUrl, { headers, timeoutMs: HELLO_TIMEOUT_MS, signal: stop });
    const action = actionFor(connection.status, "stream", { hasCursor: cursor !== undefined, usable: isEventStream(connection.headers, IS_BROWSER) });
    if (action === "read_job") {
      connection.close();
      const job = await this.readJob(stop);
      const end = job.done && (await follower.adopt(job));
      if (end) return yield end;
      follower.id = null; // the log has no events after the cursor, so the cursor is of no use
      throw new TransportError("the server has no events after the cursor", { url: this.eventsUrl, jobId: follower.jobId });
    }
    if (action !== "use") {
      const error = await session.refused(connection, action, { jobId: follower.jobId, lastEventId: cursor });
      // The link may lack the prefix of a proxy. A later loop then continues under the base path.
      if (error.problem === null && !session.isUnder(connection.url)) this.eventsUrl = `${this.jobUrl}/events`;
      throw action === "resync" ? new InvalidData(`the server rejected the cursor ${cursor}`) : error;
    }
    session.contacted = true;
    const decoder = new Decoder({ maxEventLength: Math.max(session.maxStateBytes, 2 ** 20) });
    const helloUntil = performance.now() + HELLO_TIMEOUT_MS;
    try {
      for (;;) {
        const { hello } = follower.connection;
        const chunk = await connection.next(hello ? SILENT_HEARTBEATS * hello.heartbeat_ms : Math.max(1, helloUntil - performance.now()));
        if (chunk === null) throw new TransportError("the stream ended before the job did", { url: connection.url, jobId: follower.jobId });
        for (const event of decoder.feed(chunk)) {
          const found = await follower.receive(event);
          if (event.type === "hello") {
            this.#retries.live();
            this.eventsUrl = session.link(follower.connection.hello.events, connection.url) ?? this.eventsUrl;
            this.#report("connected");
          }
          // Otherwise a job without events would be given up if a proxy limits the time of each response.
          if (event.type === "ping" && follower.connection.isConfirmed) this.#retries.confirmed();
          if (found?.type === "applied") {
            this.#silentConnections = 0;
            yield found;
          } else if (found) this.tell(found);
        }
      }
    } finally {
      this.#retries.delayMs = decoder.retryMs ?? this.#retries.delayMs;
      connection.close();
    }
  }

  /** Read the job instead of its stream, because a proxy may hold the stream back. @param {AbortSignal} stop @returns {AsyncGenerator<Applied, void>} */
  async *#poll(stop) {
    this.#report("polling");
    const reads = this.session.options.onDisconnect === "cancel" ? 1 : READS_PER_STREAM;
    let unchanged = 0;
    for (let read = 0; read < reads; read += 1) {
      if (read > 0) await sleep(Math.min(LONGEST_POLL_MS, 1000 * 2 ** unchanged) * (0.5 + Math.random()), stop);
      const applied = await this.follower.adopt(await this.readJob(stop));
      this.#retries.progress();
      unchanged = applied ? 0 : unchanged + 1;
      if (applied) yield applied;
    }
  }

  /** Request the whole job. @param {AbortSignal} [signal] @returns {Promise<any>} */
  async readJob(signal) {
    return (await this.session.request(this.jobUrl, "job", { jobId: this.follower.jobId, signal })).body;
  }
}
