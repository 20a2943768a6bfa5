/** Client for Tidewire, for browsers and Node. */

export { Client } from "./client.js";
export { BatchJob, Job } from "./job.js";
export { Update } from "./updates.js";
export * from "./errors.js";
export * from "./types.js";
