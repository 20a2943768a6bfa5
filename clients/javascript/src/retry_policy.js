/**
 * Policy for retries: the action after each response, and the wait before each retry.
 *
 * Each call and each event stream has one `RetryState`. It sends nothing and never sleeps.
 */

const FIRST_WAIT_MS = 250;
/** Attempts to reach a server before a response has proved that it is a Tidewire server. */
const FIRST_ATTEMPTS = 3;
const MIN_REQUESTED_WAIT_MS = 100;
const REDIRECTS = [301, 302, 303, 307, 308];

/**
 * Limits for the retries of streams, reads, submits and cancels.
 * @typedef {object} RetryPolicy
 * @property {number} [patienceMs] Time without progress after which the client gives up, by default 300000. It includes all
 *   waits, even those that a server asks for, but not the time during which a stream is live.
 * @property {number} [minDelayMs] Shortest first wait, by default 1. A stream's `retry` field sets the first wait.
 * @property {number} [maxDelayMs] Longest wait before the random factor is applied, by default 30000. A server may ask for more.
 * @property {number} [attempts] Failures in a row after which the client gives up. By default unlimited.
 * @property {number} [jitter] Range of the random factor of each wait, by default 0.5: from 1 - jitter to 1 + jitter.
 */

/** @typedef {"use" | "read_job" | "resync" | "refresh" | "wait" | "redirect" | "cut" | "fatal"} Action */
/** @typedef {"stream" | "request" | "submit"} RequestKind */

/** The retry policy allows no further attempt. */
export class GiveUp {
  /** @param {string} why */
  constructor(why) {
    this.why = why;
  }
}

/**
 * The client's action after a response.
 * @param {number} status @param {RequestKind} kind
 * @param {{hasCursor?: boolean, usable?: boolean}} [request] Whether the request had a cursor, and whether the body of a
 * successful response has the requested content type.
 * @returns {Action}
 */
export function actionFor(status, kind, { hasCursor = false, usable = true } = {}) {
  if (status === 429 || status === 503 || (status === 409 && kind === "submit")) return "wait";
  if (status === 401 || status === 403) return "refresh";
  if (REDIRECTS.includes(status)) return kind === "submit" ? "fatal" : "redirect";
  if (kind === "stream") {
    if (status === 200) return usable ? "use" : "cut";
    if (status === 204) return "read_job";
    if (status === 400 && hasCursor) return "resync";
  } else if ([200, 201, 202, 204, 304].includes(status)) return "use";
  return status >= 400 && status < 500 ? "fatal" : "cut";
}

/** The whole seconds of a Retry-After header in milliseconds, or null. A date is ignored. @param {string | null} value */
export function retryAfterMs(value) {
  return value !== null && /^[0-9]{1,12}$/.test(value) ? Number(value) * 1000 : null;
}

/** Whether a body is an event stream without a content coding. @param {Headers} headers */
export function isEventStream(headers) {
  const [type] = (headers.get("content-type") ?? "").split(";");
  const coding = headers.get("content-encoding") ?? "identity";
  return type.trim().toLowerCase() === "text/event-stream" && coding.trim().toLowerCase() === "identity";
}

export class RetryState {
  /** Wait after the first failure, which the `retry` field of a stream sets. */
  delayMs = 1000;
  failures = 0;
  #spentMs = 0;
  /** @type {number | null} */
  #began = null;
  #limits;

  /** @param {RetryPolicy} [policy] @param {() => number} [now] Clock, in milliseconds. @param {() => number} [random] */
  constructor(policy = {}, now = () => performance.now(), random = Math.random) {
    this.#limits = { patienceMs: 300_000, minDelayMs: 1, maxDelayMs: 30_000, attempts: Infinity, jitter: 0.5, ...policy };
    const { patienceMs, minDelayMs, maxDelayMs, attempts, jitter } = this.#limits;
    if (!(patienceMs > 0)) throw new RangeError(`retry.patienceMs must be more than 0, not ${patienceMs}`);
    if (!(minDelayMs > 0 && minDelayMs <= maxDelayMs)) throw new RangeError("retry.minDelayMs must be above 0 and at most maxDelayMs");
    if (!(attempts >= 1)) throw new RangeError(`retry.attempts must be at least 1, not ${attempts}`);
    if (!(jitter >= 0 && jitter < 1)) throw new RangeError(`retry.jitter must be at least 0 and less than 1, not ${jitter}`);
    this.now = now;
    this.random = random;
  }

  /** Start a request. Its time counts toward the patience until it is live or has failed. */
  begin() {
    this.#began = this.now();
  }

  /** The stream is live. */
  live() {
    this.#spentMs += this.#elapsed();
  }

  progress() {
    this.failures = 0;
    this.#spentMs = 0;
  }

  #elapsed() {
    const began = this.#began;
    this.#began = null;
    return began === null ? 0 : this.now() - began;
  }

  /**
   * Count an interruption, and return the wait before the next attempt in milliseconds.
   * @param {object} [interruption] @param {boolean} [interruption.isFailure] By default, a wait that the server asked for is not a failure.
   * @param {number | null} [interruption.askedMs] Time for which the server asked, or null.
   * @param {boolean} [interruption.isFirstContact] Whether perhaps no server is at this address.
   * @param {number} [interruption.silenceMs] Time during which a live stream sent nothing. @returns {number | GiveUp}
   */
  retry({ askedMs = null, isFailure = askedMs === null, isFirstContact = false, silenceMs = 0 } = {}) {
    const { patienceMs, attempts, jitter, minDelayMs, maxDelayMs } = this.#limits;
    this.#spentMs += this.#elapsed() + silenceMs;
    const left = patienceMs - this.#spentMs;
    if (isFailure) {
      this.failures += 1;
      if (this.failures >= attempts) return new GiveUp(`${this.failures} failures without progress, and attempts is ${attempts}`);
      if (isFirstContact && this.failures >= FIRST_ATTEMPTS) return new GiveUp(`${FIRST_ATTEMPTS} attempts`);
    }
    if (askedMs !== null && askedMs > left) {
      return new GiveUp(`the server asked to wait ${askedMs} ms, but ${Math.max(0, Math.round(left))} ms are left of patienceMs`);
    }
    if (left <= 0) return new GiveUp(`no progress, and patienceMs is ${patienceMs}`);
    let wait = 0;
    if (isFailure && isFirstContact) wait = FIRST_WAIT_MS * 2 ** (this.failures - 1);
    else if (isFailure) {
      const grown = Math.min(maxDelayMs, Math.max(minDelayMs, this.delayMs) * 2 ** Math.min(this.failures - 1, 40));
      wait = grown * (1 + jitter * (2 * this.random() - 1));
    }
    if (askedMs !== null) wait = Math.max(wait, Math.max(askedMs, MIN_REQUESTED_WAIT_MS) * (1 + jitter * this.random()));
    if (wait >= left) wait = left; // the last attempt is made at the end of the patience
    this.#spentMs += wait;
    return wait;
  }
}
