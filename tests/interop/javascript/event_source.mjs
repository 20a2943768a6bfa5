// EventSource as WHATWG HTML has it, for Node, which has none: so that browser_client.js runs here as it does in a page.

import { Decoder } from "../../../clients/javascript/src/event_decoder.js";
import { request } from "./http.mjs";

export class EventSource extends EventTarget {
  static CONNECTING = 0;
  static OPEN = 1;
  static CLOSED = 2;
  #lastEventId = "";
  #retryMs = 1000;
  #answer = null;

  constructor(url) {
    super();
    this.url = url;
    this.readyState = EventSource.CONNECTING;
    this.onerror = null;
    this.#connect();
  }

  close() {
    this.readyState = EventSource.CLOSED;
    this.#answer?.close();
  }

  async #connect() {
    try {
      const cursor = this.#lastEventId === "" ? {} : { "last-event-id": this.#lastEventId };
      const headers = { accept: "text/event-stream", "cache-control": "no-store", ...cursor };
      this.#answer = await request("GET", this.url, { headers, withinMs: 30_000 });
    } catch {
      return this.#reestablish();
    }
    const [type] = (this.#answer.headers["content-type"] ?? "").split(";");
    if (this.readyState === EventSource.CLOSED) return this.#answer.close();
    if (this.#answer.status !== 200 || type.trim() !== "text/event-stream") return this.#fail();
    this.readyState = EventSource.OPEN;
    const decoder = new Decoder({ lastEventId: this.#lastEventId });
    try {
      for (let chunk; (chunk = await this.#answer.next(600_000)) !== null; ) {
        for (const event of decoder.feed(chunk)) {
          this.#lastEventId = event.lastEventId;
          if (this.readyState === EventSource.CLOSED) return undefined;
          this.dispatchEvent(Object.assign(new Event(event.type), { data: event.data, lastEventId: event.lastEventId }));
        }
        this.#retryMs = decoder.retryMs ?? this.#retryMs;
      }
    } catch {
      // a broken connection ends like one that was closed: both are opened again
    }
    return this.#reestablish();
  }

  #reestablish() {
    if (this.readyState === EventSource.CLOSED) return;
    this.readyState = EventSource.CONNECTING;
    this.onerror?.(new Event("error"));
    setTimeout(() => this.readyState === EventSource.CLOSED || this.#connect(), this.#retryMs);
  }

  #fail() {
    this.close();
    this.onerror?.(new Event("error"));
  }
}
