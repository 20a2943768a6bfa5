/** CRC-32 and SHA-256 without `crypto.subtle`, which browsers offer only to pages of secure origins. */

import { canonicalPieces } from "./strict_json.js";

const encoder = new TextEncoder();
/** Time in milliseconds after which a long digest lets other tasks run. */
const SLICE_MS = 8;
/** Pieces of text, or blocks of a hash, between two looks at the clock. */
const STEPS_PER_LOOK = 1 << 10;

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});

/** CRC-32 of ISO-HDLC of the UTF-8 of a text. @param {string} text @param {number} [before] CRC-32 of the text before it. */
export function crc32(text, before = 0) {
  let crc = ~before;
  for (const byte of encoder.encode(text)) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff];
  return ~crc >>> 0;
}

/** Constants of SHA-256: first fractional bits of roots of the first primes. @param {number} count @param {number} root */
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
const w = new Int32Array(64);

/** Add a block of 64 bytes to a hash. @param {Int32Array} hash @param {DataView} bytes @param {number} at */
function compress(hash, bytes, at) {
  for (let i = 0; i < 16; i += 1) w[i] = bytes.getInt32(at + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const [x, y] = [w[i - 15], w[i - 2]];
    const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
  }
  let [a, b, c, d, e, f, g, h] = hash;
  for (let i = 0; i < 64; i += 1) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g, g = f, f = e, e = (d + t1) | 0, d = c, c = b, b = a, a = (t1 + t2) | 0;
  }
  for (const [i, word] of [a, b, c, d, e, f, g, h].entries()) hash[i] += word;
}

/** The digest of a job's items. A long one lets other tasks run, which must not change the items. @param {any[]} items */
export async function digest(items) {
  let until = performance.now() + SLICE_MS;
  const pause = async () => {
    if (performance.now() < until) return;
    await new Promise((resolve) => setTimeout(resolve));
    until = performance.now() + SLICE_MS;
  };
  let [text, count] = ["", 0];
  for (const piece of canonicalPieces(items)) {
    text += piece;
    if ((count += 1) % STEPS_PER_LOOK === 0) await pause();
  }
  const data = encoder.encode(text);
  const bytes = new Uint8Array(64 * Math.ceil((data.length + 9) / 64));
  bytes.set(data);
  bytes[data.length] = 0x80;
  const view = new DataView(bytes.buffer);
  view.setBigUint64(bytes.length - 8, BigInt(data.length) * 8n);
  const hash = new Int32Array(constants(8, 2));
  for (let at = 0; at < bytes.length; at += 64) {
    compress(hash, view, at);
    if (at % (64 * STEPS_PER_LOOK) === 0) await pause();
  }
  return Array.from(hash, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("").slice(0, 16);
}
