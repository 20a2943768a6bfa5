// A client of tidewire/1 for Node: submits, follows, resumes. What an event means is decided in follower.mjs,
// what an answer means in answers.mjs, and how long is waited in patience.mjs.

import { randomBytes } from "node:crypto";
import { retryAfterMs, verdict } from "./answers.mjs";
import { Decoder, EventTooLarge } from "./decoder.mjs";
import { Follower, ProtocolError, UnsupportedProtocol } from "./follower.mjs";
import { NetworkError, request } from "./http.mjs";
import { FITS } from "./messages.mjs";
import { GivenUp, Patience } from "./patience.mjs";
import { JSONError, parse, plain } from "./strict_json.mjs";

export { GivenUp, ProtocolError, UnsupportedProtocol };

const STATUS_LINE_MS = 10_000; // TW-CLI-011
const HELLO_MS = 10_000;
const HEARTBEAT_MS = 15_000; // before hello has told another
const SILENT_HEARTBEATS = 2.5;
const SILENT_CONNECTIONS = 2; // TW-CLI-059
const MAX_REDIRECTS = 5;
const ANSWER_MS = 30_000;
const MAX_EVENT_BYTES = 32 * 1024 * 1024; // twice the default of max_state_bytes, for escapes

/** The server refused; `status`, `problem` (null where none came), `pointer`. */
export class Refusal extends Error {
  constructor(status, problem, what) {
    super(`${what}: ${problem ? `${problem.code}: ${problem.detail ?? problem.title}` : `status ${status}`}`);
    this.status = status;
    this.problem = problem;
    this.pointer = problem?.pointer ?? null;
  }
}
/** 410: the job was purged or has expired. */
export class JobExpired extends Refusal {}
/** The submit may have arrived, and may not be repeated. */
export class FateUnknown extends Error {}

// ---- answers ---------------------------------------------------------------------------------------------------

async function jsonOf(answer) {
  const text = await answer.text({ withinMs: ANSWER_MS, limit: MAX_EVENT_BYTES });
  try {
    return parse(text);
  } catch (error) {
    if (error instanceof JSONError) throw new ProtocolError(`the answer of ${answer.url} is no JSON: ${error.message}`);
    throw error;
  }
}

/** The problem in a body; null where there is none that can be read. */
async function problemOf(answer) {
  try {
    const found = await jsonOf(answer);
    return FITS.problem(found) ? plain(found) : null;
  } catch (error) {
    if (error instanceof ProtocolError || error instanceof NetworkError) return null;
    throw error;
  }
}

function refusal(status, problem, what) {
  return new (status === 410 ? JobExpired : Refusal)(status, problem, what);
}

// ---- the client ------------------------------------------------------------------------------------------------

export class Client {
  #options;
  #token;

  /** `token`: a bearer token; `refresh`: gives another one after a 401 or 403; `maxFailures`: in a row, then it ends. */
  constructor(base, { token = null, refresh = null, ...options } = {}) {
    this.base = base.replace(/\/+$/, "");
    this.#token = token;
    this.refresh = refresh;
    this.#options = options;
  }

  patience() {
    return new Patience(this.#options);
  }

  /** One request; credentials go to the origin of the base URL only (TW-SEC-012). */
  async send(method, url, { headers = {}, ...rest } = {}) {
    const send = () => {
      const own = new URL(url).origin === new URL(this.base).origin && this.#token !== null;
      const all = { "accept-encoding": "identity", ...headers, ...(own ? { authorization: `Bearer ${this.#token}` } : {}) };
      return request(method, url, { headers: all, withinMs: ANSWER_MS, ...rest });
    };
    const answer = await send();
    if ((answer.status !== 401 && answer.status !== 403) || this.refresh === null) return answer;
    answer.close();
    this.#token = await this.refresh();
    return send();
  }

  /** A GET, with redirects to the same origin followed (TW-CLI-044, TW-CLI-045). */
  async get(url, options = {}) {
    let answer = await this.send("GET", url, options);
    for (let hops = 0; [301, 302, 303, 307, 308].includes(answer.status); hops += 1) {
      answer.close();
      const target = answer.headers.location && new URL(answer.headers.location, answer.url);
      if (!target || target.origin !== new URL(url).origin || hops === MAX_REDIRECTS) {
        throw new Refusal(answer.status, null, `a redirect that is not followed, to ${target}`);
      }
      answer = await this.send("GET", target.href, options);
    }
    return answer;
  }

  /** A body that is read by GET, and fits a schema; repeated for as long as the server says later. */
  async read(url, schema) {
    const patience = this.patience();
    for (;;) {
      let answer;
      try {
        answer = await this.get(url);
        if (verdict("other", answer.status, answer.headers) === "use") {
          const body = await jsonOf(answer);
          if (schema === "discovery" && body?.protocol !== "tidewire/1") {
            throw new UnsupportedProtocol(`the server speaks ${JSON.stringify(body?.protocol)}`);
          }
          if (!FITS[schema](body)) throw new ProtocolError(`${url} does not fit the schema of ${schema}`);
          return body;
        }
      } catch (error) {
        if (!(error instanceof NetworkError)) throw error;
        await patience.afterFailure();
        continue;
      }
      await this.#laterOr(answer, patience, "other");
    }
  }

  /** Wait, where an answer means that the same request may be sent again; else it is an error. */
  async #laterOr(answer, patience, asked) {
    const problem = await problemOf(answer);
    const error = refusal(answer.status, problem, answer.url);
    const word = verdict(asked, answer.status, answer.headers);
    if (word === "wait") return patience.asAsked(retryAfterMs(answer.headers) ?? problem?.retry_after_ms);
    if (word !== "cut") throw error;
    if (asked === "submit") await this.#requireRepeatable(error);
    return patience.afterFailure();
  }

  async discover() {
    return plain(await this.read(`${this.base}/v1`, "discovery"));
  }

  async describe(endpoint) {
    return plain(await this.read(`${this.base}/v1/endpoints/${endpoint}`, "endpoint"));
  }

  /** Submit `body`: `{input}` or `{inputs}`. Repeated with one key until its fate is known. */
  async submit(endpoint, body, { key = randomBytes(16).toString("base64url") } = {}) {
    const url = `${this.base}/v1/endpoints/${endpoint}/jobs`;
    const headers = { "content-type": "application/json", accept: "application/json", "idempotency-key": key };
    const bytes = Buffer.from(JSON.stringify(body));
    const patience = this.patience();
    for (;;) {
      let answer;
      try {
        answer = await this.send("POST", url, { headers, body: bytes });
        if (answer.status === 201) {
          const job = await jsonOf(answer);
          if (!FITS.job(job)) throw new ProtocolError("a 201 that holds no job");
          return new Job(this, job.id, { url: new URL(answer.headers.location ?? job.links.self, answer.url).href, start: job });
        }
      } catch (error) {
        if (!(error instanceof NetworkError)) throw error;
        if (error.sent) await this.#requireRepeatable(error);
        await patience.afterFailure();
        continue;
      }
      await this.#laterOr(answer, patience, "submit");
    }
  }

  /** TW-JOB-037: an anonymous submit of unknown fate is repeated only where the server honours anonymous keys. */
  async #requireRepeatable(cause) {
    if (this.#token !== null) return;
    const { capabilities } = await this.discover();
    if (!capabilities.includes("idempotency")) {
      throw new FateUnknown("the submit may have arrived, and the server ignores keys of anonymous callers", { cause });
    }
  }

  /** A job that exists; with a checkpoint, from where that stands. */
  job(id, checkpoint = null) {
    return new Job(this, id, { checkpoint });
  }
}

// ---- a job -----------------------------------------------------------------------------------------------------

export class Job {
  #client;
  #follower;
  #streamUrl;
  #start;
  #silentConnections = 0;
  #delivered = false;

  constructor(client, id, { url = null, checkpoint = null, start = null } = {}) {
    this.id = id;
    this.url = url ?? `${client.base}/v1/jobs/${id}`;
    this.connections = 0;
    this.#client = client;
    this.#start = start;
    this.#streamUrl = `${this.url}/events`;
    const saved = checkpoint === null ? undefined : parse(checkpoint);
    if (saved && saved.job !== id) throw new ProtocolError(`a checkpoint of another job: ${saved.job}`);
    this.#follower = new Follower(id, saved);
  }

  /** What to keep to go on in another process, as text. */
  checkpoint() {
    return JSON.stringify(this.#follower.checkpoint());
  }

  get dropped() {
    return this.#follower.dropped;
  }

  get resyncs() {
    return this.#follower.resyncs;
  }

  /** The data of `done`, null until then. */
  get done() {
    return this.#follower.done && plain(this.#follower.done);
  }

  /** The items as far as they are known: `value` is incomplete unless the item has succeeded. */
  get items() {
    return (this.#follower.state?.items ?? []).map((item) => ({
      status: item.status,
      value: plain(item.value ?? null),
      complete: item.status === "succeeded",
      error: plain(item.error ?? null),
    }));
  }

  async read() {
    return plain(await this.#client.read(this.url, "job"));
  }

  async cancel(items = null) {
    const headers = { "content-type": "application/json" };
    const body = Buffer.from(JSON.stringify(items === null ? {} : { items }));
    const answer = await this.#client.send("POST", `${this.url}/cancel`, { headers, body });
    if (verdict("other", answer.status, answer.headers) !== "use") {
      throw refusal(answer.status, await problemOf(answer), answer.url);
    }
    answer.close();
  }

  /**
   * Each change once and in order, until the job has ended: `{ id, reason, texts: [{ path, voided, text }], value(n) }`.
   * Leaving the loop closes the connection and cancels nothing.
   */
  async *updates() {
    const patience = this.#client.patience();
    const follower = this.#follower;
    if (this.#start) {
      const { update } = follower.begin(this.#start);
      this.#start = null;
      if (update) yield this.#handed(update);
    }
    while (follower.done === null) {
      let ending;
      try {
        const heldBack = this.#silentConnections >= SILENT_CONNECTIONS;
        ending = yield* heldBack ? this.#readInstead(patience) : this.#connection(patience);
      } catch (error) {
        if (!(error instanceof NetworkError)) throw this.#withCheckpoint(error);
        if (error.silent && !this.#delivered) this.#silentConnections += 1;
        ending = { do: "cut" };
      }
      if (follower.done !== null) return;
      if (follower.progressed) patience.progress();
      try {
        if (ending.do === "fatal") throw this.#fatal(ending);
        if (ending.do === "goaway") await patience.afterGoaway(ending.retryMs, follower.progressed);
        else if (ending.do === "busy") await patience.asAsked(ending.retryMs);
        else await patience.afterFailure(ending.retryMs);
      } catch (error) {
        throw this.#withCheckpoint(error);
      }
    }
  }

  /** TW-CLI-059: the stream delivers nothing, so the job is read in its place. */
  async *#readInstead(patience) {
    const action = this.#follower.polled(await this.#client.read(this.url, "job"));
    patience.progress();
    if (action) yield this.#handed(action.update);
    return action ?? { do: "cut" };
  }

  async *#connection(patience) {
    const follower = this.#follower;
    follower.opened();
    this.#delivered = false;
    this.connections += 1;
    const cursor = follower.id === null ? {} : { "last-event-id": follower.id.text };
    const headers = { accept: "text/event-stream", "cache-control": "no-store", ...cursor };
    const answer = await this.#client.get(this.#streamUrl, { headers, withinMs: STATUS_LINE_MS });
    try {
      const word = verdict("stream", answer.status, answer.headers, follower.id !== null);
      if (word === "read") return yield* this.#afterNothing(patience);
      if (word !== "use") return await this.#judge(answer, patience, word);
      return yield* this.#stream(answer, patience);
    } finally {
      answer.close();
    }
  }

  async *#stream(answer, patience) {
    const follower = this.#follower;
    const decoder = new Decoder({ limit: MAX_EVENT_BYTES });
    const helloUntil = Date.now() + HELLO_MS;
    let silenceMs = HEARTBEAT_MS * SILENT_HEARTBEATS;
    for (;;) {
      const withinMs = follower.greeted ? silenceMs : Math.max(1, Math.min(silenceMs, helloUntil - Date.now()));
      const chunk = await answer.next(withinMs);
      if (chunk === null) return { do: "cut" };
      const events = decoder.feed(chunk);
      for (;;) {
        let next;
        try {
          next = events.next();
        } catch (error) {
          if (error instanceof EventTooLarge) return follower.resync(error.message);
          throw error;
        } finally {
          if (decoder.retryMs !== null) patience.baseMs = Math.max(1, decoder.retryMs); // TW-CLI-016
        }
        if (next.done) break;
        const action = follower.take(next.value);
        if (action.do === "hello") {
          silenceMs = action.heartbeatMs * SILENT_HEARTBEATS;
          this.#streamUrl = new URL(action.events, answer.url).href;
        } else if (action.do === "update" || action.do === "done") {
          this.#delivered = true;
          this.#silentConnections = 0;
          if (action.do === "done") answer.close();
          yield this.#handed(action.update);
          if (action.do === "done") return action;
        } else if (action.do !== "ignore") return action;
      }
    }
  }

  /** 204: nothing follows the cursor, so the job itself says how things are (TW-CLI-033). */
  async *#afterNothing(patience) {
    const answer = await this.#client.get(this.url);
    const word = verdict("other", answer.status, answer.headers);
    if (word !== "use") return this.#judge(answer, patience, word);
    const action = this.#follower.ended(await jsonOf(answer));
    if (action?.do === "done") yield this.#handed(action.update);
    return action ?? { do: "cut" };
  }

  async #judge(answer, patience, word) {
    const problem = await problemOf(answer);
    const error = refusal(answer.status, problem, answer.url);
    if (word === "resync") return this.#follower.resync("400 to a request with a cursor");
    if (word === "wait") return { do: "busy", retryMs: retryAfterMs(answer.headers) ?? problem?.retry_after_ms };
    if (word !== "cut") throw error;
    return { do: "cut" };
  }

  #handed({ id, reason, texts, state }) {
    return { id, reason, texts, value: (item = 0) => plain(state.items[item].value ?? null) };
  }

  #fatal({ error, problem }) {
    return error ?? refusal(problem.status, plain(problem), "in the stream");
  }

  #withCheckpoint(error) {
    error.checkpoint = this.checkpoint();
    return error;
  }
}
