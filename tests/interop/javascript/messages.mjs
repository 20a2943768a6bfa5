// What fits a schema (TW-FRM-075, TW-FRM-076): the members that a client reads, their types, numbers and words.

import { tokensOf } from "./fold.mjs";
import { isInteger, isObject } from "./strict_json.mjs";

export const ENDS = ["succeeded", "partially_failed", "failed", "cancelled"];
const EVENT_ID = /^([1-9][0-9]{0,9})-([1-9][0-9]{0,14})$/;

/** An event id as two numbers; null where it breaks the grammar. */
export function parseId(text) {
  const found = EVENT_ID.exec(text);
  return found && { text, epoch: Number(found[1]), seq: Number(found[2]) };
}

/** Below 0, 0 or above 0, as ids are ordered: by epoch, then by seq. */
export function compareIds(one, other) {
  return one.epoch - other.epoch || one.seq - other.seq;
}

const isText = (value) => typeof value === "string";
const isFlag = (value) => typeof value === "boolean";
const isNumber = (value) => typeof value === "number" || value instanceof Number;
const isPointer = (value) => {
  try {
    tokensOf(value);
    return true;
  } catch {
    return false;
  }
};
const integer = (least, most) => (value) => isInteger(value, least, most);
const word = (...words) => (value) => words.includes(value);
const list = (fits, least = 0) => (value) => Array.isArray(value) && value.length >= least && value.every(fits);
/** Members that have to be there, and others that may be left out, which null is as well. */
const object = (required, optional = {}) => (value) =>
  isObject(value) &&
  Object.entries(required).every(([name, fits]) => name in value && fits(value[name])) &&
  Object.entries(optional).every(([name, fits]) => value[name] === undefined || value[name] === null || fits(value[name]));

const problem = object(
  { code: (value) => isText(value) && value !== "", title: isText, status: integer(400, 599) },
  { type: isText, detail: isText, instance: isText, pointer: isPointer, retryable: isFlag, retry_after_ms: integer(0) },
);
const stable = (value) => isObject(value) && Object.entries(value).every(([at, n]) => isPointer(at) && isInteger(n, 0));
const item = (value) =>
  object(
    { status: word("queued", "running", "succeeded", "failed", "cancelled") },
    { error: problem, stable, batch: object({ size: integer(1), row: integer(0), wait_ms: integer(0) }) },
  )(value) && (value.status === "failed") === ((value.error ?? null) !== null);
const state = object(
  { status: word("queued", "running", ...ENDS), items: list(item, 1) },
  { usage: isObject, notes: list(object({ level: isText, text: isText })), error: problem },
);
const least = (one, names) => Object.fromEntries(names.split(" ").map((name) => [name, integer(one)]));
const LIMITS_FROM_1 = "max_body_bytes max_inputs max_jobs_per_principal max_streams_per_principal max_log_bytes max_retained_jobs max_retained_bytes max_tombstones";
/** No limit is used by this client: one that is missing does no harm (TW-CLI-055). */
const limits = object({}, {
  ...least(1, LIMITS_FROM_1),
  ...least(1024, "max_state_bytes max_event_bytes"),
  max_event_ops: integer(64, 10_000),
  ...least(0, "log_ttl_s state_ttl_s tombstone_ttl_s min_grace_ms"),
  max_depth: (value) => value === 64,
});
const eventId = (value) => isText(value) && parseId(value) !== null;
const done = (value) =>
  object({ status: word(...ENDS), digest: isText }, { usage: isObject, error: problem, check: Array.isArray, expires_at: isText })(
    value,
  ) && (value.status !== "failed" || isObject(value.error));

export const FITS = {
  state,
  problem,
  done,
  snapshot: object({ state, columns: list(isPointer), reason: word("start", "compacted", "restart", "rewound") }),
  hello: object({ protocol: isText, job: isText, events: isText, head: eventId, heartbeat_ms: integer(1) }),
  queue: object({ position: integer(1) }, { eta_ms: integer(0) }),
  progress: object({}, { current: isNumber, total: isNumber, unit: isText, phase: isText, item: integer(0) }),
  ping: object({ head: eventId }),
  goaway: object({ reason: isText, retry_ms: integer(0) }),
  job: object(
    {
      id: isText,
      endpoint: isText,
      status: word("queued", "running", ...ENDS),
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
  discovery: object(
    {
      protocol: word("tidewire/1"),
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
};
