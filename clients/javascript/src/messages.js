/** The parts of messages that the client reads: members, types, numbers and words, as the schemas of the protocol allow. */

import { POINTER } from "./document.js";
import { copy, isInteger, isObject } from "./strict_json.js";

/** @import { EventId } from "./types.js" */
/** @typedef {(value: any) => boolean} Fits */

export const PROTOCOL = "tidewire/1";
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

const ITEM_STATUS = "queued|running|succeeded|failed|cancelled";
const STATUS = `queued|running|${ENDED.join("|")}`;

/**
 * Members of each message and body, in the form `name:type`. A member with `?` may be absent or null. A type is the name of
 * a basic type or of another row, a range of integers, words that are separated by `|`, or a list of elements, with `[]`.
 */
const MEMBERS = {
  problem: "code:name title:text status:400..599 type?:text detail?:text instance?:text pointer?:pointer retryable?:flag retry_after_ms?:0..",
  itemBatch: "size:1.. row:0.. wait_ms:0..",
  item: `status:${ITEM_STATUS} error?:problem stable?:stable batch?:itemBatch`,
  note: "level:text text:text",
  state: `status:${STATUS} items:item[] usage?:object notes?:note[] error?:problem`,
  done: `status:${ENDED.join("|")} digest:text usage?:object error?:problem check?:array expires_at?:text`,
  snapshot: "state:state columns:pointer[] reason:start|compacted|restart|rewound",
  hello: "protocol:text job:text events:text head:id heartbeat_ms:1..",
  queue: "position:1.. eta_ms?:0.. waits_for?:text",
  progress: "current?:number total?:number unit?:text phase?:text item?:0..",
  ping: "head:id",
  goaway: "reason:text retry_ms:0..",
  links: "self:text events:text cancel:text",
  job:
    `id:name endpoint:text status:${STATUS} batch:flag state:state columns:pointer[] cursor:id attempt:1.. created_at:text ` +
    "links:links done?:done started_at?:text ended_at?:text expires_at?:text",
  listedJob: "id:name endpoint:text status:text created_at:text",
  jobs: "jobs:listedJob[] next?:text",
  limits:
    "max_body_bytes?:1.. max_inputs?:1.. max_jobs_per_principal?:1.. max_streams_per_principal?:1.. max_log_bytes?:1.. " +
    "max_retained_jobs?:1.. max_retained_bytes?:1.. max_tombstones?:1.. max_state_bytes?:1024.. max_event_bytes?:1024.. " +
    "max_event_ops?:64..10000 max_depth?:64..64 log_ttl_s?:0.. state_ttl_s?:0.. tombstone_ttl_s?:0.. min_grace_ms?:0..",
  listedEndpoint: "name:text href:text summary?:text defaults?:flag",
  discovery:
    "protocol:text server:text durability:process|host|replicated capabilities:text[] limits:limits heartbeat_ms:1.. " +
    "endpoints:listedEndpoint[] min_interval_ms?:0..",
  batch: "max_items:1..",
  logprobs: "max_top:0..",
  capabilities: "streams?:flag cancel?:flag rollback?:flag batch?:batch logprobs?:logprobs",
  endpoint:
    "name:text input_schema:object value_schema:object capabilities:capabilities summary?:text description?:text examples?:array " +
    "links?:object",
  undelivered: "index:0.. first_seq:1.. deleted:0.. text:text visible:flag",
  checkpoint: "protocol?:text job:name url?:text state?:state columns?:pointer[] cursor?:id undelivered?:undelivered[]",
  vocabulary: "hash:text tokens:text[] special?:0..[]",
};

/** Whether a value fits a basic type, or the schema of a message or body. @type {Record<string, Fits>} */
export const FITS = {
  text: (value) => typeof value === "string",
  // In the path of a URL, `.` and `..` lead to another path, also percent-encoded, and the request would go there.
  name: (value) => typeof value === "string" && !["", ".", ".."].includes(value),
  flag: (value) => typeof value === "boolean",
  number: (value) => typeof copy(value) === "number",
  object: isObject,
  array: Array.isArray,
  id: (value) => parseId(value) !== null,
  pointer: (value) => typeof value === "string" && POINTER.test(value),
  stable: (value) => isObject(value) && Object.entries(value).every(([path, n]) => FITS.pointer(path) && isInteger(n, 0)),
};

/** Rules beyond the members of a message. @type {Record<string, Fits>} */
const RULES = {
  item: (value) => (value.status === "failed") === ((value.error ?? null) !== null),
  state: (value) => value.items.length > 0,
  done: (value) => value.status !== "failed" || isObject(value.error),
  discovery: (value) => value.protocol === PROTOCOL,
  checkpoint: ({ protocol = PROTOCOL, state = null, cursor = null, undelivered }) =>
    protocol === PROTOCOL &&
    (state === null) === (cursor === null) &&
    (undelivered ?? []).every((/** @type {{index: number}} */ { index }) => index < (state?.items.length ?? 0)),
};

for (const [name, members] of Object.entries(MEMBERS)) {
  const all = [...members.matchAll(/(\w+)(\??):(\S+)/g)].map(([, key, mark, type]) => ({ key, isOptional: mark === "?", fits: fitsOf(type) }));
  FITS[name] = (value) =>
    isObject(value) &&
    all.every(({ key, isOptional, fits }) => (isOptional && (value[key] ?? null) === null) || (Object.hasOwn(value, key) && fits(value[key]))) &&
    (RULES[name]?.(value) ?? true);
}

/** @param {string} type @returns {Fits} */
function fitsOf(type) {
  if (type.endsWith("[]")) return (value) => Array.isArray(value) && value.every(fitsOf(type.slice(0, -2)));
  const words = type.split("|");
  if (words.length > 1) return (value) => words.includes(value);
  const [, least, most] = /^(\d+)\.\.(\d*)$/.exec(type) ?? [];
  if (least !== undefined) return (value) => isInteger(value, Number(least), most ? Number(most) : undefined);
  return (value) => FITS[type](value);
}
