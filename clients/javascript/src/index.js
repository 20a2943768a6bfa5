/** Client for Tidewire, for browsers and Node. */

export { Client } from "./client.js";
export { BatchJob, Job } from "./job.js";
export { Update } from "./updates.js";
export { Vocabulary, tokenRows } from "./tokens.js";
export {
  AuthenticationError, CheckpointError, ClientClosedError, ConcurrentReadError, EndpointNotFoundError, InvalidInputError,
  ItemFailedError, JobCancelledError, JobExpiredError, JobFailedError, JobNotFoundError, NoTextError,
  NotATidewireServerError, PermissionDeniedError, ProtocolError, QueueFullError, RateLimitError, RequestError,
  SeveralItemsError, SilenceTimeoutError, StateTooLargeError, TidewireError, TotalTimeoutError, TransportError,
  UnsupportedProtocolError, VoidTextError,
} from "./errors.js";

/** @typedef {import("./client.js").ClientOptions} ClientOptions */
/** @typedef {import("./client.js").SubmitOptions} SubmitOptions */
/** @typedef {import("./job.js").Checkpoint} Checkpoint */
/** @typedef {import("./job.js").JobEvent} JobEvent */
/** @typedef {import("./retry_policy.js").RetryPolicy} RetryPolicy */
/** @typedef {import("./tokens.js").Token} Token */
/** @typedef {import("./tokens.js").Alternative} Alternative */
/** @typedef {import("./errors.js").Problem} Problem */
