/** Requests to one server: credentials, time limits, redirects and retries. */

import { NotATidewireServerError, ProtocolError, RequestError, SilenceTimeoutError, TransportError, UnsupportedProtocolError, refusal } from "./errors.js";
import { FITS, PROTOCOL } from "./messages.js";
import { GiveUp, RetryState, actionFor, retryAfterMs } from "./retry_policy.js";
import { JsonError, copy, parse } from "./strict_json.js";

/** @typedef {import("./errors.js").Problem} Problem */
/** @typedef {import("./retry_policy.js").RequestKind} RequestKind */
/** @typedef {{method?: string, headers?: Record<string, string>, body?: string, timeoutMs?: number, signal?: AbortSignal}} RequestOptions */

/** Time for the status line of a stream, and then for `hello`. */
export const HELLO_TIMEOUT_MS = 10_000;
const MAX_REDIRECTS = 5;
/** A longer timer fires at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
/** Codes or messages of errors of Node with which a request was certainly not sent. Browsers do not show them. */
const NOT_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT", "bad port"];
const IS_BROWSER = typeof window !== "undefined" || typeof WorkerGlobalScope !== "undefined";

/** Wait, unless the signal aborts. @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, Math.min(ms, LONGEST_TIMER_MS));
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A response whose body is read in chunks. */
export class Connection {
  #reader;
  #controller;
  #unlink;

  /** @param {Response} response @param {string} url @param {AbortController} controller @param {() => void} unlink */
  constructor(response, url, controller, unlink) {
    this.url = response.url || url;
    this.status = response.status;
    this.headers = response.headers;
    this.isHidden = response.type === "opaqueredirect";
    this.#reader = response.body?.getReader();
    this.#controller = controller;
    this.#unlink = unlink;
  }

  /** The next bytes of the body, or null at its end. @param {number} timeoutMs @returns {Promise<Uint8Array | null>} */
  async next(timeoutMs) {
    if (!this.#reader) return null;
    const within = Math.min(timeoutMs, LONGEST_TIMER_MS);
    const silence = new SilenceTimeoutError(`the server sent no bytes for ${Math.round(within)} ms`, { url: this.url });
    const timer = setTimeout(() => this.#controller.abort(silence), within);
    try {
      const { done, value } = await this.#reader.read();
      return done ? null : value;
    } catch (error) {
      const failure = transportError(error, this.#controller.signal, "GET", this.url);
      this.close();
      throw failure;
    } finally {
      clearTimeout(timer);
    }
  }

  /** The whole body as text. @param {number} timeoutMs @param {number} maxBytes */
  async text(timeoutMs, maxBytes) {
    const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const until = performance.now() + timeoutMs;
    let [text, size] = ["", 0];
    for (let chunk; (chunk = await this.next(Math.max(1, until - performance.now()))) !== null; ) {
      size += chunk.length;
      if (size > maxBytes) {
        this.close();
        throw new ProtocolError(`the body of the response is larger than ${maxBytes} bytes`, { url: this.url });
      }
      text += utf8.decode(chunk, { stream: true });
    }
    this.#unlink();
    return text + utf8.decode();
  }

  close() {
    this.#unlink();
    this.#controller.abort();
    this.#reader?.cancel().catch(() => {});
  }
}

/** @param {any} error @param {AbortSignal} signal @param {string} method @param {string} url */
function transportError(error, signal, method, url) {
  if (signal.aborted && signal.reason instanceof SilenceTimeoutError) return signal.reason;
  if (signal.aborted && signal.reason !== error) return signal.reason;
  if (error?.name === "AbortError") return error;
  const code = error?.cause?.code;
  const why = code ?? error?.cause?.message ?? error?.message ?? String(error);
  return new TransportError(`the connection failed: ${why}`, { method, url, sent: !NOT_SENT.includes(why), cause: error });
}

export class Session {
  /** Whether a response has proved that the server is a Tidewire server. */
  contacted = false;
  /** @type {string | null} */
  #credentials = null;

  /** @param {string} base @param {import("./client.js").ClientOptions} options */
  constructor(base, options) {
    this.base = base;
    this.origin = new URL(base).origin;
    this.options = options;
    this.answerTimeoutMs = options.answerTimeoutMs ?? 30_000;
    this.maxStateBytes = options.maxStateBytes ?? 16 * 2 ** 20;
    this.fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  retryState() {
    return new RetryState(this.options.retry);
  }

  /** @param {boolean} again Whether the server rejected the credentials of the last request. */
  async #token(again) {
    const { token } = this.options;
    if (typeof token !== "function") return token ?? null;
    if (this.#credentials === null || again) this.#credentials = await token();
    return this.#credentials;
  }

  /**
   * Send one request, and wait for the head of its response.
   * @param {string} url @param {RequestOptions} options @param {boolean} [again] @returns {Promise<Connection>}
   */
  async #sendOnce(url, { method = "GET", headers = {}, body, timeoutMs = this.answerTimeoutMs, signal }, again = false) {
    /** @type {Record<string, string>} */
    const all = { ...headers };
    if (!IS_BROWSER) all["accept-encoding"] = "identity";
    if (new URL(url).origin === this.origin) {
      Object.assign(all, this.options.headers);
      const token = await this.#token(again);
      if (token !== null) all.authorization = `Bearer ${token}`;
    }
    signal?.throwIfAborted();
    const controller = new AbortController();
    const abort = () => controller.abort(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    const unlink = () => signal?.removeEventListener("abort", abort);
    const silence = new SilenceTimeoutError(`the server did not respond in ${timeoutMs} ms`, { method, url });
    const timer = setTimeout(() => controller.abort(silence), Math.min(timeoutMs, LONGEST_TIMER_MS));
    try {
      const response = await this.fetch(url, { method, headers: all, body, cache: "no-store", redirect: "manual", signal: controller.signal });
      return new Connection(response, url, controller, unlink);
    } catch (error) {
      unlink();
      throw transportError(error, controller.signal, method, url);
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * Send one request. Refresh the credentials once, and follow redirects of a GET within the origin.
   * @param {string} url @param {RequestOptions} options @returns {Promise<Connection>}
   */
  async send(url, options) {
    let isRefreshed = false;
    let connection = await this.#sendOnce(url, options);
    for (let redirects = 0; ; ) {
      const action = actionFor(connection.status, "request");
      if (action === "refresh" && typeof this.options.token === "function" && !isRefreshed) isRefreshed = true;
      else if (action === "redirect" && (options.method ?? "GET") === "GET") {
        const location = connection.headers.get("location");
        const target = location === null ? null : new URL(location, connection.url);
        if (redirects === MAX_REDIRECTS || target?.origin !== this.origin) return connection;
        url = target.href;
        redirects += 1;
      } else return connection;
      connection.close();
      connection = await this.#sendOnce(url, options, isRefreshed && action === "refresh");
    }
  }

  /** The problem in the body of a response, or null. The response is closed. @param {Connection} connection @returns {Promise<Problem | null>} */
  async problemOf(connection) {
    try {
      const found = parse(await connection.text(this.answerTimeoutMs, 2 ** 20));
      if (!FITS.problem(found)) return null;
      this.contacted = true;
      return copy(found);
    } catch (error) {
      if (error instanceof JsonError || error instanceof ProtocolError || error instanceof TransportError || error instanceof TypeError) return null;
      throw error;
    } finally {
      connection.close();
    }
  }

  /**
   * The error for a response that is not what was requested.
   * @param {Connection} connection @param {Problem | null} problem @param {import("./errors.js").ErrorDetails} [details]
   */
  refusal({ url, status, isHidden }, problem, details = {}) {
    if (!isHidden) return refusal(status, problem, { url, ...details });
    const advice = "A browser does not show where. Pass the URL to which the server redirects as the URL of the client.";
    return new RequestError("the server redirects, which this client does not follow in a browser", { url, advice, ...details });
  }

  /**
   * Send a request until it has a response that fits a schema.
   * @param {string} url @param {keyof typeof FITS} schema
   * @param {RequestOptions & {kind?: RequestKind, jobId?: string, state?: RetryState, doubt?: (error: Error) => Promise<void>}} [options]
   * `doubt` is called before a submit is repeated that may have arrived, and throws if it may not be repeated.
   * @returns {Promise<{body: any, connection: Connection}>}
   */
  async request(url, schema, { kind = "request", jobId, state = this.retryState(), doubt, ...options } = {}) {
    const { method = "GET", signal } = options;
    for (;;) {
      let error;
      let askedMs = null;
      state.begin();
      try {
        const connection = await this.send(url, options);
        const action = actionFor(connection.status, kind);
        if (action === "use") {
          const body = await this.#read(connection, schema, method);
          state.live();
          return { body, connection };
        }
        const problem = await this.problemOf(connection);
        error = this.refusal(connection, problem, { method, jobId });
        if ((action !== "wait" && action !== "cut") || connection.isHidden) throw error;
        askedMs = action === "wait" ? retryAfterMs(connection.headers.get("retry-after")) ?? problem?.retry_after_ms ?? null : null;
        if (action === "cut" && problem === null) await doubt?.(error);
      } catch (caught) {
        if (!(caught instanceof TransportError) || caught.advice) throw caught;
        error = caught;
        if (error.sent) await doubt?.(error);
      }
      // A browser does not show whether a server was reached, so a wrong URL must not look like an outage.
      const isUnreached = error instanceof TransportError && (!error.sent || (IS_BROWSER && !(error instanceof SilenceTimeoutError)));
      const wait = state.retry({ askedMs, isFirstContact: isUnreached && !this.contacted });
      if (wait instanceof GiveUp) {
        error.message += ` The client gave up: ${wait.why}.`;
        throw error;
      }
      await sleep(wait, signal);
    }
  }

  /** @param {Connection} connection @param {keyof typeof FITS} schema @param {string} method */
  async #read(connection, schema, method) {
    const place = { method, url: connection.url, status: connection.status };
    let body;
    try {
      body = parse(await connection.text(this.answerTimeoutMs, 4 * Math.max(this.maxStateBytes, 2 ** 20)));
    } catch (error) {
      if (!(error instanceof JsonError || error instanceof TypeError)) throw error;
      const kind = this.contacted ? ProtocolError : NotATidewireServerError;
      throw new kind(`the response is not JSON: ${error.message}`, place);
    }
    if (schema === "discovery" && body?.protocol !== PROTOCOL && typeof body?.protocol === "string") {
      throw new UnsupportedProtocolError(`the server uses the protocol ${JSON.stringify(body.protocol)}`, place);
    }
    if (!FITS[schema](body)) throw new ProtocolError(`the response does not fit the schema of ${schema}`, place);
    this.contacted = true;
    return body;
  }

  /**
   * Resolve a link. A link to another origin is replaced, because the credentials are only for the origin of the client.
   * @param {string} link @param {string} at URL of the response that contains the link. @param {string} otherwise
   */
  link(link, at, otherwise) {
    try {
      const url = new URL(link, at);
      return url.origin === this.origin ? url.href : otherwise;
    } catch {
      return otherwise;
    }
  }
}
