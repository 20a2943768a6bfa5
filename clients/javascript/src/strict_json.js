/**
 * JSON as the protocol allows it, deep copies, and the canonical form of RFC 8785. `JSON.parse` reads `1.0` as the integer 1.
 * `parse` replaces such a number by an object that `isInteger` rejects and `copy` converts to a number.
 */

const MAX_DEPTH = 64;
const LONE_SURROGATE = /\p{Surrogate}/u;
/** Numbers that may be an integer beyond 2^53, or an integer that is written with a fraction or an exponent. */
const UNUSUAL_NUMBER = /-?\d[\d.]{15,}(?:[eE][+-]?\d+)?|-?\d+(?:\.\d+)?[eE][+-]?\d+|-?\d+\.0+(?!\d)/;
const OUTSIDE_OF_STRINGS = new RegExp(`"|\\\\.|${UNUSUAL_NUMBER.source}`, "g");
/** Name of the only member of the object that stands for a number such as 1.0. A server cannot guess it. */
const DECIMAL = `decimal ${Math.random()} ${Math.random()}`;

/** Data from a server that the protocol forbids, or that this client does not know. The client continues from a snapshot. */
export class InvalidData extends Error {
  /** @param {string} message @param {"malformed" | "unknown" | "check" | "unstable" | "too_large"} [kind] */
  constructor(message, kind = "malformed") {
    super(message);
    this.kind = kind;
  }
}

/** @param {string} text @returns {any} @throws {InvalidData} The text is not JSON that the protocol allows. */
export function parse(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new InvalidData(`not JSON: ${/** @type {Error} */ (error).message}`);
  }
  const bare = text.replace(/\\./g, "").replace(/"[^"]*"/g, "");
  const members = countMembers(value, 0, text.includes("\\u"));
  if (members !== bare.split(":").length - 1) throw new InvalidData("two members of an object have the same name");
  return UNUSUAL_NUMBER.test(bare) ? JSON.parse(withDecimals(text)) : value;
}

/** The number of members of a value that the protocol allows. @param {any} value @param {number} depth @param {boolean} hasEscapes */
function countMembers(value, depth, hasEscapes) {
  if (typeof value === "number" && !Number.isFinite(value)) throw new InvalidData("a number is not finite");
  if (hasEscapes && typeof value === "string" && LONE_SURROGATE.test(value)) throw new InvalidData("a string contains a lone surrogate");
  if (typeof value !== "object" || value === null) return 0;
  if (depth === MAX_DEPTH) throw new InvalidData(`arrays and objects are nested deeper than ${MAX_DEPTH} levels`);
  const names = Array.isArray(value) ? [] : Object.keys(value);
  let count = names.length;
  for (const name of names) countMembers(name, depth, hasEscapes);
  for (const each of Object.values(value)) count += countMembers(each, depth + 1, hasEscapes);
  return count;
}

/**
 * The first part of a value that a request cannot contain, or null. `JSON.stringify` would send null instead of NaN, `{}` instead of
 * bytes, a Map or a promise, and nothing instead of a function.
 * @param {any} value @param {number} [depth] @returns {{pointer: string, why: string} | null}
 */
export function violation(value, depth = 0) {
  /** @param {string} why */
  const found = (why) => ({ pointer: "", why });
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer || value instanceof Blob) return found("binary data is not JSON; send bytes as a base64 text, and numbers as an array");
  if (value instanceof Map || value instanceof Set) return found("a Map or a Set is not JSON; send an object or an array");
  if (typeof value?.toJSON === "function") value = value.toJSON();
  if (typeof value?.then === "function") return found("a promise is not JSON; await the promise");
  if (typeof value === "function" || typeof value === "symbol") return found(`a ${typeof value} is not JSON`);
  if (typeof value === "bigint") return found("a BigInt is not a JSON number; send a number, or a string");
  if (typeof value === "number" && !Number.isFinite(value)) return found(`${value} is not a JSON number; send null, or a string`);
  // From 1e21, a number is written with an exponent, so it is not an integer for the server.
  const isTooLarge = typeof value === "number" && Number.isInteger(value) && Math.abs(value) > 2 ** 53 && Math.abs(value) < 1e21;
  if (isTooLarge) return found("integer beyond ±2^53; send it as a string");
  if (typeof value === "string" && LONE_SURROGATE.test(value)) return found("lone surrogate");
  if (typeof value !== "object" || value === null) return null;
  if (depth === MAX_DEPTH) return found(`nested deeper than ${MAX_DEPTH} levels`);
  for (const [name, each] of Array.isArray(value) ? value.entries() : Object.entries(value)) {
    const inside = violation(name, depth) ?? violation(each, depth + 1);
    if (inside) return { ...inside, pointer: `/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}${inside.pointer}` };
  }
  return null;
}

/** @param {string} text */
function withDecimals(text) {
  let isString = false;
  return text.replace(OUTSIDE_OF_STRINGS, (token) => {
    if (token === '"') isString = !isString;
    if (isString || token === '"') return token;
    if (/[.eE]/.test(token)) return Number.isInteger(Number(token)) ? `{"${DECIMAL}":${token}}` : token;
    if (BigInt(token) > 2n ** 53n || BigInt(token) < -(2n ** 53n)) throw new InvalidData(`the integer ${token.slice(0, 80)} is beyond 2^53`);
    return token;
  });
}

/** Whether a value is an integer, written as one. @param {unknown} value @param {number} least @param {number} [most] @returns {value is number} */
export function isInteger(value, least, most = 2 ** 53) {
  return typeof value === "number" && Number.isInteger(value) && value >= least && value <= most;
}

/** @param {unknown} value @returns {value is Record<string, any>} */
export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !Object.hasOwn(value, DECIMAL);
}

/** Set a member, even if its name is `__proto__`. @param {Record<string, any>} object @param {string} name @param {any} value */
export function setMember(object, name, value) {
  if (name !== "__proto__") object[name] = value;
  else Object.defineProperty(object, name, { value, writable: true, enumerable: true, configurable: true });
}

/** A deep copy of a JSON value, in which each number is a number. @param {any} value @returns {any} */
export function copy(value) {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(copy);
  if (Object.hasOwn(value, DECIMAL)) return value[DECIMAL];
  const members = /** @type {Record<string, any>} */ ({});
  for (const name of Object.keys(value)) setMember(members, name, copy(value[name]));
  return members;
}

/** Whether two JSON values are equal, regardless of the order of members. @param {any} one @param {any} other @returns {boolean} */
export function same(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  const names = Object.keys(one);
  if (Array.isArray(one) !== Array.isArray(other) || names.length !== Object.keys(other).length) return false;
  return names.every((name) => Object.hasOwn(other, name) && same(one[name], other[name]));
}

/** The form of RFC 8785, in pieces. `sort` orders members by UTF-16 code units, as it requires. @param {any} value @returns {Generator<string>} */
export function* canonicalPieces(value) {
  if (typeof value !== "object" || value === null) return yield JSON.stringify(value);
  const isArray = Array.isArray(value);
  let separator = "";
  yield isArray ? "[" : "{";
  for (const name of isArray ? value.keys() : Object.keys(value).sort()) {
    const start = isArray ? separator : `${separator}${JSON.stringify(name)}:`;
    const each = value[name];
    if (typeof each === "object") yield start;
    if (typeof each === "object") yield* canonicalPieces(each);
    else yield start + JSON.stringify(each);
    separator = ",";
  }
  yield isArray ? "]" : "}";
}
