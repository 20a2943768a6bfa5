// The bytes of the tokens of an endpoint, and how they become text.

const decoder = new TextDecoder();

export class Vocabulary {
  #tokens;
  #special;

  /** @param {{tokens: string[], special?: number[]}} resource bytes in base64, and the ids that add nothing to a text */
  constructor({ tokens, special = [] }) {
    this.#tokens = tokens;
    this.#special = new Set(special);
  }

  /** The bytes of a token, as a string with one character per byte. */
  bytes(id) {
    return this.#special.has(id) ? "" : atob(this.#tokens[id] ?? "");
  }

  /** The text of one token alone, with U+FFFD for bytes that are not a whole character. */
  text(id) {
    return decode(atob(this.#tokens[id] ?? ""));
  }
}

function decode(bytes) {
  return decoder.decode(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)));
}

/** Split bytes into the text of their whole characters, and the bytes of a character that is not complete. */
export function wholeCharacters(bytes) {
  let cut = bytes.length;
  // A character has at most four bytes; look for one that begins near the end and is longer than what is there.
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes.charCodeAt(bytes.length - back);
    if ((byte & 0xc0) === 0x80) continue;
    if ((byte >= 0xc2 ? (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2) : 1) > back) cut = bytes.length - back;
    break;
  }
  return [decode(bytes.slice(0, cut)), bytes.slice(cut)];
}
