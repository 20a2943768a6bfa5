/** Types that several modules use. */

/**
 * @typedef {object} ClientOptions
 * @property {string | (() => string | Promise<string>)} [token] Bearer token, or a function that returns one. The function is
 *   called again if the server rejects the token. The token is sent in the header Authorization, to the server's origin only.
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
 */
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
/**
 * @typedef {object} SubmitOptions
 * @property {string} [idempotencyKey] 1 to 255 visible ASCII characters. By default a random key.
 * @property {AbortSignal} [signal] Aborts the request. A job that was started continues.
 * @property {Listener} [listener]
 */
/** A checkpoint may also be passed as its JSON text. @typedef {{checkpoint?: string | Checkpoint, listener?: Listener}} AttachOptions */
/** @typedef {{signal?: AbortSignal}} LoopOptions */
/** @typedef {{timeoutMs?: number, signal?: AbortSignal}} WaitOptions */
/**
 * What a listener receives, in addition to the updates of a loop:
 * `queue` and `progress` as the server reports them, `status` of the job, `item` when the status of an item changes,
 * `note` for each note of the function, `usage` when it changes, `connection` for the state of the connection, and `end`.
 * @typedef {{type: "queue", position: number, etaMs: number | null, waitsFor: string | null}
 *   | {type: "progress", current?: number | null, total?: number | null, unit?: string | null, phase?: string | null, item?: number | null}
 *   | {type: "status", status: string} | {type: "item", index: number, status: string, error: Problem | null}
 *   | {type: "note", level: string, text: string} | {type: "usage", usage: Record<string, any>}
 *   | {type: "end", status: string, error: Problem | null} | ConnectionEvent} JobEvent
 */
/** @typedef {(event: JobEvent, job: import("./job.js").JobBase) => void} Listener */
/**
 * State of the connection: `connecting`, `connected`, `lost` with the wait before the next attempt, `resync` likewise if an
 * event did not match the state, `polling` if the stream delivers nothing and the job is read instead, or `closed`.
 * @typedef {object} ConnectionEvent
 * @property {"connection"} type
 * @property {"connecting" | "connected" | "lost" | "resync" | "polling" | "closed"} state
 * @property {number} connections Number of connections that were opened, this one included.
 * @property {string | null} lastEventId Event after which the stream continues, or null if it begins with a snapshot.
 * @property {string} [why] Reason of `lost` and `resync`.
 * @property {number} [retryInMs] Wait before the next attempt.
 * @property {number} [failures] Failures in a row without progress.
 */
/**
 * A saved position in a job's updates, as JSON. The Python client reads and writes the same members.
 * @typedef {object} Checkpoint
 * @property {string} protocol
 * @property {string} job
 * @property {string | null} [url]
 * @property {any} [state]
 * @property {string[]} [columns]
 * @property {string | null} [cursor]
 * @property {{index: number, first_seq: number, deleted: number, text: string, visible: boolean}[]} [undelivered]
 */
/**
 * One of the most probable candidates for a generated token. The text is for display, decoded from its bytes alone.
 * @typedef {{text: string, id: number, logprob: number}} Alternative
 */
/**
 * A generated token. `logprob` is null if log-probabilities were not requested, and -Infinity for the probability 0. `rank`
 * is 1 plus the number of more probable tokens, or null. `alternatives` are the most probable candidates, most probable
 * first, and empty if they were not requested.
 * @typedef {{text: string, id: number, logprob: number | null, rank: number | null, alternatives: Alternative[]}} Token
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

/** @typedef {{epoch: number, seq: number, text: string}} EventId */
/** An event of a stream. `id` is null if its block has no `id` field. @typedef {{type: string, data: string, id: string | null, lastEventId: string}} ServerEvent */
/** @typedef {{type: "queue" | "progress", data: any}} Notice */
/** Code points that were removed from the end of a text, and the text that was then appended. @typedef {{deleted: number, text: string}} TextChange */
/** @typedef {{name: string, path: string, tokens: string[], argument: any}} Op */
/** A state that existed. `reverse` leads from it to the one before. @typedef {{next: Version | null, reverse: Op[]}} Version */
/** @typedef {{document: import("./document.js").Document, version: Version, id: EventId}} Position */
/**
 * A change of a job's state.
 * @typedef {object} Applied
 * @property {"applied"} type
 * @property {Position} position
 * @property {number} firstSeq First event that this change covers.
 * @property {import("./document.js").Document | null} before The replaced document, or null if a diff was applied.
 * @property {Map<string, TextChange>} texts Changes of texts, by path.
 * @property {boolean} isVisible Whether the value of an item changed.
 * @property {string | null} reason Reason of the snapshot, or null.
 * @property {Op[] | null} ops The ops of the diff, which must not be changed, or null for a snapshot.
 */
/**
 * A change of one item. `diffs` are the ops of the diffs that it covers, or null if it covers a snapshot, and `reason` is the
 * reason of the last snapshot.
 * @typedef {{position: Position, firstSeq: number, index: number, deleted: number, text: string, isVisible: boolean,
 *   diffs: Op[][] | null, reason: string | null}} Change
 */
/** @typedef {{id: string, url: string, eventsUrl?: string | null, initial?: any, checkpoint?: Checkpoint | null, listener?: Listener}} JobParts */

export {};
