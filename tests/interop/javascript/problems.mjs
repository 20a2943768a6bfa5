// The registry of section 9.2: code → status, retryable, wait in milliseconds, title.

const REGISTRY = {
  malformed_body: [400, false, null, "The body is not JSON that this protocol takes"],
  bad_cursor: [400, false, null, "The cursor is not an event id"],
  bad_parameter: [400, false, null, "A parameter of the URL or a header is wrong"],
  not_found: [404, false, null, "There is nothing at this URL"],
  job_not_found: [404, false, null, "There is no such job"],
  endpoint_not_found: [404, false, null, "There is no such endpoint"],
  method_not_allowed: [405, false, null, "This URL does not take this method"],
  not_acceptable: [406, false, null, "None of the accepted media types can be served"],
  job_expired: [410, false, null, "The job was purged or has expired"],
  body_too_large: [413, false, null, "The body is larger than this server takes"],
  unsupported_media_type: [415, false, null, "The body has a media type or coding that is not taken"],
  invalid_input: [422, false, null, "The input does not fit the endpoint's schema"],
  batch_too_large: [422, false, null, "More inputs in one job than this server takes"],
  idempotency_key_reused: [422, false, null, "This key came with another body before"],
  too_many_streams: [429, true, 5000, "Too many open streams"],
  too_many_jobs: [429, true, 5000, "Too many unfinished jobs"],
  internal: [500, false, null, "The server failed"],
  unavailable: [503, true, 1000, "The server takes no requests right now"],
  deadline_exceeded: [504, false, null, "The job did not end before its deadline"],
};

/** A problem details object. */
export function problem(code, members = {}) {
  const [status, retryable, wait, title] = REGISTRY[code];
  const waiting = wait === null ? {} : { retry_after_ms: wait };
  return { code, title, status, retryable, ...waiting, ...members };
}

/** What a request is refused with. */
export class Problem extends Error {
  constructor(code, members, headers = {}) {
    super(code);
    this.body = problem(code, members);
    this.headers = headers;
    if (this.body.retry_after_ms) headers["retry-after"] = String(Math.ceil(this.body.retry_after_ms / 1000));
  }
}
