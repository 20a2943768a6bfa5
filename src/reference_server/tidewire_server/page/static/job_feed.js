// Follows one job with the JavaScript client, and keeps what the page shows of it. While the tab is hidden, the stream is closed:
// a browser opens at most six connections to a server, over all tabs.

import { AuthenticationError, JobExpiredError, JobNotFoundError, PermissionDeniedError, RequestError } from "./client/index.js";

const MAX_CHANGED = 1_000; // pointers between two frames; with more, everything counts as changed
const BREATH = 10; // ms after which other tasks of the page may run
const PROXY_WAIT = 2_000; // ms after a response that a proxy sent in place of the server

/** Whether a response came from a proxy. It says nothing about the job, so the job is not gone, even with the status 404. */
const isFromProxy = (error) =>
  error instanceof RequestError && error.problem === null && error.status !== null &&
  !(error instanceof AuthenticationError || error instanceof PermissionDeniedError);

/** Wait until a signal aborts, or for a time. */
const aborted = (signal, ms = null) =>
  new Promise((resolve) => {
    if (ms !== null) setTimeout(resolve, ms);
    signal.addEventListener("abort", resolve, { once: true });
  });

export class JobFeed {
  #connected = false; // whether the stream was open before
  #stop = new AbortController();
  #changed = new Map(); // pointers by item; null for everything
  #status = "";
  #closed = false;

  endpoint = null;
  startedAt = null;
  endedAt = null;
  error = null;
  lost = null; // why there is nothing to follow
  gone = false; // whether the server does not have the job any more
  received = 0;
  resumes = 0;
  /** state: connecting, live, waiting or hidden; when the next attempt follows; the last event */
  connection = { state: "connecting", retryAt: null, cursor: null };
  tracksChanges = false;
  onChange = () => {};
  onConnection = () => {};
  onStatus = () => {};

  /** @param {import("./client/index.js").Client} client  @param {string} id */
  constructor(client, id) {
    this.job = client.batchJob(id, { listener: (event) => this.#heard(event) });
  }

  /** Learn which endpoint the job belongs to, if the caller does not know it: `known` is an entry of a list of jobs. */
  async opened(known) {
    const { signal } = this.#stop;
    try {
      const job = known ?? (await this.job.read({ signal }));
      this.endpoint = job.endpoint;
      this.#readTimes(job);
    } catch (error) {
      if (this.#closed) return;
      if (!isFromProxy(error)) return this.#failed(error);
      await this.#waitForServer(error, signal);
      await this.opened(known);
    }
  }

  #readTimes(job) {
    this.startedAt = Date.parse(job.started_at) || null;
    this.endedAt = Date.parse(job.ended_at) || null;
  }

  // ---- what is known of the job --------------------------------------------------------------------------------

  get ended() {
    return this.job.ended;
  }

  get status() {
    if (this.gone) return "lost";
    return this.job.state?.status ?? (this.lost === null ? "queued" : "unknown");
  }

  /** Status of each item. */
  get items() {
    return this.job.state?.items.map(({ status }) => status) ?? [];
  }

  /** The value of an item now. It is not a copy: read it at once. */
  value(index) {
    return this.job.state?.items[index]?.value;
  }

  itemError(index) {
    return this.job.state?.items[index]?.error ?? null;
  }

  /** The JSON Pointers of what changed in an item since the last call; null for everything. */
  takeChanged(index) {
    const found = this.#changed.has(index) ? this.#changed.get(index) : this.tracksChanges ? new Set() : null;
    this.#changed.delete(index);
    return found;
  }

  // ---- following -------------------------------------------------------------------------------------------------

  /** Follow the job to its end. @param {string} lostText message if the server does not know the job */
  async follow(lostText) {
    const again = () => this.#stop.abort();
    document.addEventListener("visibilitychange", again);
    addEventListener("online", again);
    while (!this.#closed && !this.ended && this.lost === null) {
      this.#stop = new AbortController();
      const { signal } = this.#stop;
      try {
        if (document.hidden) await this.#whileHidden(signal);
        else await this.#read(signal);
      } catch (error) {
        if (signal.aborted) continue;
        if (isFromProxy(error)) await this.#waitForServer(error, signal);
        else this.#failed(error, lostText);
      }
    }
    document.removeEventListener("visibilitychange", again);
    removeEventListener("online", again);
    this.#told();
    if (this.#closed || !this.ended || this.endedAt !== null) return;
    // The job may have ended long before the page read its end, and only the server knows when.
    await this.job.read().then((job) => this.#readTimes(job), () => {});
    this.endedAt ??= Date.now();
    this.onChange();
  }

  async #read(signal) {
    let breath = performance.now();
    for await (const update of this.job.updates({ signal })) {
      this.received += 1;
      this.#note(update);
      this.onChange();
      if (performance.now() < breath + BREATH) continue;
      await new Promise((resolve) => setTimeout(resolve));
      breath = performance.now();
    }
  }

  /** Wait for a time after a response that a proxy sent in place of the server. */
  async #waitForServer(error, signal) {
    this.#moved({ state: "lost", lastEventId: this.job.lastEventId, why: error.message, retryInMs: PROXY_WAIT });
    await aborted(signal, PROXY_WAIT);
  }

  async #whileHidden(signal) {
    this.#connection("hidden");
    await aborted(signal);
    this.#connection("connecting");
  }

  #note(update) {
    if (!this.tracksChanges) return;
    const { index } = update, ops = update.ops;
    const known = this.#changed.has(index) ? this.#changed.get(index) : new Set();
    for (const [op, path] of ops ?? []) {
      // An insertion or a deletion moves the later elements.
      known?.add(op === "i" || op === "d" ? path.slice(0, path.lastIndexOf("/")) : path);
    }
    this.#changed.set(index, ops === null || known === null || known.size > MAX_CHANGED ? null : known);
  }

  #heard(event) {
    if (event.type === "connection") this.#moved(event);
    else if (event.type === "end") this.error = event.error;
    else if (event.type === "status" && event.status === "running") this.startedAt ??= Date.now();
    this.#told();
  }

  #moved({ state, lastEventId, why, retryInMs }) {
    if (state === "connecting" && this.connection.state !== "waiting") this.#connection("connecting");
    if (state === "connected" || state === "polling") {
      const resumed = this.connection.state === "waiting";
      if (resumed) this.resumes += 1;
      const after = lastEventId === null ? "from the beginning" : `after event ${lastEventId}`;
      this.#connection("live", lastEventId);
      this.onConnection({ text: `${resumed ? "Resumed" : this.#connected ? "Continued" : "Connected"} ${after}${resumed ? ": nothing is missing." : "."}`, bad: false });
      this.#connected = true;
    }
    if (state === "lost" || state === "resync") {
      this.#connection("waiting", lastEventId, Date.now() + (retryInMs ?? 0));
      this.onConnection({ text: `Lost ${lastEventId === null ? "" : `after event ${lastEventId}`}: ${why ?? "no reason is known"}.`, bad: true });
    }
  }

  #connection(state, cursor = this.job.lastEventId, retryAt = null) {
    this.connection = { state, cursor, retryAt };
    this.onChange();
  }

  #failed(error, lostText) {
    if (error instanceof JobNotFoundError) this.lost = lostText ?? "The server does not know this job.";
    else if (error instanceof JobExpiredError) this.lost = "This job has expired: the server has deleted its result.";
    else if (error instanceof AuthenticationError) this.lost = "The server no longer knows you. Reload the page to sign in again.";
    else this.lost = error.message;
    this.gone = ["job_not_found", "job_expired"].includes(error.code);
  }

  #told() {
    if (this.status !== this.#status) this.onStatus((this.#status = this.status));
    this.onChange();
  }

  close() {
    this.#closed = true;
    this.#stop.abort();
  }
}
