/**
 * CRC-32 and SHA-256 without `crypto.subtle`, which browsers offer only to pages of secure origins.
 *
 * A page that was loaded over plain HTTP from a host other than localhost is not of a secure origin.
 */

import { canonicalPieces } from "./strict_json.js";

const encoder = new TextEncoder();
/** Time in milliseconds after which a long digest lets other tasks run. */
const SLICE_MS = 8;
/** Bytes or UTF-16 code units between two looks at the clock. */
const SLICE_LENGTH = 1 << 16;

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

/**
 * CRC-32 of ISO-HDLC of the UTF-8 of a text, which may continue the CRC of the text before it.
 * @param {string} text @param {number} [before] CRC of the preceding text.
 */
export function crc32(text, before = 0) {
  let crc = ~before;
  for (const byte of encoder.encode(text)) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff];
  return ~crc >>> 0;
}

/**
 * First fractional bits of the square or cube roots of the first primes, which are the constants of SHA-256.
 * @param {number} count @param {number} root
 */
function constants(count, root) {
  const found = new Uint32Array(count);
  for (let [at, candidate] = [0, 2]; at < count; candidate += 1) {
    let isPrime = true;
    for (let each = 2; each * each <= candidate; each += 1) isPrime &&= candidate % each !== 0;
    if (isPrime) found[at++] = (candidate ** (1 / root) % 1) * 2 ** 32;
  }
  return found;
}
const K = constants(64, 3);

/** SHA-256 of bytes that arrive in pieces. */
export class Sha256 {
  #hash = constants(8, 2);
  #words = new Int32Array(64);
  /** Bytes that do not fill a block. */
  #rest = new Uint8Array(0);
  #length = 0;

  /** @param {Uint8Array} piece */
  update(piece) {
    const bytes = new Uint8Array(this.#rest.length + piece.length);
    bytes.set(this.#rest);
    bytes.set(piece, this.#rest.length);
    let at = 0;
    for (; at + 64 <= bytes.length; at += 64) this.#compress(bytes, at);
    this.#rest = bytes.subarray(at);
    this.#length += piece.length;
    return this;
  }

  /** The digest in lower-case hexadecimal digits. */
  hex() {
    const end = new DataView(new ArrayBuffer((this.#rest.length < 56 ? 64 : 128) - this.#rest.length));
    end.setUint8(0, 0x80);
    end.setBigUint64(end.byteLength - 8, BigInt(this.#length) * 8n);
    this.update(new Uint8Array(end.buffer));
    return Array.from(this.#hash, (word) => word.toString(16).padStart(8, "0")).join("");
  }

  /** @param {Uint8Array} bytes @param {number} at */
  #compress(bytes, at) {
    const w = this.#words;
    for (let i = 0; i < 16; i += 1, at += 4) {
      w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; i += 1) {
      const [x, y] = [w[i - 15], w[i - 2]];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    const hash = this.#hash;
    let a = hash[0] | 0, b = hash[1] | 0, c = hash[2] | 0, d = hash[3] | 0;
    let e = hash[4] | 0, f = hash[5] | 0, g = hash[6] | 0, h = hash[7] | 0;
    for (let i = 0; i < 64; i += 1) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g, g = f, f = e, e = (d + t1) | 0, d = c, c = b, b = a, a = (t1 + t2) | 0;
    }
    hash[0] += a, hash[1] += b, hash[2] += c, hash[3] += d, hash[4] += e, hash[5] += f, hash[6] += g, hash[7] += h;
  }
}

/**
 * Digest of the final items of a job: 16 hexadecimal digits of the SHA-256 of their RFC 8785 form. A long digest lets
 * other tasks run in between, so the items must not change until it is complete.
 * @param {any[]} items @returns {Promise<string>}
 */
export async function digest(items) {
  const hash = new Sha256();
  let until = performance.now() + SLICE_MS;
  let text = "";
  const flush = async () => {
    const bytes = encoder.encode(text);
    text = "";
    for (let at = 0; at < bytes.length; at += SLICE_LENGTH) {
      hash.update(bytes.subarray(at, at + SLICE_LENGTH));
      if (performance.now() < until) continue;
      await new Promise((resolve) => setTimeout(resolve));
      until = performance.now() + SLICE_MS;
    }
  };
  for (const piece of canonicalPieces(items)) {
    text += piece;
    if (text.length >= SLICE_LENGTH) await flush();
  }
  await flush();
  return hash.hex().slice(0, 16);
}
