/** Types that several modules use. */

/**
 * @typedef {object} ClientOptions
 * @property {string | (() => string | Promise<string>)} [token] Bearer token, or a function that returns one and is called
 *   again if the server rejects it. It is sent in the header Authorization, to the server's origin only.
 * @property {Record<string, string>} [headers] Extra headers for every request to the server's origin.
 * @property {RetryPolicy} [retry] Limits for retries and reconnects.
 * @property {number} [timeoutMs] Time for each `run`, `result`, `results` and `wait`. By default unlimited.
 * @property {number} [answerTimeoutMs] Time for the response to one attempt of a request, by default 30000.
 * @property {number} [maxStateBytes] Maximum size of a job's state as JSON, by default 16777216.
 * @property {"continue" | "cancel"} [onDisconnect] What the server does with a job whose stream has no reader for `graceMs`.
 * @property {number} [graceMs]
 * @property {number} [deadlineMs] Time after which the server ends an unfinished job as failed.
 * @property {Listener} [listener] Receives the events of every job, unless the job has its own listener.
 * @property {typeof fetch} [fetch] Function that sends requests, by default the global `fetch`.
 *
 * @typedef {object} RetryPolicy Limits for the retries of streams, reads, submits and cancels.
 * @property {number} [patienceMs] Time without progress after which the client gives up, by default 300000. It includes all
 *   waits, even those that a server asks for, but not the time during which a stream is live. It starts again when a ping confirms that no event is missing.
 * @property {number} [minDelayMs] Shortest first wait, by default 1. A stream's `retry` field sets the first wait.
 * @property {number} [maxDelayMs] Longest wait before the random factor, by default 30000. A server may ask for more.
 * @property {number} [attempts] Failures in a row after which the client gives up. By default unlimited.
 * @property {number} [jitter] Range of the random factor of each wait, by default 0.5: from 1 - jitter to 1 + jitter.
 *
 * @typedef {object} SubmitOptions
 * @property {string} [idempotencyKey] 1 to 255 visible ASCII characters. By default a random key.
 * @property {AbortSignal} [signal] Aborts the request. A job that was started continues.
 * @property {Listener} [listener] Receives the events of the job.
 *
 * @typedef {{checkpoint?: string | Checkpoint, listener?: Listener}} AttachOptions A checkpoint, or its JSON text.
 * @typedef {{signal?: AbortSignal}} LoopOptions
 * @typedef {{timeoutMs?: number, signal?: AbortSignal}} WaitOptions
 * @typedef {(event: JobEvent, job: import("./job.js").JobBase) => void} Listener
 *
 * What a listener receives, in addition to the updates of a loop. `connections` is the number of connections that were opened,
 * `lastEventId` the event after which the stream continues, `why` the reason of `lost` and `resync`, `retryInMs` the wait
 * before the next attempt, and `failures` the number of failures in a row without progress.
 * @typedef {{type: "queue", position: number, etaMs: number | null, waitsFor: string | null}
 *   | {type: "progress", current?: number | null, total?: number | null, unit?: string | null, phase?: string | null, item?: number | null}
 *   | {type: "status", status: string} | {type: "item", index: number, status: string, error: Problem | null}
 *   | {type: "note", level: string, text: string} | {type: "usage", usage: Record<string, any>}
 *   | {type: "end", status: string, error: Problem | null} | ConnectionEvent} JobEvent
 * @typedef {{type: "connection", state: "connecting" | "connected" | "lost" | "resync" | "polling" | "closed", connections: number,
 *   lastEventId: string | null, why?: string, retryInMs?: number, failures?: number}} ConnectionEvent
 *
 * A saved position in a job's updates, as JSON. The Python client reads and writes the same members.
 * @typedef {{protocol: string, job: string, url?: string | null, state?: any, columns?: string[], cursor?: string | null,
 *   undelivered?: {index: number, first_seq: number, deleted: number, text: string, visible: boolean}[]}} Checkpoint
 *
 * A generated token. `logprob` is null if log-probabilities were not requested, and -Infinity for the probability 0. `rank`
 * is 1 plus the number of more probable tokens, or null. `alternatives` are the most probable candidates, most probable
 * first, with texts that are decoded from their bytes alone, and empty if they were not requested.
 * @typedef {{text: string, id: number, logprob: number | null, rank: number | null, alternatives: Alternative[]}} Token
 * @typedef {{text: string, id: number, logprob: number}} Alternative
 *
 * Problem details that a server sent (RFC 9457), with all members that it sent.
 * @typedef {{code: string, title: string, status: number, detail?: string | null, pointer?: string | null,
 *   retryable?: boolean | null, retry_after_ms?: number | null, [name: string]: unknown}} Problem
 * @typedef {{method?: string, url?: string, status?: number, jobId?: string, lastEventId?: string | null, problem?: Problem | null, pointer?: string,
 *   advice?: string, value?: unknown, index?: number, ended?: string, sent?: boolean, silentMs?: number,
 *   retryAfterMs?: number | null, interruption?: "cut" | "goaway" | "wait" | "resync" | null, cause?: unknown}} ErrorDetails
 *
 * @typedef {"use" | "read_job" | "resync" | "refresh" | "wait" | "redirect" | "cut" | "fatal"} Action What follows from a response.
 * @typedef {{type: string, data: string, id: string | null, lastEventId: string}} ServerEvent `id` is null without an `id` field.
 * @typedef {{epoch: number, seq: number, text: string}} EventId
 * @typedef {{deleted: number, text: string}} TextChange Code points that were removed from the end, and text that was appended.
 * @typedef {{name: string, path: string, tokens: string[], argument: any, isCell?: boolean}} Op `isCell`: an array grows by one element.
 * @typedef {import("./document.js").Document} Document
 * @typedef {{document: Document, id: EventId, next: Position | null, reverse: Op[]}} Position `reverse` leads to the state before.
 *
 * A change of a job's state. `firstSeq` is the first event that it covers, `before` the document that a snapshot replaced,
 * `reason` the reason of a snapshot, and `ops` are those of a diff, or null.
 * @typedef {{type: "applied", position: Position, firstSeq: number, before: Document | null, isVisible: boolean,
 *   reason: string | null, ops: Op[] | null}} Applied
 *
 * A change of one item. `length` is that of the text after it, `stable` that of the part of the text that no event retracts.
 * `opsLength` is the length of merged ops as JSON.
 * @typedef {Omit<Applied, "type" | "before"> & TextChange & {index: number, length: number, stable: number, opsLength?: number}} Change
 *
 * @typedef {{id: string, url: string, eventsUrl?: string | null, initial?: any, checkpoint?: Checkpoint | null, listener?: Listener}} JobParts
 */

export {};
