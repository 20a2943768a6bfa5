// Chapter 5: what a diff makes of a state, and what proves it.
//
// A state is never changed: an op copies the containers on the way to its target and shares all others. So a diff that
// is refused half way has done nothing, and what was handed over stays as it was.

import { createHash } from "node:crypto";
import { canonical, isInteger, isObject } from "./strict_json.mjs";

/** A diff that may not be applied; `kind` is malformed, unknown, check or unstable. */
export class Refused extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

const malformed = (message) => {
  throw new Refused("malformed", message);
};

// ---- places ----------------------------------------------------------------------------------------------------

const STRAY_TILDE = /~(?![01])/;
const INDEX = /^(?:0|[1-9][0-9]{0,14})$/;

/** The reference tokens of a JSON Pointer. */
export function tokensOf(path) {
  if (typeof path !== "string" || (path !== "" && path[0] !== "/") || STRAY_TILDE.test(path)) {
    malformed(`no pointer: ${JSON.stringify(path)}`);
  }
  return path.split("/").slice(1).map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** What `path` names, undefined where there is nothing. */
export function valueAt(root, path) {
  let value = root;
  for (const token of tokensOf(path)) {
    if (Array.isArray(value)) value = INDEX.test(token) ? value[Number(token)] : undefined;
    else value = isObject(value) && token in value ? value[token] : undefined;
    if (value === undefined) return undefined;
  }
  return value;
}

function index(token, most) {
  if (!INDEX.test(token) || Number(token) > most) malformed(`no element ${token}`);
  return Number(token);
}

function replaced(container, token, value) {
  const copy = Array.isArray(container) ? container.slice() : Object.assign(Object.create(null), container);
  copy[token] = value;
  return copy;
}

/** The root with `change(target)` in place of what `tokens` name. */
function changed(node, tokens, change, at = 0) {
  if (at === tokens.length) return change(node);
  const token = Array.isArray(node) ? index(tokens[at], node.length - 1) : tokens[at];
  if (!Array.isArray(node) && !(isObject(node) && token in node)) malformed(`nothing at ${tokens[at]}`);
  return replaced(node, token, changed(node[token], tokens, change, at + 1));
}

// ---- texts -----------------------------------------------------------------------------------------------------

/** The length of a text in code points. */
export function lengthOf(text) {
  let length = text.length;
  for (let at = 0; at < text.length; at += 1) if (isLowHalf(text, at)) length -= 1;
  return length;
}

/** Where the first `n` code points of a text end, in UTF-16 units; undefined where it has fewer. */
function unitsOf(text, n) {
  let at = 0;
  for (let left = n; left > 0; left -= 1) {
    if (at >= text.length) return undefined;
    at += isLowHalf(text, at + 1) ? 2 : 1;
  }
  return at;
}

const isLowHalf = (text, at) => (text.charCodeAt(at) & 0xfc00) === 0xdc00;

function withoutLast(text, n) {
  let end = text.length;
  for (let left = n; left > 0; left -= 1) {
    if (end === 0) malformed("a text is shorter than what is cut from it");
    end -= isLowHalf(text, end - 1) ? 2 : 1;
  }
  return text.slice(0, end);
}

/** What became of a text: how many code points at its end are void, and what follows then. */
export function textChange(before, after) {
  let same = after.startsWith(before) ? before.length : 0;
  if (same < before.length) {
    while (same < after.length && before[same] === after[same]) same += 1;
    if (isLowHalf(before, same) || isLowHalf(after, same)) same -= 1; // the pair differs in its second half
  }
  return { voided: lengthOf(before.slice(same)), text: after.slice(same) };
}

/** Each text under `path` that differs: `path`, `voided`, `text`. What is the same object needs no look. */
export function* textChanges(before, after, path = "") {
  if (before === after) return;
  if (typeof before === "string" || typeof after === "string") {
    // Where a text has gone, or none was yet, the other side is as if empty.
    const change = textChange(typeof before === "string" ? before : "", typeof after === "string" ? after : "");
    if (change.voided > 0 || change.text !== "") yield { path, ...change };
    if (typeof before === "string" && typeof after === "string") return;
  }
  for (const name of new Set([...namesIn(before), ...namesIn(after)])) {
    const token = name.replaceAll("~", "~0").replaceAll("/", "~1");
    yield* textChanges(member(before, name), member(after, name), `${path}/${token}`);
  }
}

const isContainer = (value) => Array.isArray(value) || isObject(value);
const namesIn = (value) => (isContainer(value) ? Object.keys(value) : []);
const member = (value, name) => (isContainer(value) ? value[name] : undefined);

// ---- ops -------------------------------------------------------------------------------------------------------

function grown(target, x) {
  if (typeof target === "string" && typeof x === "string") return target + x;
  if (Array.isArray(target) && Array.isArray(x)) return target.concat(x);
  return malformed("what is appended does not fit its target");
}

const OPS = {
  a: (state, [path, x]) => changed(state, tokensOf(path), (target) => grown(target, x)),
  t: (state, [path, n]) => {
    const tokens = tokensOf(path);
    if (!isInteger(n, 0)) malformed("t takes an integer");
    return changed(state, tokens, (target) => {
      if (typeof target === "string") return withoutLast(target, n);
      if (!Array.isArray(target) || n > target.length) malformed("t does not fit its target");
      return target.slice(0, target.length - n);
    });
  },
  s: (state, [path, value]) => {
    const tokens = tokensOf(path);
    if (tokens.length === 0) return value;
    return inside(state, tokens, (container, token) =>
      replaced(container, Array.isArray(container) ? index(token, container.length) : token, value),
    );
  },
  i: (state, [path, value]) =>
    inside(state, tokensOf(path), (container, token) => {
      if (!Array.isArray(container)) malformed("i needs an array");
      return container.toSpliced(index(token, container.length), 0, value);
    }),
  d: (state, [path]) =>
    inside(state, tokensOf(path), (container, token) => {
      if (Array.isArray(container)) return container.toSpliced(index(token, container.length - 1), 1);
      if (!(token in container)) malformed(`no member ${token}`);
      const copy = replaced(container, token, null);
      delete copy[token];
      return copy;
    }),
};
const MEMBERS = { a: 3, t: 3, s: 3, i: 3, d: 2 };

/** Change the container of what `tokens` name. */
function inside(state, tokens, change) {
  if (tokens.length === 0) malformed("the whole state has no place that contains it");
  return changed(state, tokens.slice(0, -1), (container) => {
    if (!isContainer(container)) malformed("neither an object nor an array");
    return change(container, tokens.at(-1));
  });
}

function row(state, columns, cells) {
  if (cells.length !== columns.length) malformed("a row has as many members as there are columns");
  return columns.reduce(
    (now, path, at) =>
      changed(now, tokensOf(path), (target) => {
        if (typeof target === "string" && typeof cells[at] === "string") return target + cells[at];
        if (!Array.isArray(target)) malformed("a member of a row does not fit its column");
        return [...target, cells[at]];
      }),
    state,
  );
}

function step(state, columns, op) {
  if (!Array.isArray(op) || typeof op[0] !== "string") malformed("an op is an array that begins with its name");
  const [name, ...rest] = op;
  if (name === "r") return row(state, columns, rest);
  if (!Object.hasOwn(OPS, name)) throw new Refused("unknown", `no op ${name}`);
  if (op.length !== MEMBERS[name]) malformed(`${name} takes ${MEMBERS[name] - 1} members`);
  return OPS[name](state, rest);
}

/** The state after a diff, whose event has the number `seq`. */
export function apply(state, columns, diff, seq = Infinity) {
  if (typeof diff === "string") {
    if (columns.length !== 1) malformed("a string is for one column");
    return changed(state, tokensOf(columns[0]), (target) => grown(target, diff));
  }
  const { ops, check } = shape(diff, seq);
  const after = ops.reduce((now, op) => step(now, columns, op), state);
  requireStable(state, after);
  verify(after, check);
  return after;
}

/** The base of a diff: the seq of the event before it, unless it names another. */
export function baseOf(diff, seq) {
  return isObject(diff) && "on" in diff ? diff.on : seq - 1;
}

function shape(diff, seq) {
  if (Array.isArray(diff)) return { ops: diff, check: [] };
  if (!isObject(diff) || !("ops" in diff)) throw new Refused("unknown", "a shape of a diff that this client has not");
  const { ops, check = [] } = diff;
  if (!Array.isArray(ops) || !Array.isArray(check)) malformed("ops and check are arrays");
  if ("on" in diff && !isInteger(diff.on, 0, seq - 1)) malformed("on is no earlier seq");
  return { ops, check };
}

// ---- proofs ----------------------------------------------------------------------------------------------------

/** Refuse a state for which a check does not hold. */
export function verify(state, checks) {
  if (!Array.isArray(checks)) malformed("checks are an array");
  for (const check of checks) {
    if (!Array.isArray(check) || check.length < 2 || check.length > 3) malformed("a check has two or three members");
    const [path, n, crc] = check;
    if (!isInteger(n, 0) || (check.length === 3 && !isInteger(crc, 0, 0xffffffff))) malformed("a check of no number");
    const target = valueAt(state, path);
    const holds =
      check.length === 2
        ? Array.isArray(target) && target.length === n
        : typeof target === "string" && lengthOf(target) === n && crc32(target) === crc;
    if (!holds) throw new Refused("check", `the check of ${path} fails`);
  }
}

/** Refuse a change that touches what `stable` of an item promised to leave alone. */
function requireStable(before, after) {
  const items = isObject(before) && Array.isArray(before.items) ? before.items : [];
  const now = isObject(after) && Array.isArray(after.items) ? after.items : [];
  for (const item of now) if (isObject(item)) stableOf(item);
  items.forEach((item, at) => {
    if (!isObject(item) || item === now[at]) return;
    for (const [path, n] of Object.entries(stableOf(item))) {
      const old = valueAt(item.value, path);
      const fresh = isObject(now[at]) ? valueAt(now[at].value, path) : undefined;
      const kept = typeof old === "string" ? old.slice(0, unitsOf(old, n)) : "";
      const promised = isObject(now[at]) ? stableOf(now[at])[path] : undefined;
      if (promised === undefined || promised < n || typeof fresh !== "string" || !fresh.startsWith(kept)) {
        throw new Refused("unstable", `stable of ${path} in item ${at} is broken`);
      }
    }
  });
}

function stableOf(item) {
  const stable = item.stable ?? {};
  if (!isObject(stable)) malformed("stable is an object");
  for (const [path, n] of Object.entries(stable)) {
    tokensOf(path);
    if (!isInteger(n, 0)) malformed("stable counts code points");
    const text = valueAt(item.value, path);
    if (typeof text !== "string" || unitsOf(text, n) === undefined) {
      throw new Refused("unstable", `stable of ${path} is longer than its text`);
    }
  }
  return stable;
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

/** CRC-32 of ISO-HDLC of the UTF-8 of a text. */
export function crc32(text) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff];
  return (crc ^ 0xffffffff) >>> 0;
}

/** The digest of the final items of a job. */
export function digest(items) {
  return createHash("sha256").update(canonical(items)).digest("hex").slice(0, 16);
}
