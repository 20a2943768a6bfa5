/**
 * JSON as the protocol allows it, deep copies, and the canonical form of RFC 8785.
 *
 * `JSON.parse` accepts texts that the protocol forbids: two members with the same name, integers beyond 2^53, numbers that
 * are not finite, lone surrogates, and any depth. It also reads `1.0` as the integer 1. `parse` finds these cases with one
 * scan over a text that `JSON.parse` has accepted. A number such as `1.0` becomes an object that `isInteger` rejects and
 * `copy` converts to a number.
 */

/** Maximum depth of arrays and objects. */
export const MAX_DEPTH = 64;
const LARGEST_INTEGER = "9007199254740992";
const LONE_SURROGATE = /\p{Surrogate}/u;
/** Name of the only member of the object that stands for a number such as 1.0. A server cannot guess it. */
const DECIMAL = `decimal ${Math.random()} ${Math.random()}`;

/** The text is not JSON that the protocol allows. */
export class JsonError extends Error {}

/** @param {string} text @returns {any} */
export function parse(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new JsonError(`not JSON: ${/** @type {Error} */ (error).message}`);
  }
  const decimals = scan(text);
  if (decimals.length === 0) return value;
  let [exact, done] = ["", 0];
  for (const [start, end] of decimals) {
    exact += `${text.slice(done, start)}{"${DECIMAL}":${text.slice(start, end)}}`;
    done = end;
  }
  return JSON.parse(exact + text.slice(done));
}

/**
 * Check a valid JSON text against the rules of the protocol.
 * @param {string} text @returns {[number, number][]} Places of integers that are written with a fraction or an exponent.
 */
function scan(text) {
  /** @type {[number, number][]} */
  const decimals = [];
  /** @type {(Set<string> | null)[]} */
  const open = [];
  /** @type {Set<string> | null} */
  let names = null;
  let isName = false;
  for (let at = 0; at < text.length; at += 1) {
    const char = text.charCodeAt(at);
    if (char === 0x22) {
      const end = endOfString(text, at);
      if (isName && names) {
        const name = stringAt(text, at, end);
        if (names.has(name)) throw new JsonError(`two members have the name ${JSON.stringify(name.slice(0, 80))}`);
        names.add(name);
        isName = false;
      } else stringAt(text, at, end);
      at = end;
    } else if (char === 0x7b || char === 0x5b) {
      if (open.length >= MAX_DEPTH) throw new JsonError(`arrays and objects are nested deeper than ${MAX_DEPTH} levels`);
      open.push(names);
      isName = char === 0x7b;
      names = isName ? new Set() : null;
    } else if (char === 0x7d || char === 0x5d) {
      names = open.pop() ?? null;
      isName = false;
    } else if (char === 0x2c) isName = names !== null;
    else if (char === 0x2d || (char >= 0x30 && char <= 0x39)) {
      const end = endOfNumber(text, at);
      if (isDecimal(text, at, end)) decimals.push([at, end]);
      at = end - 1;
    }
  }
  return decimals;
}

/** @param {string} text @param {number} start Index of the first quotation mark. */
function endOfString(text, start) {
  for (let end = text.indexOf('"', start + 1); ; end = text.indexOf('"', end + 1)) {
    let first = end;
    while (text.charCodeAt(first - 1) === 0x5c) first -= 1;
    if ((end - first) % 2 === 0) return end;
  }
}

/** @param {string} text @param {number} start @param {number} end Index of the last quotation mark. @returns {string} */
function stringAt(text, start, end) {
  const raw = text.slice(start + 1, end);
  if (!raw.includes("\\u")) return raw.includes("\\") ? JSON.parse(`"${raw}"`) : raw;
  const value = JSON.parse(`"${raw}"`);
  if (LONE_SURROGATE.test(value)) throw new JsonError("a string contains a lone surrogate");
  return value;
}

/** @param {string} text @param {number} at */
function endOfNumber(text, at) {
  for (let end = at + 1; ; end += 1) {
    const char = text.charCodeAt(end);
    const isPart = (char >= 0x30 && char <= 0x39) || char === 0x2e || char === 0x2b || char === 0x2d || char === 0x65 || char === 0x45;
    if (!isPart) return end;
  }
}

/** @param {string} text @param {number} start @param {number} end */
function isDecimal(text, start, end) {
  const literal = text.slice(start, end);
  if (/[.eE]/.test(literal)) {
    const number = Number(literal);
    if (!Number.isFinite(number)) throw new JsonError(`the number ${literal.slice(0, 80)} is not finite`);
    return Number.isInteger(number);
  }
  const digits = literal.charCodeAt(0) === 0x2d ? literal.slice(1) : literal;
  if (digits.length > LARGEST_INTEGER.length || (digits.length === LARGEST_INTEGER.length && digits > LARGEST_INTEGER)) {
    throw new JsonError(`the integer ${literal.slice(0, 80)} is beyond 2^53`);
  }
  return false;
}

/**
 * Whether a value is an integer, written as one, from `least` to `most`.
 * @param {unknown} value @param {number} least @param {number} [most] @returns {value is number}
 */
export function isInteger(value, least, most = 2 ** 53) {
  return typeof value === "number" && Number.isInteger(value) && value >= least && value <= most;
}

/** @param {unknown} value @returns {value is Record<string, any>} */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !Object.hasOwn(value, DECIMAL);
}

/** @param {unknown} value */
export function isNumber(value) {
  return typeof value === "number" || (typeof value === "object" && value !== null && Object.hasOwn(value, DECIMAL));
}

/** Set a member, even if its name is `__proto__`. @param {Record<string, any>} object @param {string} name @param {any} value */
export function setMember(object, name, value) {
  if (name !== "__proto__") object[name] = value;
  else Object.defineProperty(object, name, { value, writable: true, enumerable: true, configurable: true });
}

/** A deep copy of a JSON value, in which each number is a number. @param {any} value @returns {any} */
export function copy(value) {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) {
    const elements = new Array(value.length);
    for (let at = 0; at < value.length; at += 1) elements[at] = copy(value[at]);
    return elements;
  }
  if (Object.hasOwn(value, DECIMAL)) return value[DECIMAL];
  /** @type {Record<string, any>} */
  const members = {};
  for (const name of Object.keys(value)) setMember(members, name, copy(value[name]));
  return members;
}

/** Whether two JSON values are equal, regardless of the order of members. @param {any} one @param {any} other @returns {boolean} */
export function same(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one)) {
    return Array.isArray(other) && one.length === other.length && one.every((each, at) => same(each, other[at]));
  }
  const names = Object.keys(one);
  if (Array.isArray(other) || names.length !== Object.keys(other).length) return false;
  return names.every((name) => Object.hasOwn(other, name) && same(one[name], other[name]));
}

/** Number of elements of a long array that become one piece of the canonical form. */
const PIECE_ELEMENTS = 1024;

/**
 * The form of RFC 8785, in pieces. Members are sorted by their UTF-16 code units, which is the order of `sort`.
 * @param {any} value @returns {Generator<string>}
 */
export function* canonicalPieces(value) {
  if (Array.isArray(value)) {
    if (value.length <= PIECE_ELEMENTS) return yield canonical(value);
    for (let at = 0; at < value.length; at += PIECE_ELEMENTS) {
      yield `${at === 0 ? "[" : ","}${canonical(value.slice(at, at + PIECE_ELEMENTS)).slice(1, -1)}`;
    }
    return yield "]";
  }
  if (!isObject(value)) return yield JSON.stringify(value);
  let separator = "{";
  for (const name of Object.keys(value).sort()) {
    yield `${separator}${JSON.stringify(name)}:`;
    yield* canonicalPieces(value[name]);
    separator = ",";
  }
  return yield separator === "{" ? "{}" : "}";
}

/** @param {any} value @returns {string} */
export function canonical(value) {
  if (Array.isArray(value)) return value.some(hasObject) ? `[${value.map(canonical).join(",")}]` : JSON.stringify(value);
  return isObject(value) ? [...canonicalPieces(value)].join("") : JSON.stringify(value);
}

/** @param {any} value @returns {boolean} */
function hasObject(value) {
  return typeof value === "object" && value !== null && (!Array.isArray(value) || value.some(hasObject));
}
