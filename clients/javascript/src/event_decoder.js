/** Decoder of event streams, for every stream that the WHATWG standard allows. */

const LF = 0x0a;
const CR = 0x0d;
const DIGITS = /^[0-9]+$/;
const MAX_RETRY_MS = 2147483647;

/** An unfinished event is larger than the limit. */
export class EventTooLargeError extends Error {}

/**
 * An event. `id` is null if the block of the event has no `id` field.
 * @typedef {{type: string, data: string, id: string | null, lastEventId: string}} ServerEvent
 */

/** Decodes the stream of one connection. */
export class Decoder {
  /** Parts of the unfinished line. They are joined once, so that an event costs time in proportion to its length. @type {Uint8Array[]} */
  #parts = [];
  /** Number of bytes of the unfinished line. */
  #held = 0;
  /** Length of the data of the unfinished event. */
  #kept = 0;
  #isAfterCr = false;
  #isFirstLine = true;
  #utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  #type = "";
  /** @type {string[]} */
  #data = [];
  /** @type {string | null} */
  #id = null;
  #limit;

  /** @param {{lastEventId?: string, maxEventBytes?: number}} [options] */
  constructor({ lastEventId = "", maxEventBytes = Infinity } = {}) {
    this.lastEventId = lastEventId;
    /** Time of the last `retry` field in milliseconds, or null. @type {number | null} */
    this.retryMs = null;
    this.#limit = maxEventBytes;
  }

  /**
   * The events that a chunk completes. A caller may stop, and take the rest before it passes the next chunk.
   * @param {Uint8Array} chunk @returns {Generator<ServerEvent, void, undefined>}
   */
  *feed(chunk) {
    let start = 0;
    if (this.#isAfterCr && chunk.length > 0) {
      this.#isAfterCr = false;
      if (chunk[0] === LF) start = 1;
    }
    for (let at = start; at < chunk.length; at += 1) {
      if (chunk[at] !== LF && chunk[at] !== CR) continue;
      const line = this.#line(chunk.subarray(start, at));
      if (chunk[at] === CR) {
        if (at + 1 === chunk.length) this.#isAfterCr = true;
        else if (chunk[at + 1] === LF) at += 1;
      }
      start = at + 1;
      if (line !== "") this.#field(line);
      else {
        const event = this.#dispatch();
        if (event) yield event;
      }
    }
    if (start < chunk.length) {
      this.#hold(chunk.length - start);
      this.#parts.push(chunk.slice(start));
    }
  }

  /** @param {Uint8Array} rest */
  #line(rest) {
    this.#hold(rest.length);
    let line = rest;
    if (this.#parts.length > 0) {
      line = new Uint8Array(this.#held);
      let at = 0;
      for (const part of [...this.#parts, rest]) {
        line.set(part, at);
        at += part.length;
      }
      this.#parts = [];
    }
    this.#held = 0;
    const hasMark = this.#isFirstLine && line[0] === 0xef && line[1] === 0xbb && line[2] === 0xbf;
    this.#isFirstLine = false;
    return line.length === 0 ? "" : this.#utf8.decode(hasMark ? line.subarray(3) : line);
  }

  /** @param {number} bytes */
  #hold(bytes) {
    this.#held += bytes;
    if (this.#held + this.#kept > this.#limit) throw new EventTooLargeError(`an event is larger than ${this.#limit} bytes`);
  }

  /** @param {string} line */
  #field(line) {
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") {
      this.#data.push(value);
      this.#kept += value.length + 1;
    } else if (name === "event") this.#type = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    else if (name === "retry" && DIGITS.test(value)) this.retryMs = Math.min(Number(value), MAX_RETRY_MS);
  }

  /** @returns {ServerEvent | null} */
  #dispatch() {
    const [type, data, id] = [this.#type, this.#data, this.#id];
    [this.#type, this.#data, this.#id, this.#kept] = ["", [], null, 0];
    if (id !== null) this.lastEventId = id;
    if (data.length === 0) return null;
    return { type: type || "message", data: data.join("\n"), id, lastEventId: this.lastEventId };
  }
}
