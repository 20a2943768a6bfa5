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

export * from "./types.js";
