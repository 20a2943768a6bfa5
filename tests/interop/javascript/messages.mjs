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
    { id: isText, status: word("queued", "running", ...ENDS), batch: isFlag, state, columns: list(isPointer), cursor: eventId },
    { done, links: isObject },
  ),
};
