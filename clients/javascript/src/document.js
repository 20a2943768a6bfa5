/**
 * The state of a job, changed in place by diffs.
 *
 * A diff costs the time of its own length, whatever the size of the state: appended text is concatenated without a copy,
 * and elements are pushed. The reverse of each change is recorded. A diff that is refused is reversed completely, and an
 * update that was delivered earlier can still read its value: it copies the current state and reverses the later changes.
 */

import { firstPoints, lengthOf, textChange, withoutLast } from "./code_points.js";
import { crc32 } from "./digests.js";
import { copy, isInteger, isObject, setMember } from "./strict_json.js";

/** @typedef {import("./code_points.js").TextChange} TextChange */
/** @typedef {[path: string, n: number, crc?: number]} Check */
/** @typedef {{tokens: string[], kind: "set" | "delete" | "cut" | "push" | "insert" | "remove", value?: any}} Reverse */
/** @typedef {{next: Version | null, reverse: Reverse[]}} Version A state that existed; `reverse` leads to the one before. */

/** A diff may not be applied: it is malformed, contains an op or a form that this client does not know, fails a check, or is unstable. */
export class DiffError extends Error {
  /** @param {string} message @param {"malformed" | "unknown" | "check" | "unstable"} [kind] */
  constructor(message, kind = "malformed") {
    super(message);
    this.kind = kind;
  }
}

const STRAY_TILDE = /~(?![01])/;
const INDEX = /^(?:0|[1-9][0-9]{0,14})$/;
/** Maximum number of ops of a diff. */
export const MAX_EVENT_OPS = 10_000;
/** @type {Record<string, number>} */
const ELEMENTS = { a: 3, t: 3, s: 3, i: 3, d: 2 };

/** The reference tokens of a JSON Pointer. @param {unknown} path @returns {string[]} */
export function tokensOf(path) {
  if (typeof path !== "string" || (path !== "" && path[0] !== "/") || (path.includes("~") && STRAY_TILDE.test(path))) {
    throw new DiffError(`${JSON.stringify(path)} is not a JSON Pointer`);
  }
  const tokens = path.split("/");
  tokens.shift();
  return path.includes("~") ? tokens.map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~")) : tokens;
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

export class Document {
  /** CRC of each checked text, and the text that was appended since. @type {Map<string, {n: number, crc: number, rest: string}>} */
  #checked = new Map();
  /** @type {Map<string, string[]>} */
  #columnTokens;
  /** Columns in the values of items, with their tokens. @type {[string, string[]][]} */
  #valueColumns;
  /** Number of ops that did more than append. */
  rewrites = 0;
  /** @type {Version} */
  version = { next: null, reverse: [] };
  /** Changes of columns by the diff that is being applied. @type {Map<string, {before: string | null, appended: string | null}>} */
  #columns = new Map();
  /** @type {Map<number, {stable: any, value: any, isAppended: boolean}>} */
  #stable = new Map();

  /** @param {any} state The document owns it from now on. @param {string[]} columns */
  constructor(state, columns) {
    this.root = state;
    this.columns = columns;
    this.#columnTokens = new Map(columns.map((path) => [path, tokensOf(path)]));
    this.#valueColumns = [...this.#columnTokens].filter(([, [first, , third]]) => first === "items" && third === "value");
  }

  /** A copy of a part of the state, as it was at a version. @param {Version} version @param {string[]} tokens */
  read(version, tokens) {
    if (version === this.version) return copy(valueAt(this.root, tokens));
    let later = [];
    for (let each = version.next; each; each = each.next) later.push(each);
    const scratch = { root: copy(this.root) };
    for (const each of later.reverse()) reverseAll(scratch, each.reverse);
    return valueAt(scratch.root, tokens);
  }

  /**
   * Apply a diff completely, or throw and leave the state as it was.
   * @param {any} diff @param {(ops: any[]) => void} [check] Further check of the new state, which throws to refuse the diff.
   * @returns {Map<string, TextChange>} The changes of texts in columns.
   */
  apply(diff, check) {
    const { ops, checks } = this.#shape(diff);
    /** @type {Reverse[]} */
    const reverse = [];
    this.#columns.clear();
    this.#stable.clear();
    try {
      for (const op of ops) this.#step(op, reverse);
      this.#requireStable();
      this.verify(checks);
      check?.(ops);
    } catch (error) {
      reverseAll(this, reverse);
      this.#checked.clear();
      throw error;
    }
    this.version.next = { next: null, reverse };
    this.version = this.version.next;
    return this.#textChanges();
  }

  /** @param {any} diff */
  #shape(diff) {
    if (typeof diff === "string") {
      if (this.columns.length !== 1) throw new DiffError("a diff that is a string needs exactly one column");
      return { ops: [["a", this.columns[0], diff]], checks: [] };
    }
    const isPlain = Array.isArray(diff);
    if (!isPlain && !(isObject(diff) && "ops" in diff)) throw new DiffError("unknown form of a diff", "unknown");
    const ops = isPlain ? diff : diff.ops;
    const checks = isPlain || diff.check === undefined ? [] : diff.check;
    if (!Array.isArray(ops) || !Array.isArray(checks)) throw new DiffError("ops and check must be arrays");
    if (ops.length > MAX_EVENT_OPS) throw new DiffError(`a diff has ${ops.length} ops, more than ${MAX_EVENT_OPS}`);
    return { ops, checks };
  }

  // ---- ops ---------------------------------------------------------------------------------------------------------

  /** @param {any} op @param {Reverse[]} reverse */
  #step(op, reverse) {
    if (!Array.isArray(op) || typeof op[0] !== "string") throw new DiffError("an op must be an array that starts with its name");
    const name = op[0];
    if (name === "r") {
      if (op.length !== this.columns.length + 1) throw new DiffError("a row must have one element for each column");
      this.columns.forEach((path, at) => this.#append(path, op[at + 1], reverse, true));
      return;
    }
    if (!Object.hasOwn(ELEMENTS, name)) throw new DiffError(`unknown op ${JSON.stringify(name.slice(0, 40))}`, "unknown");
    if (op.length !== ELEMENTS[name]) throw new DiffError(`the op ${name} must have ${ELEMENTS[name]} elements`);
    if (name === "a") this.#append(op[1], op[2], reverse, false);
    else this.#change(name, op[1], op[2], reverse);
  }

  /**
   * @param {any} path @param {any} piece @param {Reverse[]} reverse
   * @param {boolean} isRow Whether an array grows by one element, and not by the elements of an array.
   */
  #append(path, piece, reverse, isRow) {
    const tokens = this.#columnTokens.get(path) ?? tokensOf(path);
    const { container, key } = this.#target(tokens);
    const target = container[key];
    if (typeof target === "string" && typeof piece === "string") {
      this.#note(path, tokens, target, piece);
      this.#noteStable(tokens, true);
      reverse.push({ tokens, kind: "set", value: target });
      container[key] = target + piece;
      const checked = this.#checked.get(path);
      if (checked) checked.rest += piece;
    } else if (Array.isArray(target) && (isRow || Array.isArray(piece))) {
      this.#note(path, tokens, null, null);
      this.#noteStable(tokens, true);
      reverse.push({ tokens, kind: "cut", value: target.length });
      if (isRow) target.push(copy(piece));
      else for (const each of piece) target.push(copy(each));
    } else throw new DiffError(`the value appended to ${path} does not fit its target`);
  }

  /** @param {string} name @param {any} path @param {any} argument @param {Reverse[]} reverse */
  #change(name, path, argument, reverse) {
    const tokens = tokensOf(path);
    const mustExist = name === "t" || name === "d";
    if (name !== "s" && name !== "t" && tokens.length === 0) throw new DiffError(`the op ${name} does not apply to the whole state`);
    const { container, key } = this.#target(tokens, mustExist);
    const isElement = Array.isArray(container);
    const exists = Object.hasOwn(container, key);
    if (isElement && !(INDEX.test(key) && Number(key) <= container.length)) throw new DiffError(`${path} is not an index`);
    if (name === "i" && !isElement) throw new DiffError(`${path} is not a place in an array`);
    this.rewrites += 1;
    // An insertion or a deletion in an array moves its later elements, so it changes the whole container.
    const isMove = name === "i" || name === "d";
    const changed = isMove ? tokens.slice(0, -1) : tokens;
    this.#note(path, changed, null, null);
    this.#noteStable(changed, false);
    this.#forgetChecks(isMove ? path.slice(0, path.lastIndexOf("/")) : path);
    if (name === "t") {
      const target = container[key];
      if (!isInteger(argument, 0)) throw new DiffError("the op t needs an integer");
      if (typeof target === "string") {
        const rest = withoutLast(target, argument);
        if (rest === undefined) throw new DiffError(`the text at ${path} has fewer than ${argument} code points`);
        reverse.push({ tokens, kind: "set", value: target });
        container[key] = rest;
      } else if (Array.isArray(target) && argument <= target.length) {
        reverse.push({ tokens, kind: "push", value: target.splice(target.length - argument) });
      } else throw new DiffError(`${path} is not a text or an array of at least ${argument} elements`);
    } else if (name === "d") {
      reverse.push({ tokens, kind: isElement ? "insert" : "set", value: container[key] });
      if (isElement) container.splice(Number(key), 1);
      else delete container[key];
    } else if (name === "i") {
      reverse.push({ tokens, kind: "remove" });
      container.splice(Number(key), 0, copy(argument));
    } else {
      reverse.push(exists ? { tokens, kind: "set", value: container[key] } : { tokens, kind: "delete" });
      setMember(container, key, copy(argument));
    }
  }

  /**
   * The container of a target, and the key of the target in it.
   * @param {string[]} tokens @param {boolean} [mustExist] Whether the target must exist, and not only its container.
   * @returns {{container: any, key: string}}
   */
  #target(tokens, mustExist = true) {
    if (tokens.length === 0) return { container: this, key: "root" };
    const container = valueAt(this.root, tokens.slice(0, -1));
    const key = tokens[tokens.length - 1];
    if (typeof container !== "object" || container === null) throw new DiffError(`nothing contains /${tokens.join("/")}`);
    if (mustExist && valueAt(container, [key]) === undefined) throw new DiffError(`there is nothing at /${tokens.join("/")}`);
    return { container, key };
  }

  // ---- consequences of ops -----------------------------------------------------------------------------------------

  /**
   * Note that an op is about to change the place that tokens name.
   * @param {string} path @param {string[]} tokens @param {string | null} before Text to which the op appends; null for every other op.
   * @param {string | null} piece
   */
  #note(path, tokens, before, piece) {
    if ((tokens.length > 0 && tokens[0] !== "items") || (tokens.length > 2 && tokens[2] !== "value")) return;
    if (piece !== null) {
      const known = this.#columns.get(path);
      if (known === undefined) this.#columns.set(path, { before, appended: piece });
      else if (known.appended !== null) known.appended += piece;
      return;
    }
    for (const [column, place] of this.#valueColumns) {
      if (!tokens.every((token, at) => place[at] === token)) continue;
      const known = this.#columns.get(column);
      if (known) known.appended = null;
      else {
        const text = valueAt(this.root, place);
        this.#columns.set(column, { before: typeof text === "string" ? text : null, appended: null });
      }
    }
  }

  #textChanges() {
    /** @type {Map<string, TextChange>} */
    const changes = new Map();
    for (const [path, { before, appended }] of this.#columns) {
      if (appended !== null) {
        if (appended !== "") changes.set(path, { deleted: 0, text: appended });
        continue;
      }
      const after = valueAt(this.root, tokensOf(path));
      const change = textChange(before ?? "", typeof after === "string" ? after : "");
      if (change.deleted > 0 || change.text !== "") changes.set(path, change);
    }
    return changes;
  }

  /**
   * Keep what is needed to check that a diff leaves the stable prefixes of an item unchanged.
   * @param {string[]} tokens @param {boolean} isAppended Whether the op only appends.
   */
  #noteStable(tokens, isAppended) {
    if (tokens.length > 0 && tokens[0] !== "items") return;
    const items = isObject(this.root) && Array.isArray(this.root.items) ? this.root.items : [];
    const indices = tokens.length < 2 ? items.keys() : [Number(tokens[1])];
    for (const index of indices) {
      const item = items[index];
      if (!isObject(item) || !("stable" in item)) continue;
      const known = this.#stable.get(index);
      if (known) known.isAppended &&= isAppended;
      else {
        /** @type {Record<string, any>} */
        const texts = {};
        const stable = isObject(item.stable) ? item.stable : {};
        for (const path of Object.keys(stable)) setMember(texts, path, valueAt(item.value, tokensOf(path)));
        this.#stable.set(index, { stable: copy(stable), value: texts, isAppended });
      }
    }
  }

  #requireStable() {
    for (const [index, { stable, value, isAppended }] of this.#stable) {
      if (isAppended) continue;
      const item = valueAt(this.root, ["items", String(index)]);
      for (const path of Object.keys(stable)) {
        const n = stable[path];
        if (!isInteger(n, 0) || typeof value[path] !== "string") continue;
        const kept = firstPoints(value[path], n) ?? value[path];
        const after = isObject(item) ? valueAt(item.value, tokensOf(path)) : undefined;
        const promised = isObject(item) && isObject(item.stable) && Object.hasOwn(item.stable, path) ? item.stable[path] : -1;
        if (!isInteger(promised, n) || typeof after !== "string" || !after.startsWith(kept)) {
          throw new DiffError(`the diff changes the stable prefix of ${path} in item ${index}`, "unstable");
        }
      }
    }
  }

  // ---- checks ------------------------------------------------------------------------------------------------------

  /** Verify checks. Only the text that was appended since the last check of a text is read. @param {any[]} checks */
  verify(checks) {
    for (const check of checks) {
      if (!Array.isArray(check) || check.length < 2 || check.length > 3) throw new DiffError("a check must have two or three elements");
      const [path, n, crc] = check;
      if (!isInteger(n, 0) || (check.length === 3 && !isInteger(crc, 0, 0xffffffff))) throw new DiffError("a check needs integers");
      const target = valueAt(this.root, tokensOf(path));
      if (check.length === 2 ? !(Array.isArray(target) && target.length === n) : !this.#matches(path, target, n, crc)) {
        throw new DiffError(`the check of ${path} failed`, "check");
      }
    }
  }

  /** @param {string} path @param {any} text @param {number} n @param {number} crc */
  #matches(path, text, n, crc) {
    if (typeof text !== "string") return false;
    const known = this.#checked.get(path) ?? { n: 0, crc: 0, rest: text };
    const found = { n: known.n + lengthOf(known.rest), crc: crc32(known.rest, known.crc), rest: "" };
    this.#checked.set(path, found);
    return found.n === n && found.crc === crc;
  }

  /** @param {string} path */
  #forgetChecks(path) {
    for (const checked of this.#checked.keys()) {
      if (checked === path || path === "" || checked.startsWith(`${path}/`)) this.#checked.delete(checked);
    }
  }
}

/** @param {{root: any}} holder @param {Reverse[]} changes */
function reverseAll(holder, changes) {
  for (let at = changes.length - 1; at >= 0; at -= 1) {
    const { tokens, kind, value } = changes[at];
    const key = tokens.length ? tokens[tokens.length - 1] : "root";
    const container = tokens.length ? valueAt(holder.root, tokens.slice(0, -1)) : holder;
    if (kind === "set") setMember(container, key, copy(value));
    else if (kind === "delete") Array.isArray(container) ? container.pop() : delete container[key];
    else if (kind === "cut") container[key].length = value;
    else if (kind === "push") for (const each of copy(value)) container[key].push(each);
    else if (kind === "insert") container.splice(Number(key), 0, copy(value));
    else container.splice(Number(key), 1);
  }
}
