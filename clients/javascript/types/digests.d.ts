/**
 * CRC-32 of ISO-HDLC of the UTF-8 of a text, which may continue the CRC of the text before it.
 * @param {string} text @param {number} [before] CRC of the preceding text.
 */
export function crc32(text: string, before?: number): number;
/**
 * Digest of the final items of a job: 16 hexadecimal digits of the SHA-256 of their RFC 8785 form. A long digest lets
 * other tasks run in between, so the items must not change until it is complete.
 * @param {any[]} items @returns {Promise<string>}
 */
export function digest(items: any[]): Promise<string>;
/** SHA-256 of bytes that arrive in pieces. */
export class Sha256 {
    /** @param {Uint8Array} bytes */
    update(bytes: Uint8Array): this;
    /** The digest in lower-case hexadecimal digits. */
    hex(): string;
    #private;
}
