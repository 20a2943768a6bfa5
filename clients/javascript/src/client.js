/** `Client`, which submits jobs to a server and attaches to jobs. */

import { onAbort } from "./abort_callbacks.js";
import { CheckpointError, TotalTimeoutError } from "./errors.js";
import { BatchJob, Job } from "./job.js";
import { FITS } from "./messages.js";
import { Session, sleep } from "./session.js";
import { textOfTokens } from "./tokens.js";

/** @import { AttachOptions, Checkpoint, ClientOptions, JobParts, LoopOptions, SubmitOptions, WaitOptions } from "./types.js" */

export class Client {
  #vocabularies = /** @type {Map<string, (id: number) => string>} */ (new Map());

  /** @param {string | URL} url URL of the server. In a browser, it may be relative to the page. @param {ClientOptions} [options] */
  constructor(url, options = {}) {
    const base = new URL(url, globalThis.location?.href);
    if (!/^https?:$/.test(base.protocol)) throw new TypeError(`the URL of a server begins with http:// or https://, unlike ${base.href}`);
    if (base.username || base.password) throw new TypeError("pass credentials as the option token, and not in the URL");
    /** URL of the server, without a slash at its end. */
    this.url = `${base.origin}${base.pathname}`.replace(/\/+$/, "");
    this.options = options;
    this.session = new Session(this.url, options);
    this.session.retryState(); // throws if a limit is out of range
  }

  /**
   * Start a job with one input. A lost response never starts the job twice.
   * @param {string} endpoint @param {any} [input] By default `{}`, with which the endpoint uses its defaults. @param {SubmitOptions} [options]
   */
  async submit(endpoint, input = {}, options = {}) {
    return new Job(this, await this.#submit(endpoint, { input }, options));
  }

  /**
   * Start a job, wait for its end, and return its value. If the signal aborts or the time passes, the job continues.
   * @param {string} endpoint @param {any} [input] @param {SubmitOptions & WaitOptions} [options] @returns {Promise<any>}
   */
  async run(endpoint, input = {}, options = {}) {
    const { timeoutMs = this.options.timeoutMs ?? Infinity, signal, idempotencyKey = await randomKey() } = options;
    const until = performance.now() + timeoutMs;
    const end = new AbortController();
    const late = () => {
      const advice = `The job may have started. Submit again with idempotencyKey: ${JSON.stringify(idempotencyKey)}, or look for it in client.jobs().`;
      end.abort(new TotalTimeoutError(`the time of ${timeoutMs} ms has passed, and the submit has no response`, { advice }));
    };
    const abort = () => end.abort(signal?.reason);
    const removeAbort = onAbort(signal, abort);
    if (signal?.aborted) abort();
    sleep(timeoutMs, end.signal).then(late, () => {});
    const ended = () => {
      removeAbort();
      end.abort();
    };
    const job = await this.submit(endpoint, input, { ...options, idempotencyKey, signal: end.signal }).finally(ended);
    return job.result({ timeoutMs: until - performance.now(), signal });
  }

  /**
   * Start a job with many inputs.
   * @param {string} endpoint @param {any[]} inputs
   * @param {SubmitOptions & {shared?: Record<string, any>}} [options] `shared`: members that the server adds to each input.
   */
  async submitBatch(endpoint, inputs, { shared, ...options } = {}) {
    return new BatchJob(this, await this.#submit(endpoint, { inputs, shared }, options));
  }

  /**
   * A job that exists. This call sends no request.
   * @param {string | AttachOptions} job Id or URL of the job, or options with a checkpoint. @param {AttachOptions} [options]
   */
  job(job, options) {
    return new Job(this, this.#attach(job, options));
  }

  /** A job with many inputs that exists, as `job`. @param {string | AttachOptions} job @param {AttachOptions} [options] */
  batchJob(job, options) {
    return new BatchJob(this, this.#attach(job, options));
  }

  /** The server's endpoints, capabilities and limits. @param {LoopOptions} [options] @returns {Promise<any>} */
  async discover({ signal } = {}) {
    return (await this.session.request(`${this.url}/v1`, "discovery", { signal })).body;
  }

  /** The description of an endpoint, with its schemas. @param {string} endpoint @param {LoopOptions} [options] @returns {Promise<any>} */
  async describe(endpoint, { signal } = {}) {
    return (await this.session.request(this.#urlOf("endpoints", endpoint), "endpoint", { signal })).body;
  }

  /** The caller's own jobs, newest first. @param {LoopOptions & {limit?: number}} [options] @returns {Promise<any[]>} */
  async jobs({ limit = 100, signal } = {}) {
    const found = [];
    for (let url = `${this.url}/v1/jobs`; url !== "" && found.length < limit; ) {
      const { body, connection } = await this.session.request(url, "jobs", { signal });
      found.push(...body.jobs);
      // A faulty server could send empty pages forever.
      url = (body.next && body.jobs.length > 0 && this.session.link(body.next, connection.url)) || "";
    }
    return found.slice(0, limit);
  }

  /** The texts of an endpoint's token ids, or null if it has no vocabulary. @param {string} endpoint */
  async vocabulary(endpoint) {
    const known = this.#vocabularies.get(endpoint);
    if (known) return known;
    const url = this.#urlOf("endpoints", endpoint);
    const { body: description, connection } = await this.session.request(url, "endpoint");
    const link = description.links?.vocabulary;
    if (typeof link !== "string") return null;
    const { body } = await this.session.request(this.session.link(link, connection.url) ?? `${url}/vocabulary`, "vocabulary");
    this.#vocabularies.set(endpoint, textOfTokens(body));
    return this.#vocabularies.get(endpoint) ?? null;
  }

  /** @param {"endpoints" | "jobs"} kind @param {unknown} name Name of an endpoint, or id of a job. */
  #urlOf(kind, name) {
    if (typeof name !== "string" || !FITS.name(name)) throw new TypeError(`the name of an endpoint or a job must be a string other than "", "." and "..", not ${JSON.stringify(name)}`);
    return `${this.url}/v1/${kind}/${encodeURIComponent(name)}`;
  }

  /** @param {string} endpoint @param {Record<string, any>} members @param {SubmitOptions} options @returns {Promise<JobParts>} */
  async #submit(endpoint, members, { idempotencyKey, signal, listener }) {
    idempotencyKey ??= await randomKey();
    if (!/^[\x21-\x7e]{1,255}$/.test(idempotencyKey)) throw new TypeError("idempotencyKey must be 1 to 255 visible ASCII characters");
    const { onDisconnect, graceMs, deadlineMs } = this.options;
    const json = { ...members, on_disconnect: onDisconnect, grace_ms: graceMs, deadline_ms: deadlineMs };
    const { body, connection } = await this.session.request(`${this.#urlOf("endpoints", endpoint)}/jobs`, "job", { json, key: idempotencyKey, signal });
    const url = this.session.link(connection.headers.get("location") ?? body.links.self, connection.url) ?? this.#urlOf("jobs", body.id);
    return { id: body.id, url, eventsUrl: this.session.link(body.links.events, connection.url), initial: body, listener };
  }

  /** @param {string | AttachOptions} job @param {AttachOptions} [options] @returns {JobParts} */
  #attach(job, options = {}) {
    const { checkpoint, listener } = typeof job === "string" ? options : job;
    const saved = checkpoint === undefined ? null : readCheckpoint(checkpoint);
    const id = typeof job === "string" ? this.#idOf(job) : saved?.job;
    if (!id) throw new TypeError("pass the id of the job, or a checkpoint");
    if (saved && (saved.job !== id || (saved.url ?? this.url) !== this.url)) {
      const advice = "If both URLs lead to the same server, set the member url of the checkpoint to null.";
      throw new CheckpointError(`the checkpoint belongs to job ${saved.job} of ${saved.url ?? this.url}, not to job ${id} of ${this.url}`, { advice });
    }
    return { id, url: this.#urlOf("jobs", id), checkpoint: saved, listener };
  }

  /** @param {string} job */
  #idOf(job) {
    if (!job.includes("/")) return job;
    const url = new URL(job, `${this.url}/`);
    const [, id] = /\/v1\/jobs\/([^/]+)\/?$/.exec(url.pathname) ?? [];
    if (!id || !url.href.startsWith(`${this.url}/`)) throw new TypeError(`${job} is not the URL of a job of ${this.url}`);
    return decodeURIComponent(id);
  }
}

/** 128 random bits. Node 18 has no global `crypto`, and browsers have it in pages of insecure origins, too. */
async function randomKey() {
  const name = "node:crypto"; // a variable and comments, so that bundlers for browsers do not look for the module, and do not warn
  const crypto = globalThis.crypto ?? (await import(/* webpackIgnore: true */ /* @vite-ignore */ name)).webcrypto;
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}

/** @param {string | Checkpoint} checkpoint @returns {Checkpoint} @throws {CheckpointError} The checkpoint is not valid. */
function readCheckpoint(checkpoint) {
  try {
    const saved = typeof checkpoint === "string" ? JSON.parse(checkpoint) : checkpoint;
    if (FITS.checkpoint(saved)) return saved;
  } catch {} // what is not JSON is no checkpoint
  const advice = "Pass the unchanged output of job.checkpoint() of this protocol, or its JSON text.";
  throw new CheckpointError("the checkpoint is not valid", { advice });
}
