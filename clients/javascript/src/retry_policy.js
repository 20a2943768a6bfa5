/** Policy for retries: the action after each response, and the wait before each retry. It sends nothing and never sleeps. */

/** @import { Action, RetryPolicy } from "./types.js" */

const FIRST_WAIT_MS = 250;
/** Attempts to reach a server before a response has proved that it is a Tidewire server. */
const FIRST_ATTEMPTS = 3;
const MIN_REQUESTED_WAIT_MS = 100;
const REDIRECTS = [301, 302, 303, 307, 308];

/**
 * The client's action after a response. `usable`: whether the body of a successful response has the requested content type.
 * @param {number} status @param {"stream" | "request" | "submit"} kind @param {{hasCursor?: boolean, usable?: boolean}} [request] @returns {Action}
 */
export function actionFor(status, kind, { hasCursor = false, usable = true } = {}) {
  if ([408, 429, 503].includes(status) || (status === 409 && kind === "submit")) return "wait";
  if (status === 401 || status === 403) return "refresh";
  if (REDIRECTS.includes(status)) return kind === "submit" ? "fatal" : "redirect";
  if (kind === "stream" && status === 204) return "read_job";
  if (kind === "stream" && status === 400 && hasCursor) return "resync";
  if (kind === "stream" ? status === 200 && usable : [200, 201, 202, 204, 304].includes(status)) return "use";
  return status >= 400 && status < 500 ? "fatal" : "cut";
}

/** The whole seconds of a Retry-After header in milliseconds, or null. A date is ignored. @param {string | null} value */
export function retryAfterMs(value) {
  return value !== null && /^[0-9]{1,12}$/.test(value) ? Number(value) * 1000 : null;
}

/**
 * Whether a body is an event stream. A browser requests content codings itself, and has already decoded the body.
 * @param {Headers} headers @param {boolean} isBrowser
 */
export function isEventStream(headers, isBrowser) {
  const [type] = (headers.get("content-type") ?? "").split(";");
  const coding = (!isBrowser && headers.get("content-encoding")) || "identity";
  return type.trim().toLowerCase() === "text/event-stream" && coding.trim().toLowerCase() === "identity";
}

/** State of the retries of one call or one event stream. */
export class RetryState {
  /** Wait after the first failure, which the `retry` field of a stream sets. */
  delayMs = 1000;
  failures = 0;
  #spentMs = 0;
  #began = /** @type {number | null} */ (null);
  #limits;

  /** @param {RetryPolicy} [policy] @throws {RangeError} A limit is out of range. */
  constructor(policy = {}) {
    this.#limits = { patienceMs: 300_000, minDelayMs: 1, maxDelayMs: 30_000, attempts: Infinity, jitter: 0.5, ...policy };
    const { patienceMs, minDelayMs, maxDelayMs, attempts, jitter } = this.#limits;
    if (!(patienceMs > 0)) throw new RangeError(`retry.patienceMs must be more than 0, not ${patienceMs}`);
    if (!(minDelayMs > 0 && minDelayMs <= maxDelayMs)) throw new RangeError("retry.minDelayMs must be above 0 and at most maxDelayMs");
    if (!(attempts >= 1)) throw new RangeError(`retry.attempts must be at least 1, not ${attempts}`);
    if (!(jitter >= 0 && jitter < 1)) throw new RangeError(`retry.jitter must be at least 0 and less than 1, not ${jitter}`);
  }

  /** Start a request. Its time counts toward the patience until it is live or has failed. */
  begin() {
    this.#began = performance.now();
  }

  live() {
    if (this.#began !== null) this.#spentMs += performance.now() - this.#began;
    this.#began = null;
  }

  progress() {
    this.failures = 0;
    this.#spentMs = 0;
  }

  /** The server has confirmed that the client has all events of the job. */
  confirmed() {
    this.#spentMs = 0;
  }

  /**
   * Count an interruption, and return the wait before the next attempt, or throw the error. `isFirstContact`: perhaps no server is there.
   * @param {import("./errors.js").TidewireError} error @param {{isFirstContact?: boolean, hasProgress?: boolean}} [interruption]
   */
  waitAfter(error, { isFirstContact = false, hasProgress = false } = {}) {
    const { patienceMs, minDelayMs, maxDelayMs, jitter } = this.#limits;
    const attempts = isFirstContact ? Math.min(this.#limits.attempts, FIRST_ATTEMPTS) : this.#limits.attempts;
    const askedMs = error.interruption === "cut" ? null : error.retryAfterMs;
    const isFailure = askedMs === null || (error.interruption === "goaway" && !hasProgress);
    if (this.#began === null) this.#spentMs += error.silentMs; // of a live stream, whose other time does not count
    this.live();
    if (hasProgress) this.progress();
    if (isFailure) this.failures += 1;
    const left = patienceMs - this.#spentMs;
    let why = "";
    if (left <= 0) why = `no progress, and patienceMs is ${patienceMs}`;
    else if ((askedMs ?? 0) > left) why = `the server asked to wait ${askedMs} ms, but ${Math.round(left)} ms are left of patienceMs`;
    else if (isFailure && this.failures >= attempts) why = `${this.failures} failures without progress, and ${attempts} attempts are allowed`;
    if (why !== "") {
      error.message += ` The client gave up: ${why}.`;
      throw error;
    }
    const base = isFirstContact ? FIRST_WAIT_MS : Math.max(minDelayMs, this.delayMs);
    const grown = Math.min(maxDelayMs, base * 2 ** Math.min(this.failures - 1, 40)) * (1 + jitter * (2 * Math.random() - 1));
    const asked = Math.max(askedMs ?? 0, MIN_REQUESTED_WAIT_MS) * (1 + jitter * Math.random());
    // The last attempt is made at the end of the patience.
    const wait = Math.min(left, Math.max(isFailure ? grown : 0, askedMs === null ? 0 : asked));
    this.#spentMs += wait;
    return wait;
  }
}
