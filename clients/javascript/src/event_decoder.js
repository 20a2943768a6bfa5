/** Decoder of event streams, for every stream that the WHATWG standard allows. */

import { InvalidData } from "./strict_json.js";

/** @import { ServerEvent } from "./types.js" */

const EMPTY = { type: "", data: "", id: /** @type {string | null} */ (null) };

export class Decoder {
  // Node 24 may lose a second byte order mark if it removes the first one itself.
  #utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
  #isAtStart = true;
  #line = "";
  #isAfterCr = false;
  #event = { ...EMPTY };
  #limit;

  /** @param {{lastEventId?: string, maxEventLength?: number}} [options] `maxEventLength`: limit of an event, in UTF-16 code units. */
  constructor({ lastEventId = "", maxEventLength = Infinity } = {}) {
    this.lastEventId = lastEventId;
    /** Time of the last `retry` field in milliseconds, or null. @type {number | null} */
    this.retryMs = null;
    this.#limit = maxEventLength;
  }

  /** The events that a chunk completes. @param {Uint8Array} chunk @returns {Generator<ServerEvent>} @throws {InvalidData} An event is too long. */
  *feed(chunk) {
    let text = this.#utf8.decode(chunk, { stream: true });
    if (text === "") return;
    if (this.#isAtStart && text[0] === "\ufeff") text = text.slice(1);
    this.#isAtStart = false;
    const lines = (this.#isAfterCr && text[0] === "\n" ? text.slice(1) : text).split(/\r\n|\n|\r/);
    this.#isAfterCr = text.endsWith("\r");
    for (const [at, rest] of lines.entries()) {
      const line = this.#line + rest;
      const isWhole = at < lines.length - 1;
      this.#line = isWhole ? "" : line;
      if (line.length + this.#event.data.length > this.#limit) throw new InvalidData(`an event is larger than ${this.#limit}, the limit maxStateBytes`, "too_large");
      if (isWhole && line !== "") this.#field(line);
      else if (isWhole) {
        const { type, data, id } = this.#event;
        this.#event = { ...EMPTY };
        this.lastEventId = id ?? this.lastEventId;
        if (data !== "") yield { type: type || "message", data: data.slice(0, -1), id, lastEventId: this.lastEventId };
      }
    }
  }

  /** @param {string} line */
  #field(line) {
    const [, name, value] = /** @type {RegExpExecArray} */ (/^([^:]*):? ?([^]*)$/.exec(line));
    if (name === "data") this.#event.data += `${value}\n`;
    else if (name === "event") this.#event.type = value;
    else if (name === "id" && !value.includes("\0")) this.#event.id = value;
    else if (name === "retry" && /^[0-9]+$/.test(value)) this.retryMs = Math.min(Number(value), 2 ** 31 - 1);
  }
}
