/** The parts of messages that the client reads: members, types, numbers and words, as the schemas of the protocol allow. */

import { tokensOf } from "./document.js";
import { isInteger, isNumber, isObject } from "./strict_json.js";

/** @typedef {{epoch: number, seq: number, text: string}} EventId */
/** @typedef {(value: any) => boolean} Fits */

export const PROTOCOL = "tidewire/1";
/** Statuses of a job that has ended. */
export const ENDED = ["succeeded", "partially_failed", "failed", "cancelled"];
const EVENT_ID = /^([1-9][0-9]{0,9})-([1-9][0-9]{0,14})$/;

/** @param {string | null | undefined} text @returns {EventId | null} Null if the text violates the grammar of ids. */
export function parseId(text) {
  const found = typeof text === "string" ? EVENT_ID.exec(text) : null;
  return found && { text: found[0], epoch: Number(found[1]), seq: Number(found[2]) };
}

/** Below 0, 0 or above 0, in the order of ids. @param {EventId} one @param {EventId} other */
export function compareIds(one, other) {
  return one.epoch - other.epoch || one.seq - other.seq;
}

/** @type {Fits} */
const isText = (value) => typeof value === "string";
/** @type {Fits} */
const isFlag = (value) => typeof value === "boolean";
/** @type {Fits} */
const isPointer = (value) => {
  try {
    tokensOf(value);
    return true;
  } catch {
    return false;
  }
};
/** @type {(least: number, most?: number) => Fits} */
const integer = (least, most) => (value) => isInteger(value, least, most);
/** @type {(...words: string[]) => Fits} */
const word = (...words) => (value) => words.includes(value);
/** @type {(fits: Fits, least?: number) => Fits} */
const list = (fits, least = 0) => (value) => Array.isArray(value) && value.length >= least && value.every(fits);
/**
 * Members that must be present, and members that may be absent or null.
 * @type {(required: Record<string, Fits>, optional?: Record<string, Fits>) => Fits}
 */
const object = (required, optional = {}) => (value) =>
  isObject(value) &&
  Object.entries(required).every(([name, fits]) => Object.hasOwn(value, name) && fits(value[name])) &&
  Object.entries(optional).every(([name, fits]) => !Object.hasOwn(value, name) || value[name] === null || fits(value[name]));

const problem = object(
  { code: (value) => isText(value) && value !== "", title: isText, status: integer(400, 599) },
  { type: isText, detail: isText, instance: isText, pointer: isPointer, retryable: isFlag, retry_after_ms: integer(0) },
);
/** @type {Fits} */
const stable = (value) => isObject(value) && Object.entries(value).every(([at, n]) => isPointer(at) && isInteger(n, 0));
const itemMembers = object(
  { status: word("queued", "running", "succeeded", "failed", "cancelled") },
  { error: problem, stable, batch: object({ size: integer(1), row: integer(0), wait_ms: integer(0) }) },
);
/** @type {Fits} */
const item = (value) => itemMembers(value) && (value.status === "failed") === ((value.error ?? null) !== null);
const state = object(
  { status: word("queued", "running", ...ENDED), items: list(item, 1) },
  { usage: isObject, notes: list(object({ level: isText, text: isText })), error: problem },
);
/** @type {(least: number, names: string) => Record<string, Fits>} */
const least = (one, names) => Object.fromEntries(names.split(" ").map((name) => [name, integer(one)]));
const LIMITS_FROM_1 =
  "max_body_bytes max_inputs max_jobs_per_principal max_streams_per_principal max_log_bytes max_retained_jobs max_retained_bytes max_tombstones";
const limits = object(
  {},
  {
    ...least(1, LIMITS_FROM_1),
    ...least(1024, "max_state_bytes max_event_bytes"),
    max_event_ops: integer(64, 10_000),
    ...least(0, "log_ttl_s state_ttl_s tombstone_ttl_s min_grace_ms"),
    max_depth: (value) => value === 64,
  },
);
/** @type {Fits} */
const eventId = (value) => parseId(value) !== null;
const doneMembers = object(
  { status: word(...ENDED), digest: isText },
  { usage: isObject, error: problem, check: Array.isArray, expires_at: isText },
);
/** @type {Fits} */
const done = (value) => doneMembers(value) && (value.status !== "failed" || isObject(value.error));

/** Whether a value fits the schema of each message, item or body. @satisfies {Record<string, Fits>} */
export const FITS = {
  state,
  item,
  problem,
  done,
  snapshot: object({ state, columns: list(isPointer), reason: word("start", "compacted", "restart", "rewound") }),
  hello: object({ protocol: isText, job: isText, events: isText, head: eventId, heartbeat_ms: integer(1) }),
  queue: object({ position: integer(1) }, { eta_ms: integer(0), waits_for: isText }),
  progress: object({}, { current: isNumber, total: isNumber, unit: isText, phase: isText, item: integer(0) }),
  ping: object({ head: eventId }),
  goaway: object({ reason: isText, retry_ms: integer(0) }),
  job: object(
    {
      id: isText,
      endpoint: isText,
      status: word("queued", "running", ...ENDED),
      batch: isFlag,
      state,
      columns: list(isPointer),
      cursor: eventId,
      attempt: integer(1),
      created_at: isText,
      links: object({ self: isText, events: isText, cancel: isText }),
    },
    { done, started_at: isText, ended_at: isText, expires_at: isText },
  ),
  jobs: object({ jobs: list(object({ id: isText, endpoint: isText, status: isText, created_at: isText })) }, { next: isText }),
  discovery: object(
    {
      protocol: word(PROTOCOL),
      server: isText,
      durability: word("process", "host", "replicated"),
      capabilities: list(isText),
      limits,
      heartbeat_ms: integer(1),
      endpoints: list(object({ name: isText, href: isText }, { summary: isText, defaults: isFlag })),
    },
    { min_interval_ms: integer(0) },
  ),
  endpoint: object(
    {
      name: isText,
      input_schema: isObject,
      value_schema: isObject,
      capabilities: object(
        {},
        {
          streams: isFlag,
          cancel: isFlag,
          rollback: isFlag,
          batch: object({ max_items: integer(1) }),
          logprobs: object({ max_top: integer(0) }),
        },
      ),
    },
    { summary: isText, description: isText, examples: Array.isArray, links: isObject },
  ),
  vocabulary: object({ hash: isText, tokens: list(isText) }, { special: list(integer(0)) }),
};
