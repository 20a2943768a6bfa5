// Bytes in, events out: section 3.3, for every event stream and not only for what a server of this protocol writes.

const LF = 0x0a;
const CR = 0x0d;
const BOM = [0xef, 0xbb, 0xbf];
const DIGITS = /^[0-9]+$/;
const MAX_RETRY_MS = 2147483647;

/** An unfinished event passed the bound on its memory. */
export class EventTooLarge extends Error {}

/** Decodes the stream of one connection; what outlives a connection is `lastEventId`. */
export class Decoder {
  #parts = []; // of the unfinished line: joined once, at its end, so that an event costs its length
  #held = 0; // bytes of the unfinished line
  #kept = 0; // of the data of the unfinished event; comments and fields that are passed over hold nothing
  #afterCR = false;
  #firstLine = true;
  #text = new TextDecoder("utf-8", { ignoreBOM: true });
  #block = emptyBlock();
  #limit;

  constructor({ lastEventId = "", limit = Infinity } = {}) {
    this.lastEventId = lastEventId;
    this.retryMs = null;
    this.#limit = limit;
  }

  /** The events that `chunk` completes: `type`, `data`, `lastEventId`, and `id`, null where the event has no id field. */
  *feed(chunk) {
    let start = 0;
    if (this.#afterCR && chunk.length > 0) {
      this.#afterCR = false;
      if (chunk[0] === LF) start = 1;
    }
    for (let at = start; at < chunk.length; at += 1) {
      if (chunk[at] !== LF && chunk[at] !== CR) continue;
      const line = this.#line(chunk.subarray(start, at));
      if (chunk[at] === CR) {
        if (at + 1 === chunk.length) this.#afterCR = true;
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

  #line(rest) {
    this.#hold(rest.length);
    this.#held = 0;
    const joined = this.#parts.length === 0 ? rest : Buffer.concat([...this.#parts, rest]);
    this.#parts = [];
    const marked = this.#firstLine && BOM.every((byte, at) => joined[at] === byte);
    this.#firstLine = false;
    // No character spans a line end, so that decoding line by line replaces what decoding the whole would.
    return this.#text.decode(marked ? joined.subarray(BOM.length) : joined);
  }

  #hold(bytes) {
    this.#held += bytes;
    if (this.#held + this.#kept > this.#limit) throw new EventTooLarge(`an event of more than ${this.#limit} bytes`);
  }

  #field(line) {
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") {
      this.#block.data.push(value);
      this.#kept += value.length + 1;
    } else if (name === "event") this.#block.type = value;
    else if (name === "id" && !value.includes("\0")) this.#block.id = value;
    else if (name === "retry" && DIGITS.test(value)) this.retryMs = Math.min(Number(value), MAX_RETRY_MS);
  }

  #dispatch() {
    const { type, data, id } = this.#block;
    this.#block = emptyBlock();
    this.#kept = 0;
    if (id !== null) this.lastEventId = id;
    if (data.length === 0) return null;
    return { type: type || "message", data: data.join("\n"), id, lastEventId: this.lastEventId };
  }
}

function emptyBlock() {
  return { type: "", data: [], id: null };
}
