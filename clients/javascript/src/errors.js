/** Errors of the client. Each message says what happened, where it happened, and what to do. The README draws their tree. */

/** @import { Problem, ErrorDetails } from "./types.js" */

/** Base class of all errors of this package. */
export class TidewireError extends Error {
  /** @param {string} what Description of the error, in one sentence. @param {ErrorDetails} [details] */
  constructor(what, details = {}) {
    super(what, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.url = details.url;
    this.jobId = details.jobId;
    this.lastEventId = details.lastEventId ?? null;
    /** Problem details that the server sent, or null. */
    this.problem = details.problem ?? null;
    /** Machine-readable code of the problem, or null. */
    this.code = this.problem?.code ?? null;
    /** JSON Pointer to the invalid member in the body of a request, or null. */
    this.pointer = details.pointer ?? this.problem?.pointer ?? null;
    /** Whether the same call may succeed later without changes. */
    this.retryable = this.problem?.retryable === true;
    /** HTTP status of the response, or of the problem. @type {number | null} */
    this.status = details.status ?? this.problem?.status ?? null;
    /** Wait that the server asks for, or null. */
    this.retryAfterMs = details.retryAfterMs ?? null;
    /** The partial value of a job or an item that has ended without success. @type {any} */
    this.value = details.value;
    /** Index of the input of an item that has ended without success, from 0. */
    this.index = details.index;
    /** `failed` or `cancelled`, if an item has ended without success. */
    this.ended = details.ended;
    /** Time for which the server sent nothing, after which the client gave up the connection. */
    this.silentMs = details.silentMs ?? 0;
    /** Whether a request that failed may have reached the server. */
    this.sent = details.sent ?? true;
    /** How a stream was interrupted that continues, or null. @type {ErrorDetails["interruption"]} */
    this.interruption = details.interruption ?? (this instanceof TransportError ? "cut" : null);
    const { code, detail, title, pointer } = this.problem ?? {};
    /** What happened, without the place and the advice. */
    this.what = `${what}${code ? `: ${detail ?? title} [${code}]` : ""}${pointer && !detail?.includes(pointer) ? ` at ${pointer}` : ""}`;
    const advice = details.advice ?? KINDS.find(([kind]) => kind === new.target)?.[1];
    /** What to do, or "". */
    this.advice = advice ?? "";
    const request = this.url && `${details.method ?? "GET"} ${this.url}${this.status ? ` → ${this.status}` : ""}`;
    const job = this.jobId && !this.url?.includes(this.jobId) && `job ${this.jobId}`;
    const place = [request, job, this.lastEventId && `last event ${this.lastEventId}`].filter(Boolean).join("; ");
    this.message = `${this.what}${place ? ` (${place})` : ""}.${advice ? ` ${advice}` : ""}`;
  }
}

export class RequestError extends TidewireError {
  /**
   * The error for a rejected request or a problem in a stream. `response` describes a response without problem details.
   * @param {number} status @param {Problem | null} problem @param {ErrorDetails} details @param {string} [response]
   */
  static from(status, problem, details, response = `${status}`) {
    const [byCode] = KINDS.find(([, , codes = ""]) => problem && codes.split(" ").includes(problem.code)) ?? [];
    const [byStatus] = KINDS.find(([, , , ...statuses]) => statuses.includes(status)) ?? [];
    const kind = /** @type {typeof RequestError} */ (problem && status === 404 && details.jobId ? JobNotFoundError : byCode ?? byStatus ?? RequestError);
    const what = problem ? "the server rejected the request" : `the request was refused with ${response}`;
    return new kind(what, { ...details, status, problem });
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
export class JobFailedError extends TidewireError {}
export class JobCancelledError extends TidewireError {}
export class ItemFailedError extends TidewireError {}
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
export class TransportError extends TidewireError {}
export class SilenceTimeoutError extends TransportError {}
export class TotalTimeoutError extends TidewireError {}

/** Advice; for rejected requests also codes of problems, and statuses of unknown codes. @type {[Function, string, string?, ...number[]][]} */
const KINDS = [
  [AuthenticationError, "Pass valid credentials: new Client(url, { token }).", "unauthorized", 401],
  [PermissionDeniedError, "Use credentials with this permission, or ask the operator of the server.", "forbidden", 403],
  [EndpointNotFoundError, "", "endpoint_not_found"],
  [JobNotFoundError, "Check the id, and use the server and the credentials with which the job was submitted. Several processes, as with `uvicorn --workers`, need a log in PostgreSQL.", "job_not_found"],
  [JobExpiredError, "Submit the input again.", "job_expired", 410],
  [InvalidInputError, "", "malformed_body body_too_large invalid_input input_too_long batch_too_large top_logprobs_too_large", 413, 422],
  [QueueFullError, "Submit again later, or allow more time: new Client(url, { retry: { patienceMs } }).", "queue_full"],
  [RateLimitError, "Wait, or lower the concurrency.", "rate_limited too_many_streams too_many_jobs", 429],
  [RequestError, "", "idempotency_key_reused"],
  [VoidTextError, "Read update.deleted before update.text, or use iterTextDeltas(); both report retracted text. Or start over with client.job(id)."],
  [NoTextError, "Read the value instead: update.value in a loop over the job, or await job.result()."],
  [SeveralItemsError, "Read it as a batch job: client.batchJob(id).results(), or a loop over client.batchJob(id)."],
  [ConcurrentReadError, "Create a separate job object for each reader: client.job(job.id)."],
  [ClientClosedError, "To continue, start another loop over the same job object."],
  [StateTooLargeError, "Raise maxStateBytes of the client. Data received before this error is valid."],
  [UnsupportedProtocolError, "Use a newer version of this client."],
  [NotATidewireServerError, "Check the URL: scheme, host, port, and the path under which the server is mounted."],
  [ProtocolError, "The server or a proxy is faulty. Data received before this error is valid."],
];
