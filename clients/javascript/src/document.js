/**
 * The state of a job, changed in place by diffs, so that a diff costs the time of its own length. For each op, the op that
 * reverses it is recorded: to refuse a whole diff, and to read a value as it was before later diffs.
 */

import { lengthOf, textChange, withoutLast } from "./code_points.js";
import { crc32 } from "./digests.js";
import { InvalidData, copy, isInteger, isObject, setMember } from "./strict_json.js";

/** @import { EventId, Op, Position } from "./types.js" */

export const POINTER = /^(?:\/(?:[^~]|~[01])*)?$/;
const INDEX = /^(?:0|[1-9][0-9]{0,14})$/;
const MAX_EVENT_OPS = 10_000;
/** Numbers of elements of the ops other than `r`. @type {Record<string, number>} */
const ELEMENTS = { a: 3, t: 3, s: 3, i: 3, d: 2 };

/** The reference tokens of a JSON Pointer. @param {unknown} path @returns {string[]} */
export function tokensOf(path) {
  if (typeof path !== "string" || !POINTER.test(path)) throw new InvalidData(`${JSON.stringify(path)} is not a JSON Pointer`);
  return path.split("/").slice(1).map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** The value that tokens name, or undefined. @param {any} root @param {string[]} tokens */
export function valueAt(root, tokens) {
  let value = root;
  for (const token of tokens) {
    if (typeof value !== "object" || value === null || !Object.hasOwn(value, token)) return undefined;
    if (Array.isArray(value) && !INDEX.test(token)) return undefined;
    value = value[token];
  }
  return value;
}

/** @param {any} root @param {string[]} tokens @returns {string} The text that tokens name, or "". */
export function textAt(root, tokens) {
  const value = valueAt(root, tokens);
  return typeof value === "string" ? value : "";
}

export class Document {
  /** The texts that were checked last, by path. @type {Map<string, {text: string, n: number, crc: number}>} */
  #checked = new Map();
  /** Number of ops that did more than append. */
  rewrites = 0;

  /** @param {any} state The document owns it from now on. @param {string[]} columns @param {EventId} id The last event in the state. */
  constructor(state, columns, id) {
    this.root = state;
    this.columns = columns;
    this.position = /** @type {Position} */ ({ document: this, id, next: null, reverse: [] });
  }

  /** A copy of a part of the state, as it was at a position. @param {Position} position @param {string[]} tokens */
  read(position, tokens) {
    if (position === this.position) return copy(valueAt(this.root, tokens));
    const later = [];
    for (let each = position.next; each; each = each.next) later.push(each.reverse);
    const scratch = { root: copy(this.root) };
    for (const op of later.flat().reverse()) perform(scratch, op);
    return valueAt(scratch.root, tokens);
  }

  /**
   * Apply the diff of an event, or throw InvalidData and leave the state as it was. Return its ops.
   * @param {any} diff @param {EventId} id @param {(ops: Op[]) => void} [check]
   */
  apply(diff, id, check) {
    const { ops, checks } = this.#parsed(diff);
    const rewrites = ops.filter(({ name }) => name !== "a");
    const stable = this.#stableTexts(rewrites);
    const reverse = /** @type {Op[]} */ ([]);
    try {
      for (const op of ops) {
        if (op.isCell && Array.isArray(valueAt(this.root, op.tokens))) op.argument = [op.argument];
        reverse.push(perform(this, op));
      }
      for (const { index, path, n, text } of stable) {
        const item = valueAt(this.root, ["items", String(index)]);
        const { deleted } = textChange(text, textAt(item?.value, tokensOf(path)));
        const isKept = isInteger(item?.stable?.[path], n) && (deleted === 0 || lengthOf(text) - deleted >= n);
        if (!isKept) throw new InvalidData(`the diff changes the stable prefix of ${path} in item ${index}`, "unstable");
      }
      this.verify(checks);
      check?.(ops);
    } catch (error) {
      for (const op of reverse.reverse()) perform(this, op);
      throw error;
    }
    this.rewrites += rewrites.length;
    this.position = this.position.next = { document: this, id, next: null, reverse };
    return ops;
  }

  /** The ops of a diff, in which rows are appends, and its checks. @param {any} diff @returns {{ops: Op[], checks: any[]}} */
  #parsed(diff) {
    if (typeof diff === "string" && this.columns.length !== 1) throw new InvalidData("a diff that is a string needs exactly one column");
    if (typeof diff === "string") diff = [["a", this.columns[0], diff]];
    if (!Array.isArray(diff) && !(isObject(diff) && "ops" in diff)) throw new InvalidData("unknown form of a diff", "unknown");
    const { ops, check = [] } = Array.isArray(diff) ? { ops: diff } : diff;
    if (!Array.isArray(ops) || !Array.isArray(check)) throw new InvalidData("ops and check must be arrays");
    if (ops.length > MAX_EVENT_OPS) throw new InvalidData(`a diff has ${ops.length} ops, more than ${MAX_EVENT_OPS}`);
    return { ops: ops.flatMap((op) => this.#parsedOp(op)), checks: check };
  }

  /** @param {any} op @returns {Op[]} */
  #parsedOp(op) {
    if (!Array.isArray(op) || typeof op[0] !== "string") throw new InvalidData("an op must be an array that starts with its name");
    const [name, path, argument] = op;
    if (name !== "r" && !Object.hasOwn(ELEMENTS, name)) throw new InvalidData(`unknown op ${JSON.stringify(name.slice(0, 40))}`, "unknown");
    const length = ELEMENTS[name] ?? this.columns.length + 1;
    if (op.length !== length) throw new InvalidData(`the op ${name} must have ${length} elements`);
    if (name !== "r") return [{ name, path, tokens: tokensOf(path), argument }];
    return this.columns.map((column, at) => ({ name: "a", path: column, tokens: tokensOf(column), argument: op[at + 1], isCell: true }));
  }

  /** The texts with a stable prefix in the items that ops rewrite, or in all items, if an op may move items. @param {Op[]} ops */
  #stableTexts(ops) {
    const items = /** @type {any[]} */ (valueAt(this.root, ["items"]) ?? []);
    const inItems = ops.filter(({ tokens: [first = "items"] }) => first === "items");
    const isWide = inItems.some(({ tokens }) => tokens.length < 3);
    return [...(isWide ? items.keys() : new Set(inItems.map(({ tokens }) => Number(tokens[1]))))].flatMap((index) =>
      Object.entries(items[index]?.stable ?? {}).map(([path, n]) => ({ index, path, n, text: textAt(items[index].value, tokensOf(path)) })),
    );
  }

  /** Verify the checks of texts and arrays. @param {any[]} checks */
  verify(checks) {
    for (const check of checks) {
      if (!Array.isArray(check) || check.length < 2 || check.length > 3) throw new InvalidData("a check must have two or three elements");
      const [path, n, crc] = check;
      if (!isInteger(n, 0) || (check.length === 3 && !isInteger(crc, 0, 0xffffffff))) throw new InvalidData("a check needs integers");
      const target = valueAt(this.root, tokensOf(path));
      const holds = check.length === 2 ? Array.isArray(target) && target.length === n : typeof target === "string" && this.#holds(path, target, n, crc);
      if (!holds) throw new InvalidData(`the check of ${path} failed`, "check");
    }
  }

  /** Whether a text fits a check. Only its new part is read. @param {string} path @param {string} text @param {number} n @param {number} crc */
  #holds(path, text, n, crc) {
    const last = this.#checked.get(path);
    // A server may repeat a check thousands of times in one diff, so an unchanged text is not read again.
    if (last?.text === text) return last.n === n && last.crc === crc;
    const known = last && text.startsWith(last.text) ? last : { text: "", n: 0, crc: 0 };
    const rest = text.slice(known.text.length);
    const now = { text, n: known.n + lengthOf(rest), crc: crc32(rest, known.crc) };
    this.#checked.set(path, now);
    return now.n === n && now.crc === crc;
  }
}

/**
 * The change of the text of a column. Text that only grew is not compared.
 * @param {string} column @param {string} before @param {string} after @param {Op[] | null} ops Ops that led to it, if known.
 */
export function changeOfText(column, before, after, ops) {
  const text = (ops ?? []).map(({ path, argument }) => (path === column ? argument : "")).join("");
  const hasGrown = ops?.every(({ name }) => name === "a") && before.length + text.length === after.length;
  return hasGrown ? { deleted: 0, text } : textChange(before, after);
}

/** Apply an op to the root of a holder, and return the op that reverses it. @param {{root: any}} holder @param {Op} op @returns {Op} */
function perform(holder, { name, path, tokens, argument }) {
  const container = valueAt(holder, ["root", ...tokens].slice(0, -1));
  const key = tokens[tokens.length - 1] ?? "root";
  if (typeof container !== "object" || container === null) throw new InvalidData(`nothing contains ${path}`);
  const isElement = Array.isArray(container);
  if (isElement && !(INDEX.test(key) && Number(key) <= container.length)) throw new InvalidData(`${path} is not an index`);
  const exists = Object.hasOwn(container, key);
  if (!exists && name !== "s" && name !== "i") throw new InvalidData(`there is nothing at ${path}`);
  const target = exists ? container[key] : undefined;
  /** @param {string} name @param {any} [argument] */
  const reverse = (name, argument) => ({ name, path, tokens, argument });
  if (name === "s") {
    setMember(container, key, copy(argument));
    return exists ? reverse("s", target) : reverse("d");
  }
  if (typeof target === "string" && (name === "a" ? typeof argument === "string" : name === "t" && isInteger(argument, 0))) {
    const text = name === "a" ? target + argument : withoutLast(target, argument);
    if (text === undefined) throw new InvalidData(`the text at ${path} has fewer than ${argument} code points`);
    container[key] = text;
    return reverse("s", target);
  }
  if (name === "a" && Array.isArray(target) && Array.isArray(argument)) {
    for (const each of argument) target.push(copy(each));
    return reverse("t", argument.length);
  }
  if (name === "t" && Array.isArray(target) && isInteger(argument, 0, target.length)) {
    return reverse("a", target.splice(target.length - argument));
  }
  if (name === "i" && isElement) {
    container.splice(Number(key), 0, copy(argument));
    return reverse("d");
  }
  if (name === "d" && container !== holder) {
    if (isElement) container.splice(Number(key), 1);
    else delete container[key];
    return isElement ? reverse("i", target) : reverse("s", target);
  }
  throw new InvalidData(`the op ${name} does not fit ${path}`);
}
