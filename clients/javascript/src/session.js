/** Requests to one server: credentials, time limits, redirects and retries. */

import { onAbort } from "./abort_callbacks.js";
import { InvalidInputError, NotATidewireServerError, ProtocolError, RequestError, SilenceTimeoutError, TransportError, UnsupportedProtocolError } from "./errors.js";
import { FITS, PROTOCOL } from "./messages.js";
import { RetryState, actionFor, retryAfterMs } from "./retry_policy.js";
import { InvalidData, copy, parse, violation } from "./strict_json.js";

/** @import { Action, ClientOptions, ErrorDetails } from "./types.js" */
/** @typedef {{headers?: Record<string, string>, body?: string, timeoutMs?: number, signal?: AbortSignal}} RequestOptions A body makes it a POST. */

const MAX_REDIRECTS = 5;
/** A longer timer fires at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
/** Codes or messages of errors of Node with which a request was certainly not sent. Browsers do not show them. */
const NOT_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT", "bad port"];
export const IS_BROWSER = typeof window !== "undefined" || typeof WorkerGlobalScope !== "undefined";

const TOO_LARGE = "The request is too large for the server or a proxy in front of it: send less.";
/** Codes of errors of Node with which TLS fails, and of those the ones for which the certificate is the cause. */
const TLS_FAILED = /^(?:ERR_SSL_|ERR_TLS_|CERT_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|HOSTNAME_MISMATCH)/;
const CERTIFICATE_REFUSED = /^(?:ERR_TLS_CERT_|CERT_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|HOSTNAME_MISMATCH)/;

/** Wait, unless the signal aborts. @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const end = () => {
      clearTimeout(timer);
      removeAbort();
      if (signal?.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, Math.min(ms, LONGEST_TIMER_MS));
    const removeAbort = onAbort(signal, end);
  });
}

/**
 * Wait for a part of a response. If it takes too long, the request is aborted.
 * @template T @param {Promise<T>} part @param {number} timeoutMs @param {AbortController} controller @param {ErrorDetails} place @returns {Promise<T>}
 */
async function arrived(part, timeoutMs, controller, place) {
  const what = `the server sent nothing for ${Math.round(timeoutMs)} ms`;
  const silent = () => controller.abort(new SilenceTimeoutError(what, { ...place, silentMs: timeoutMs }));
  const timer = setTimeout(silent, Math.min(timeoutMs, LONGEST_TIMER_MS));
  try {
    return await part;
  } catch (error) {
    controller.signal.throwIfAborted();
    controller.abort();
    const { cause, message } = /** @type {any} */ (error);
    const why = cause?.code ?? cause?.message ?? message;
    if (TLS_FAILED.test(why)) throw tlsFailed(why, place, error);
    throw new TransportError(`the connection failed: ${why}`, { ...place, sent: !NOT_SENT.includes(why), advice: originAdvice(place), cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** Advice for a request of a page to another origin, for which a browser does not show why it failed. @param {ErrorDetails} place */
function originAdvice({ method, url }) {
  const page = IS_BROWSER ? globalThis.location?.origin : undefined;
  if (!method || !url || page === undefined || new URL(url).origin === page) return undefined;
  return `If the server runs, it may not allow pages of this origin: tidewire serve --cors-origin ${page}`;
}

/** @param {string} why @param {ErrorDetails} place @param {unknown} cause */
function tlsFailed(why, place, cause) {
  const { host } = new URL(/** @type {string} */ (place.url));
  const advice = CERTIFICATE_REFUSED.test(why)
    ? "Check the host name and the certificate of the server. To trust a private certificate authority, set the environment variable NODE_EXTRA_CA_CERTS to the file with its certificate."
    : `If the server does not use TLS, try http://${host}.`;
  return Object.assign(new TransportError(`TLS with ${host} failed: ${why}`, { ...place, sent: false, advice, cause }), { isTls: true });
}

/** A response whose body is read in chunks. */
export class Connection {
  #reader;
  #controller;

  /** @param {Response} response @param {string} url @param {AbortController} controller Aborts the request and the body. */
  constructor(response, url, controller) {
    this.url = response.url || url;
    this.status = response.status;
    this.headers = response.headers;
    this.#reader = response.body?.getReader();
    this.#controller = controller;
  }

  /** The next bytes of the body, or null at its end. @param {number} timeoutMs */
  async next(timeoutMs) {
    const read = this.#reader && (await arrived(this.#reader.read(), timeoutMs, this.#controller, { url: this.url }));
    return read?.value ?? null;
  }

  /** The whole body as text. The connection is closed. @param {number} timeoutMs @param {number} maxBytes */
  async text(timeoutMs, maxBytes) {
    const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const until = performance.now() + timeoutMs;
    let [text, size] = ["", 0];
    try {
      for (let chunk; (chunk = await this.next(Math.max(1, until - performance.now()))) !== null; text += utf8.decode(chunk, { stream: true })) {
        size += chunk.length;
        if (size > maxBytes) throw new ProtocolError(`the body of the response is larger than ${maxBytes} bytes`, { url: this.url });
      }
      return text + utf8.decode();
    } finally {
      this.close();
    }
  }

  /** The whole body as JSON. The connection is closed. @param {number} timeoutMs @param {number} maxBytes */
  async json(timeoutMs, maxBytes) {
    return parse(await this.text(timeoutMs, maxBytes));
  }

  close() {
    this.#controller.abort();
    this.#reader?.cancel().catch(() => {});
  }
}

export class Session {
  /** Whether a response has proved that the server is a Tidewire server. */
  contacted = false;
  #hasWarnedOfLinks = false;
  #credentials = /** @type {string | null} */ (null);

  /** @param {string} base @param {ClientOptions} options */
  constructor(base, options) {
    this.base = base;
    this.origin = new URL(base).origin;
    this.options = options;
    this.answerTimeoutMs = options.answerTimeoutMs ?? 30_000;
    this.maxStateBytes = options.maxStateBytes ?? 16 * 2 ** 20;
    this.fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    if (typeof options.token === "string") checkedToken(options.token);
    this.retryState = () => new RetryState(options.retry);
  }

  /** Send a request. Refresh the credentials once, and follow redirects of a GET. @param {string} url @param {RequestOptions} options */
  async send(url, { headers, body, timeoutMs = this.answerTimeoutMs, signal }) {
    const { token } = this.options;
    const method = body === undefined ? "GET" : "POST";
    let refreshes = typeof token === "function" ? 1 : 0;
    let redirects = body === undefined ? MAX_REDIRECTS : 0;
    for (;;) {
      this.#credentials ??= checkedToken(await (typeof token === "function" ? token() : token));
      const all = new Headers({ ...headers, ...(IS_BROWSER ? {} : { "accept-encoding": "identity" }), ...this.options.headers });
      if (this.#credentials !== null) all.set("authorization", `Bearer ${this.#credentials}`);
      signal?.throwIfAborted();
      const controller = new AbortController();
      onAbort(controller.signal, onAbort(signal, () => controller.abort(signal?.reason)));
      const sent = this.fetch(url, { method, headers: all, body, cache: "no-store", redirect: "manual", signal: controller.signal });
      const response = await arrived(sent, timeoutMs, controller, { method, url }).catch((error) => {
        // No attempt succeeds with a wrong scheme. Later, the certificate may be about to be replaced.
        if (error.isTls && !this.contacted) error.interruption = null;
        throw error;
      });
      if (response.type === "opaqueredirect") {
        const advice = "A browser does not show where. Pass the URL to which the server redirects as the URL of the client.";
        throw new RequestError("the server redirects, which this client does not follow in a browser", { method, url, advice });
      }
      const connection = new Connection(response, url, controller);
      const action = actionFor(connection.status, "request");
      const location = connection.headers.get("location");
      const target = location === null ? null : this.#sameOrigin(location, connection.url);
      if (action === "refresh" && refreshes-- > 0) this.#credentials = null;
      else if (action === "redirect" && target !== null && redirects-- > 0) url = target;
      else return connection;
      connection.close();
    }
  }

  /** The error for a response, which is closed. @param {Connection} connection @param {Action} action @param {ErrorDetails} details */
  async refused(connection, action, details) {
    const { url, status, headers } = connection;
    const text = status === 200 ? connection.close() : await connection.text(this.answerTimeoutMs, 2 ** 20).catch(() => "");
    const problem = problemIn(text ?? "");
    this.contacted ||= problem !== null;
    const response = summary(connection, text ?? "");
    if (problem === null && !this.contacted && isNotFromGateway(status)) {
      const what = `the server at ${this.base} is not a Tidewire server: it sent ${response}`;
      return new NotATidewireServerError(what, { url, status, ...details });
    }
    const askedMs = retryAfterMs(headers.get("retry-after")) ?? problem?.retry_after_ms;
    const interruption = action === "wait" || action === "cut" ? action : null;
    const isOutside = !this.isUnder(url) && (problem === null || status === 404);
    // A problem from the server contains an advice itself. The page of a proxy does not.
    const tooLarge = status === 413 && problem === null ? TOO_LARGE : undefined;
    const advice = isOutside ? this.#linkAdvice(url) : tooLarge;
    const target = actionFor(status, "request") === "redirect" ? resolved(headers.get("location"), url) : null;
    if (target !== null) {
      const { method = "GET" } = details;
      if (method === "GET" && target.origin === this.origin) {
        return new ProtocolError(`the server sent more than ${MAX_REDIRECTS} redirects`, { url, status, ...details });
      }
      target.username = target.password = "";
      const what = `the server redirects this ${method} request to ${target}`;
      const redirectAdvice = "The client follows redirects of GET requests within one origin only. Create a client with the new URL.";
      return new RequestError(what, { url, status, advice: redirectAdvice, ...details });
    }
    return RequestError.from(status, problem, { url, retryAfterMs: askedMs, interruption, advice, ...details }, response);
  }

  /**
   * Send a request until it has a response that fits a schema. With the member `json` it is a POST, with a `key` a submit.
   * @param {string} url @param {string} schema @param {{json?: any, key?: string, jobId?: string, signal?: AbortSignal}} [options]
   * @returns {Promise<{body: any, connection: Connection}>}
   * @throws {InvalidInputError} A value cannot be sent as JSON. Nothing was sent.
   */
  async request(url, schema, { json, key, jobId, signal } = {}) {
    const method = json === undefined ? "GET" : "POST";
    const invalid = violation(json);
    if (invalid) {
      const { pointer, why } = invalid;
      throw new InvalidInputError(`the input is not valid JSON under the protocol's rules: at '${pointer}': ${why}`, { pointer, sent: false });
    }
    const sent = { ...(json === undefined ? {} : { "content-type": "application/json" }), ...(key === undefined ? {} : { "idempotency-key": key }) };
    const request = { headers: { accept: "application/json", ...sent }, body: JSON.stringify(json), signal };
    const state = this.retryState();
    for (;;) {
      state.begin();
      try {
        const connection = await this.send(url, request);
        const action = actionFor(connection.status, key === undefined ? "request" : "submit");
        if (action !== "use") throw await this.refused(connection, action, { method, jobId });
        return { body: await this.#read(connection, schema, method), connection };
      } catch (caught) {
        const error = /** @type {any} */ (caught);
        if (!error?.interruption) throw error;
        const isUnknown = error.interruption === "cut" && error.sent && error.problem === null;
        if (isUnknown && key !== undefined && !(await this.#honorsKeys(signal))) {
          error.message += " The job may have been started, and the server ignores the idempotency keys of callers without credentials.";
          throw error;
        }
        // A browser does not show whether a server was reached, so a wrong URL must not look like an outage.
        const isHidden = IS_BROWSER && error instanceof TransportError && !(error instanceof SilenceTimeoutError);
        await sleep(state.waitAfter(error, { isFirstContact: !this.contacted && (isHidden || !error.sent) }), signal);
      }
    }
  }

  /** Whether a submit that may have arrived can be repeated. @param {AbortSignal} [signal] */
  async #honorsKeys(signal) {
    if (this.options.token !== undefined || new Headers(this.options.headers).has("authorization")) return true;
    return (await this.request(`${this.base}/v1`, "discovery", { signal })).body.capabilities.includes("idempotency");
  }

  /** @param {Connection} connection @param {string} schema @param {string} method */
  async #read(connection, schema, method) {
    const place = { method, url: connection.url, status: connection.status };
    const body = await connection.json(this.answerTimeoutMs, 4 * Math.max(this.maxStateBytes, 2 ** 20)).catch((error) => {
      if (!(error instanceof InvalidData || error instanceof TypeError)) throw error; // a TypeError: not UTF-8
      throw new (this.contacted ? ProtocolError : NotATidewireServerError)(`the response is not JSON: ${error.message}`, place);
    });
    if (schema === "discovery" && body?.protocol !== PROTOCOL && typeof body?.protocol === "string") {
      throw new UnsupportedProtocolError(`the server uses the protocol ${JSON.stringify(body.protocol)}`, place);
    }
    if (!FITS[schema](body)) throw new ProtocolError(`the response does not fit the schema of ${schema}`, place);
    this.contacted = true;
    return copy(body);
  }

  /** Whether a URL of the server begins with the URL of the client. @param {string} url */
  isUnder(url) {
    return url.startsWith(`${this.base}/`);
  }

  /** @param {string} url */
  #linkAdvice(url) {
    return (
      `The server sent the link ${url}, which is outside the base path ${this.base}. A proxy seems to remove a path prefix: ` +
      "set root_path on the server to the prefix, or keep the prefix in the proxy."
    );
  }

  /**
   * A link as a URL, or null if it leads to another origin. The first link outside the base path causes a warning.
   * @param {string} link @param {string} at
   */
  link(link, at) {
    const url = this.#sameOrigin(link, at);
    if (url !== null && !this.isUnder(url) && !this.#hasWarnedOfLinks) {
      this.#hasWarnedOfLinks = true;
      console.warn(`tidewire: ${this.#linkAdvice(url)}`);
    }
    return url;
  }

  /** A link as a URL, or null if it leads to another origin, which must not get the credentials. @param {string} link @param {string} at */
  #sameOrigin(link, at) {
    const url = resolved(link, at);
    return url?.origin === this.origin ? url.href : null;
  }
}

/** A link as a URL, or null if it is missing or not valid. @param {string | null} link @param {string} at */
function resolved(link, at) {
  try {
    return link === null ? null : new URL(link, at);
  } catch {
    return null;
  }
}

/** A token, or null. @param {string | null | undefined} token @throws {TypeError} The token is not valid. The message does not contain it. */
function checkedToken(token) {
  if (token === undefined || token === null) return null;
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  throw new TypeError("the option token must be one or more visible ASCII characters without spaces; leave out the word 'Bearer'");
}

/** The problem details in the body of a response, or null. @param {string} text */
function problemIn(text) {
  try {
    const body = parse(text);
    return FITS.problem(body) ? copy(body) : null;
  } catch {
    return null; // not JSON
  }
}

/** Status, media type, and the title of a page or the start of the body, of a response without problem details. @param {Connection} connection @param {string} text */
function summary({ status, headers }, text) {
  const [media] = (headers.get("content-type") ?? "").split(";");
  const coding = headers.get("content-encoding") ?? "identity";
  if (!IS_BROWSER && media.trim() === "text/event-stream" && coding !== "identity") return `${status} ${media.trim()} with the content coding ${coding}, which the client did not request`;
  const title = media.trim() === "text/html" ? /<title[^>]*>([^<]*[^<\s])/i.exec(text.slice(0, 4096))?.[1] : undefined;
  const start = (title ?? text).trim().slice(0, 200).replace(/\s+/g, " ").slice(0, 80);
  return `${status} ${media.trim() || "without a content type"}${start ? `: ${JSON.stringify(start)}` : ""}`;
}

/** Whether no gateway in front of a server sends an error with this status by itself. @param {number} status */
function isNotFromGateway(status) {
  return status >= 400 && (status < 500 || status === 501) && ![401, 403, 407, 408, 413, 429].includes(status);
}
