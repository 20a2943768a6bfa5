/**
 * Errors of the client. Each message says what happened, where it happened, and what to do.
 *
 *     TidewireError
 *     ├── RequestError                    the server rejected a request
 *     │   ├── AuthenticationError         401: credentials are missing or invalid
 *     │   ├── PermissionDeniedError       403: the credentials do not permit the request
 *     │   ├── EndpointNotFoundError       404: the server has no such endpoint
 *     │   ├── JobNotFoundError            404: the server has no such job
 *     │   ├── JobExpiredError             410: the job was purged or has expired
 *     │   ├── InvalidInputError           422, 413: the input does not match the schema; `pointer` names the member
 *     │   ├── QueueFullError              429: the endpoint's queue is full
 *     │   └── RateLimitError              429: too many requests, jobs or streams
 *     ├── JobFailedError                  the job failed; `problem` contains the reason, `value` the partial value
 *     ├── JobCancelledError               the job was cancelled; `value` is the partial value
 *     ├── ItemFailedError                 one input of a batch failed or was cancelled; `index` is its position
 *     ├── VoidTextError                   the server retracted text that a loop may already have used
 *     ├── NoTextError                     `iterText` was called for a job whose value contains no text
 *     ├── SeveralItemsError               a job with several items was read as a job with one item
 *     ├── CheckpointError                 a checkpoint is malformed, or belongs to another job or server
 *     ├── ConcurrentReadError             two loops read one job object at the same time
 *     ├── ClientClosedError               the job object or its client was closed
 *     ├── StateTooLargeError              a job's state exceeds the client's `maxStateBytes`
 *     ├── ProtocolError                   the server violates the protocol
 *     │   ├── UnsupportedProtocolError    the server uses a version, an event or an op that this client does not support
 *     │   └── NotATidewireServerError     the server at this URL is not a Tidewire server
 *     ├── TransportError                  the network or a proxy failed; `sent`: whether the request may have arrived
 *     │   └── SilenceTimeoutError         the server sent no response, or no bytes on a stream, in time
 *     └── TotalTimeoutError               the `timeoutMs` that the caller passed has expired
 */

/**
 * Problem details that a server sent (RFC 9457), with all members that it sent.
 * @typedef {{code: string, title: string, status: number, detail?: string | null, pointer?: string | null,
 *   retryable?: boolean | null, retry_after_ms?: number | null, [name: string]: unknown}} Problem
 */

/**
 * Details of an error, as far as they are known.
 * @typedef {{method?: string, url?: string, status?: number, jobId?: string, lastEventId?: string | null,
 *   problem?: Problem | null, advice?: string, value?: unknown, index?: number, sent?: boolean, cause?: unknown}} ErrorDetails
 */

/** Base class of all errors of this package. */
export class TidewireError extends Error {
  /**
   * @param {string} what Description of the error, in one sentence.
   * @param {ErrorDetails} [details]
   */
  constructor(what, details = {}) {
    super(what, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.what = what;
    this.method = details.method;
    this.url = details.url;
    this.jobId = details.jobId;
    this.lastEventId = details.lastEventId ?? null;
    /** Problem details that the server sent, or null. */
    this.problem = details.problem ?? null;
    /** HTTP status of the response, or of the problem. @type {number | null} */
    this.status = details.status ?? this.problem?.status ?? null;
    this.advice = details.advice ?? defaultAdvice(new.target);
    this.message = this.#text();
  }

  /** Machine-readable code of the problem, or null. */
  get code() {
    return this.problem?.code ?? null;
  }

  /** Whether the same call may succeed later without changes. */
  get retryable() {
    return this.problem?.retryable === true;
  }

  #text() {
    const places = [];
    if (this.url) places.push(`${this.method ?? "GET"} ${this.url}${this.status ? ` → ${this.status}` : ""}`);
    if (this.jobId && !this.url?.includes(this.jobId)) places.push(`job ${this.jobId}`);
    if (this.lastEventId) places.push(`last event ${this.lastEventId}`);
    const what = this.what.replace(/\.$/, "");
    return `${what}${places.length ? ` (${places.join("; ")})` : ""}.${this.advice ? ` ${this.advice}` : ""}`;
  }
}

export class RequestError extends TidewireError {
  /** JSON Pointer to the invalid member in the body of the request, or null. */
  get pointer() {
    return this.problem?.pointer ?? null;
  }
}
export class AuthenticationError extends RequestError {}
export class PermissionDeniedError extends RequestError {}
export class EndpointNotFoundError extends RequestError {}
export class JobNotFoundError extends RequestError {}
export class JobExpiredError extends RequestError {}
export class InvalidInputError extends RequestError {}
export class QueueFullError extends RequestError {}
export class RateLimitError extends RequestError {}

/** Error of a job or an item that has ended without success. */
class EndedError extends TidewireError {
  /**
   * @param {string} what
   * @param {ErrorDetails} details
   */
  constructor(what, details) {
    super(what, details);
    /** The partial value. @type {any} */
    this.value = details.value ?? null;
  }
}
export class JobFailedError extends EndedError {}
export class JobCancelledError extends EndedError {}
export class ItemFailedError extends EndedError {
  /**
   * @param {string} what
   * @param {ErrorDetails & {index: number, ended: string}} details
   */
  constructor(what, details) {
    super(what, details);
    /** Index of the item's input, from 0. */
    this.index = details.index;
    /** `failed` or `cancelled`. */
    this.ended = details.ended;
  }
}

export class VoidTextError extends TidewireError {}
export class NoTextError extends TidewireError {}
export class SeveralItemsError extends TidewireError {}
export class CheckpointError extends TidewireError {}
export class ConcurrentReadError extends TidewireError {}
export class ClientClosedError extends TidewireError {}
export class StateTooLargeError extends TidewireError {}
export class ProtocolError extends TidewireError {}
export class UnsupportedProtocolError extends ProtocolError {}
export class NotATidewireServerError extends ProtocolError {}
export class TransportError extends TidewireError {
  /**
   * @param {string} what
   * @param {ErrorDetails} [details]
   */
  constructor(what, details = {}) {
    super(what, details);
    /** Whether the request may have reached the server. */
    this.sent = details.sent ?? true;
  }
}
export class SilenceTimeoutError extends TransportError {}
export class TotalTimeoutError extends TidewireError {}

/** @type {[Function, string][]} */
const ADVICE = [
  [AuthenticationError, "Pass valid credentials: new Client(url, { token })."],
  [PermissionDeniedError, "Use credentials with this permission, or ask the operator of the server."],
  [JobNotFoundError, "Check the id, and use the server and the credentials with which the job was submitted."],
  [JobExpiredError, "Submit the input again."],
  [QueueFullError, "Submit again later, or allow more time: new Client(url, { retry: { patienceMs } })."],
  [RateLimitError, "Wait, or lower the concurrency."],
  [VoidTextError, "Start over with client.job(id).iterText(), or use iterTextDeltas(), which reports retracted text."],
  [NoTextError, "Read the value instead: update.value in a loop over the job, or await job.result()."],
  [SeveralItemsError, "Read it as a batch job: client.batchJob(id).results(), or a loop over client.batchJob(id)."],
  [ConcurrentReadError, "Create a separate job object for each reader: client.job(job.id)."],
  [ClientClosedError, "To resume the job, call client.job({ checkpoint: job.checkpoint() })."],
  [StateTooLargeError, "Raise maxStateBytes of the client. Data received before this error is valid."],
  [UnsupportedProtocolError, "Use a newer version of this client."],
  [NotATidewireServerError, "Check the URL: scheme, host, port, and the path under which the server is mounted."],
  [ProtocolError, "The server or a proxy is faulty. Data received before this error is valid."],
];

/** @param {Function} kind */
function defaultAdvice(kind) {
  return ADVICE.find(([each]) => each === kind)?.[1] ?? "";
}

/** @type {Record<string, typeof RequestError>} */
const BY_CODE = {
  unauthorized: AuthenticationError,
  forbidden: PermissionDeniedError,
  endpoint_not_found: EndpointNotFoundError,
  job_not_found: JobNotFoundError,
  job_expired: JobExpiredError,
  malformed_body: InvalidInputError,
  body_too_large: InvalidInputError,
  invalid_input: InvalidInputError,
  input_too_long: InvalidInputError,
  batch_too_large: InvalidInputError,
  top_logprobs_too_large: InvalidInputError,
  queue_full: QueueFullError,
  rate_limited: RateLimitError,
  too_many_streams: RateLimitError,
  too_many_jobs: RateLimitError,
  idempotency_key_reused: RequestError,
};

/** @type {Record<number, typeof RequestError>} */
const BY_STATUS = {
  401: AuthenticationError,
  403: PermissionDeniedError,
  410: JobExpiredError,
  413: InvalidInputError,
  422: InvalidInputError,
  429: RateLimitError,
};

/**
 * Create the error for a rejected request.
 * @param {number} status HTTP status, or the status of a problem in the stream.
 * @param {Problem | null} problem
 * @param {ErrorDetails} details
 * @returns {RequestError}
 */
export function refusal(status, problem, details = {}) {
  const known = problem && Object.hasOwn(BY_CODE, problem.code) ? BY_CODE[problem.code] : BY_STATUS[status];
  const kind = status === 404 && details.jobId ? JobNotFoundError : known ?? RequestError;
  let what = problem ? `${problem.detail ?? problem.title} [${problem.code}]` : `the server responded with the status ${status}`;
  if (problem?.pointer && !what.includes(problem.pointer)) what += ` at ${JSON.stringify(problem.pointer)} of the body`;
  return new kind(what, { ...details, status, problem });
}
