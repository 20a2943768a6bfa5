// One request, one connection; bytes as they come, no redirect followed, nothing decompressed, every wait bounded.

import * as plain from "node:http";
import * as secure from "node:https";

/** The connection broke, or nothing came in time. `sent` is false where the request cannot have arrived. */
export class NetworkError extends Error {
  constructor(message, { sent = true, silent = false } = {}) {
    super(message);
    this.sent = sent;
    this.silent = silent;
  }
}

/** A longer timer is over at once. 2.5 heartbeats may be longer. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Send, and wait for the status line for at most `withinMs`. */
export function request(method, url, { headers = {}, body = null, withinMs }) {
  return new Promise((resolve, reject) => {
    const library = new URL(url).protocol === "https:" ? secure : plain;
    const sending = library.request(url, { method, headers, agent: false });
    const timer = setTimeout(() => sending.destroy(new NetworkError(`no answer in ${withinMs} ms`, { silent: true })), withinMs);
    sending.on("response", (response) => {
      clearTimeout(timer);
      resolve(new Answer(url, sending, response));
    });
    sending.on("error", (error) => {
      clearTimeout(timer);
      const sent = error.code !== "ECONNREFUSED" && error.code !== "ENOTFOUND";
      reject(error instanceof NetworkError ? error : new NetworkError(String(error.message), { sent }));
    });
    sending.end(body);
  });
}

class Answer {
  #sending;
  #chunks;

  constructor(url, sending, response) {
    this.url = url;
    this.status = response.statusCode;
    this.headers = response.headers;
    this.#sending = sending;
    this.#chunks = response[Symbol.asyncIterator]();
  }

  /** The next bytes, null at the end of the body. */
  async next(withinMs) {
    const read = this.#chunks.next();
    read.catch(() => {}); // after a time-out nobody waits for it any more
    let timer;
    const silence = new Promise((_, reject) => {
      const within = Math.min(withinMs, LONGEST_TIMER_MS);
      timer = setTimeout(() => reject(new NetworkError(`no byte in ${Math.round(within)} ms`, { silent: true })), within);
    });
    try {
      const { done, value } = await Promise.race([read, silence]);
      return done ? null : value;
    } catch (error) {
      this.close();
      throw error instanceof NetworkError ? error : new NetworkError(String(error.message));
    } finally {
      clearTimeout(timer);
    }
  }

  /** The whole body as text. */
  async text({ withinMs, limit }) {
    const parts = [];
    let size = 0;
    const until = Date.now() + withinMs;
    for (let chunk; (chunk = await this.next(Math.max(1, until - Date.now()))) !== null; ) {
      parts.push(chunk);
      size += chunk.length;
      if (size > limit) {
        this.close();
        throw new NetworkError(`a body of more than ${limit} bytes`);
      }
    }
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.concat(parts));
  }

  close() {
    this.#sending.destroy();
  }
}
