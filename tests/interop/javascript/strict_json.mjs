// JSON as section 1.4 allows it, and the one form of it that a digest is taken of (RFC 8785).
//
// JSON.parse does not do: it takes the last of two members of one name, rounds long integers, reads 1.0 as 1,
// nests without bound, and keeps half of a surrogate pair.

export const MAX_DEPTH = 64;
const LARGEST = "9007199254740992"; // 2^53, by its digits: as a number, 2^53 + 1 would round to it

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /(-?)(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const LITERALS = [["true", true], ["false", false], ["null", null]];

/** What stands there is no JSON text that the protocol takes. */
export class JSONError extends Error {}

/** A whole number that was written with a fraction or an exponent, such as 1.0: a number, but no integer. */
export class Decimal extends Number {}

/** The value of a JSON text. Objects have no prototype: `__proto__` is a member like any other. */
export function parse(text) {
  let at = 0;

  const fail = (what) => {
    throw new JSONError(`${what} at ${at}`);
  };
  const skip = () => {
    SPACE.lastIndex = at;
    SPACE.test(text);
    at = SPACE.lastIndex;
  };

  function string() {
    let end = at;
    do {
      end = text.indexOf('"', end + 1);
      if (end < 0) fail("a string without an end");
    } while (escapes(end));
    let value;
    try {
      value = JSON.parse(text.slice(at, end + 1)); // a string alone is what JSON.parse reads by the letter
    } catch {
      fail("a malformed string");
    }
    if (!value.isWellFormed()) fail("a lone surrogate");
    at = end + 1;
    return value;
  }

  function escapes(quote) {
    let backslashes = 0;
    while (text[quote - 1 - backslashes] === "\\") backslashes += 1;
    return backslashes % 2 === 1;
  }

  function number() {
    NUMBER.lastIndex = at;
    const found = NUMBER.exec(text);
    if (!found) fail("no JSON");
    const [all, , digits, fraction, exponent] = found;
    const value = Number(all);
    if (!Number.isFinite(value)) fail("a number that is not finite");
    at += all.length;
    if (fraction !== undefined || exponent !== undefined) return Number.isInteger(value) ? new Decimal(value) : value;
    if (digits.length > LARGEST.length || (digits.length === LARGEST.length && digits > LARGEST)) {
      fail("an integer beyond 2^53");
    }
    return value;
  }

  function array(depth) {
    const value = [];
    at += 1;
    skip();
    if (text[at] === "]") return (at += 1), value;
    for (;;) {
      value.push(any(depth + 1));
      skip();
      if (text[at] === "]") return (at += 1), value;
      if (text[at] !== ",") fail("neither , nor ]");
      at += 1;
    }
  }

  function object(depth) {
    const value = Object.create(null);
    at += 1;
    skip();
    if (text[at] === "}") return (at += 1), value;
    for (;;) {
      skip();
      if (text[at] !== '"') fail("no name of a member");
      const name = string();
      if (name in value) fail("two members of one name");
      skip();
      if (text[at] !== ":") fail("no colon");
      at += 1;
      value[name] = any(depth + 1);
      skip();
      if (text[at] === "}") return (at += 1), value;
      if (text[at] !== ",") fail("neither , nor }");
      at += 1;
    }
  }

  function any(depth) {
    skip();
    const first = text[at];
    if (first === '"') return string();
    if (first === "{" || first === "[") {
      if (depth >= MAX_DEPTH) fail(`deeper than ${MAX_DEPTH} levels`);
      return first === "{" ? object(depth) : array(depth);
    }
    for (const [word, value] of LITERALS) {
      if (text.startsWith(word, at)) return (at += word.length), value;
    }
    return number();
  }

  const value = any(0);
  skip();
  if (at < text.length) fail("more than one JSON text");
  return value;
}

/** The RFC 8785 form: members by their UTF-16 units, which is how JavaScript sorts; numbers as ECMAScript writes them. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const members = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${members.join(",")}}`;
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Number);
}

/** Whether a value is an integer from `least` to `most`, written as one. */
export function isInteger(value, least, most = 2 ** 53) {
  return typeof value === "number" && Number.isInteger(value) && value >= least && value <= most;
}

/** The same value as ordinary JavaScript data, which its receiver may keep and change. */
export function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Decimal) return Number(value);
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, plain(member)]));
}
