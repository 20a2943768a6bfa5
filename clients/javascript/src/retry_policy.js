/** Policy for retries: the action after each response, and the wait before each retry. It sends nothing and never sleeps. */

/** @import { RetryPolicy } from "./types.js" */

const FIRST_WAIT_MS = 250;
/** Attempts to reach a server before a response has proved that it is a Tidewire server. */
const FIRST_ATTEMPTS = 3;
const MIN_REQUESTED_WAIT_MS = 100;
const REDIRECTS = [301, 302, 303, 307, 308];

/**
 * The client's action after a response. `usable`: whether the body of a successful response has the requested content type.
 * @param {number} status @param {"stream" | "request" | "submit"} kind @param {{hasCursor?: boolean, usable?: boolean}} [request]
 * @returns {"use" | "read_job" | "resync" | "refresh" | "wait" | "redirect" | "cut" | "fatal"}
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

/** State of the retries of one call or one event stream. */
export class RetryState {
  /** Wait after the first failure, which the `retry` field of a stream sets. */
  delayMs = 1000;
  failures = 0;
  #spentMs = 0;
  /** @type {number | null} */
  #began = null;
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

  /** The stream is live. */
  live() {
    if (this.#began !== null) this.#spentMs += performance.now() - this.#began;
    this.#began = null;
  }

  progress() {
    this.failures = 0;
    this.#spentMs = 0;
  }

  /**
   * Count an interruption, and return the wait before the next attempt in milliseconds, or throw the error.
   * `askedMs` is the wait that the server asked for, which by default is not a failure, `isFirstContact` whether perhaps no
   * server is at this address, and `silenceMs` the time during which a live stream sent nothing.
   * @param {import("./errors.js").TidewireError} error
   * @param {{askedMs?: number | null, isFailure?: boolean, isFirstContact?: boolean, silenceMs?: number}} [interruption]
   */
  waitAfter(error, { askedMs = null, isFailure = askedMs === null, isFirstContact = false, silenceMs = 0 } = {}) {
    const { patienceMs, attempts, jitter, minDelayMs, maxDelayMs } = this.#limits;
    this.live();
    this.#spentMs += silenceMs;
    if (isFailure) this.failures += 1;
    const left = patienceMs - this.#spentMs;
    /** @param {string} why */
    const giveUp = (why) => {
      error.message += ` The client gave up: ${why}.`;
      throw error;
    };
    if (isFailure && this.failures >= attempts) giveUp(`${this.failures} failures without progress, and attempts is ${attempts}`);
    if (isFailure && isFirstContact && this.failures >= FIRST_ATTEMPTS) giveUp(`${FIRST_ATTEMPTS} attempts`);
    if ((askedMs ?? 0) > left) giveUp(`the server asked to wait ${askedMs} ms, but ${Math.max(0, Math.round(left))} ms are left of patienceMs`);
    if (left <= 0) giveUp(`no progress, and patienceMs is ${patienceMs}`);
    let wait = 0;
    if (isFailure && isFirstContact) wait = FIRST_WAIT_MS * 2 ** (this.failures - 1);
    else if (isFailure) {
      const grown = Math.min(maxDelayMs, Math.max(minDelayMs, this.delayMs) * 2 ** Math.min(this.failures - 1, 40));
      wait = grown * (1 + jitter * (2 * Math.random() - 1));
    }
    if (askedMs !== null) wait = Math.max(wait, Math.max(askedMs, MIN_REQUESTED_WAIT_MS) * (1 + jitter * Math.random()));
    if (wait >= left) wait = left; // the last attempt is made at the end of the patience
    this.#spentMs += wait;
    return wait;
  }
}
