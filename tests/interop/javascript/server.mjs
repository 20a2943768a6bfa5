// A server of tidewire/1 for Node: the core profile, batches, and keys of anonymous callers.
//
//   node server.mjs [NAME=VALUE…]      prints its URL once it listens
//
// NAME=VALUE: port, retry_ms (base), heartbeat_ms, rotate_ms (a stream is closed with goaway after so long), max_body_bytes,
// max_log_bytes, max_streams, max_jobs, state_ttl_s

import { createHash, randomInt } from "node:crypto";
import { createServer } from "node:http";
import { ENDPOINTS, MAX_ITEMS, fault } from "./endpoints.mjs";
import { Job, later } from "./job.mjs";
import { Problem } from "./problems.mjs";
import { JSONError, MAX_DEPTH, isInteger, isObject, parse, plain } from "./strict_json.mjs";

const OPTIONS = Object.fromEntries(process.argv.slice(2).map((pair) => pair.split("=")));
const option = (name, otherwise) => Number(OPTIONS[name] ?? otherwise);
const RETRY_MS = option("retry_ms", 1000);
const HEARTBEAT_MS = option("heartbeat_ms", 15_000);
const ROTATE_MS = option("rotate_ms", 0);
const STALL_MS = 60_000;
const MIN_GRACE_MS = 60_000;
const LIMITS = {
  max_body_bytes: option("max_body_bytes", 1_048_576),
  max_inputs: MAX_ITEMS,
  max_jobs_per_principal: option("max_jobs", 100),
  max_streams_per_principal: option("max_streams", 100),
  max_state_bytes: 16_777_216,
  max_event_bytes: 1_048_576,
  max_log_bytes: option("max_log_bytes", 4_194_304),
  max_depth: MAX_DEPTH,
  log_ttl_s: option("state_ttl_s", 3600),
  state_ttl_s: option("state_ttl_s", 3600),
  tombstone_ttl_s: 86_400,
};

const jobs = new Map(); // id → Job, or null for a tombstone
const keys = new Map(); // endpoint and key → { hash, id }
const streams = new Map(); // address of a caller → how many streams it has open
const farewells = new Set(); // what closes each open stream with goaway

// ---- answers ---------------------------------------------------------------------------------------------------

function send(response, status, body, headers = {}) {
  const type = status >= 400 ? "application/problem+json" : "application/json";
  const bytes = Buffer.from(JSON.stringify(body));
  response.writeHead(status, { "content-type": type, "content-length": bytes.length, "cache-control": "no-store", ...headers });
  response.end(bytes);
}

/** Links are relative to the URL of the answer, so that they also hold behind a path prefix. */
function linksFrom(path) {
  const up = "../".repeat(path.split("/").length - 2);
  return (target) => up + target.slice(1);
}

/** Whether an Accept admits a media type, and whether it names it; the most specific range decides. */
function accepts(header, type) {
  if (header === undefined || header.trim() === "") return { admits: true, names: false };
  const [family] = type.split("/");
  const weights = {};
  for (const range of header.split(",")) {
    const [name, ...parameters] = range.split(";").map((part) => part.trim().toLowerCase());
    const q = parameters.find((parameter) => parameter.startsWith("q="));
    weights[name] = Math.max(weights[name] ?? 0, q === undefined ? 1 : Number(q.slice(2)) || 0);
  }
  const weight = weights[type] ?? weights[`${family}/*`] ?? weights["*/*"] ?? 0;
  return { admits: weight > 0, names: (weights[type] ?? 0) > 0 };
}

/** The body; what is too large is not read on, and the connection stays open for the answer to that. */
function readBody(request) {
  const parts = [];
  let size = Number(request.headers["content-length"] ?? 0);
  return new Promise((resolve, reject) => {
    const refuse = () => {
      request.pause();
      const detail = `at most ${LIMITS.max_body_bytes} bytes`;
      reject(new Problem("body_too_large", { detail }, { connection: "close" }));
    };
    if (size > LIMITS.max_body_bytes) return refuse();
    size = 0;
    request.on("data", (chunk) => {
      size += chunk.length;
      if (size > LIMITS.max_body_bytes) refuse();
      else parts.push(chunk);
    });
    request.on("end", () => resolve(Buffer.concat(parts)));
    request.on("error", reject);
    return undefined;
  });
}

/** The JSON object in the body of a request; undefined where there is no body. */
async function readObject(request) {
  if ((request.headers["content-encoding"] ?? "identity") !== "identity") {
    throw new Problem("unsupported_media_type", { detail: "a body has no content coding here" });
  }
  const bytes = await readBody(request);
  if (bytes.length === 0) return { bytes, body: undefined };
  const [type, ...parameters] = (request.headers["content-type"] ?? "").split(";").map((part) => part.trim().toLowerCase());
  const charset = parameters.find((parameter) => parameter.startsWith("charset="))?.slice(8).replaceAll('"', "") ?? "utf-8";
  if (charset !== "utf-8") throw new Problem("unsupported_media_type", { detail: `JSON is UTF-8, not ${charset}` });
  if (type !== "application/json" && !type.endsWith("+json")) {
    throw new Problem("unsupported_media_type", { detail: `application/json is expected, not ${type || "nothing"}` });
  }
  let body;
  try {
    body = parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch (error) {
    if (error instanceof JSONError || error instanceof TypeError) throw new Problem("malformed_body", { detail: error.message });
    throw error;
  }
  if (!isObject(body)) throw invalid("", "the body is an object");
  return { bytes, body };
}

/** Null in a member that the specification names says nothing that a server could tell (TW-JOB-087). */
function refuseNulls(body, names) {
  const name = names.find((each) => body[each] === null);
  if (name !== undefined) throw invalid(`/${name}`, "a value, or no such member");
}

const invalid = (pointer, detail) => new Problem("invalid_input", { pointer, detail });

function found(id) {
  const job = jobs.get(id);
  if (job === null) throw new Problem("job_expired");
  if (job === undefined) throw new Problem("job_not_found");
  return job;
}

// ---- submit ----------------------------------------------------------------------------------------------------

/** The inputs of a submit, completed and judged (sections 6.2 and 7.1). */
function inputsOf(body, endpoint) {
  refuseNulls(body, ["inputs", "shared", "on_disconnect", "grace_ms", "deadline_ms"]);
  if (("input" in body) === ("inputs" in body)) throw invalid("", "either input or inputs");
  const batch = "inputs" in body;
  if (batch && (!Array.isArray(body.inputs) || body.inputs.length === 0)) throw invalid("/inputs", "an array of at least one input");
  if (batch && body.inputs.length > MAX_ITEMS) {
    throw new Problem("batch_too_large", { pointer: "/inputs", detail: `at most ${MAX_ITEMS} inputs` });
  }
  const shared = body.shared ?? null;
  if (shared !== null && !isObject(shared)) throw invalid("/shared", "an object");
  return (batch ? body.inputs : [body.input]).map((input, at) => {
    const place = batch ? `/inputs/${at}` : "/input";
    if (shared !== null && !isObject(input)) throw invalid(place, "an object, since there is shared");
    const whole = shared === null ? input : Object.assign(Object.create(null), shared, input);
    const wrong = fault(endpoint.input, whole);
    if (wrong === null) return plain(whole);
    const [, member] = wrong.pointer.split("/");
    const fromShared = member !== undefined && !(member.replaceAll("~1", "/").replaceAll("~0", "~") in input);
    throw invalid((fromShared ? "/shared" : place) + wrong.pointer, wrong.detail);
  });
}

function optionsOf(body) {
  const { on_disconnect = null, grace_ms = null, deadline_ms = null } = body;
  if (![null, "continue", "cancel"].includes(on_disconnect)) throw invalid("/on_disconnect", "continue or cancel");
  if (grace_ms !== null && !isInteger(grace_ms, 0)) throw invalid("/grace_ms", "an integer of at least 0");
  if (deadline_ms !== null && !isInteger(deadline_ms, 1)) throw invalid("/deadline_ms", "an integer of at least 1");
  const graceMs = on_disconnect === "cancel" ? Math.max(MIN_GRACE_MS, grace_ms ?? MIN_GRACE_MS) : null;
  return { graceMs, deadlineMs: deadline_ms ?? undefined };
}

async function submit({ request, response, path, name }) {
  if (!Object.hasOwn(ENDPOINTS, name)) throw new Problem("endpoint_not_found");
  const stream = accepts(request.headers.accept, "text/event-stream").names;
  if (!stream && !accepts(request.headers.accept, "application/json").admits) throw new Problem("not_acceptable");
  const key = request.headers["idempotency-key"];
  if (key !== undefined && !/^[!-~]{1,255}$/.test(key)) {
    throw new Problem("bad_parameter", { detail: "Idempotency-Key: 1 to 255 visible ASCII characters" });
  }
  const { bytes, body } = await readObject(request);
  if (body === undefined) throw new Problem("malformed_body", { detail: "a submit has a body" });

  const place = `${name}\n${key}`;
  const hash = createHash("sha256").update(bytes).digest("hex");
  const known = key === undefined ? undefined : keys.get(place);
  if (known && known.hash !== hash) throw new Problem("idempotency_key_reused");
  const job = known ? found(known.id) : commit(name, body, request);
  if (key !== undefined) keys.set(place, { hash, id: job.id });

  const link = linksFrom(path);
  const self = `/v1/jobs/${job.id}`;
  const headers = { location: link(self), ...(known && { "idempotency-replayed": "true" }) };
  if (stream) await follow({ request, response, job, link, cursor: "", headers: { ...headers, "content-location": link(`${self}/events`) } });
  else send(response, 201, job.body(link), headers);
}

function commit(name, body, request) {
  const endpoint = ENDPOINTS[name];
  const inputs = inputsOf(body, endpoint);
  const { graceMs, deadlineMs } = optionsOf(body);
  const caller = request.socket.remoteAddress;
  const unfinished = [...jobs.values()].filter((job) => job && !job.done && job.caller === caller).length;
  if (unfinished >= LIMITS.max_jobs_per_principal) throw new Problem("too_many_jobs");
  const job = new Job(name, endpoint, inputs, {
    batch: "inputs" in body,
    deadlineMs,
    maxLogBytes: LIMITS.max_log_bytes,
    stateTtlMs: LIMITS.state_ttl_s * 1000,
  });
  Object.assign(job, { caller, graceMs, readers: 0 });
  jobs.set(job.id, job);
  awaitReader(job);
  job.on("ended", () => later(LIMITS.state_ttl_s * 1000, () => bury(job)));
  job.start();
  return job;
}

/** Cancel a job whose submit asked for it, once nobody has read it for its grace (section 6.8). */
function awaitReader(job, alsoMs = 0) {
  if (job.graceMs !== null) job.grace = later(job.graceMs + alsoMs, () => job.cancel());
}

function bury(job) {
  jobs.set(job.id, null);
  later(LIMITS.tombstone_ttl_s * 1000, () => {
    jobs.delete(job.id);
    for (const [place, { id }] of keys) if (id === job.id) keys.delete(place);
  });
}

// ---- event streams ---------------------------------------------------------------------------------------------

function cursorOf(request, query) {
  for (const name of ["after", "diffs", "errors", "min_interval_ms"]) {
    if (query.getAll(name).length > 1) throw new Problem("bad_parameter", { detail: `${name} stands twice` });
  }
  if (!["", "1"].includes(query.get("diffs") ?? "") || !["", "http"].includes(query.get("errors") ?? "")) {
    throw new Problem("bad_parameter", { detail: "this server has neither snapshots_only nor inband_problems" });
  }
  return request.headers["last-event-id"] || query.get("after") || "";
}

const STREAM_HEADERS = {
  "content-type": "text/event-stream",
  "cache-control": "no-store, no-transform",
  "x-accel-buffering": "no",
};

async function events({ request, response, path, query, id }) {
  const cursor = cursorOf(request, query);
  if (cursor === "0-1") return response.writeHead(204, { "cache-control": "no-store" }).end();
  const job = found(id);
  if (cursor !== "" && cursor !== "0-0" && !/^[1-9][0-9]{0,9}-[1-9][0-9]{0,14}$/.test(cursor)) {
    throw new Problem("bad_cursor", { detail: "an id such as 1-17, 0-0, or nothing is expected" });
  }
  if (!accepts(request.headers.accept, "text/event-stream").admits) throw new Problem("not_acceptable");
  if (request.method === "HEAD") return response.writeHead(200, STREAM_HEADERS).end();
  return follow({ request, response, job, link: linksFrom(path), cursor });
}

async function follow({ request, response, job, link, cursor, headers = {} }) {
  const begin = job.from(cursor);
  if (begin === null) return response.writeHead(204, { "cache-control": "no-store" }).end();
  const caller = request.socket.remoteAddress;
  const open = streams.get(caller) ?? 0;
  if (open >= LIMITS.max_streams_per_principal) throw new Problem("too_many_streams");
  streams.set(caller, open + 1);
  job.readers += 1;
  job.grace?.stop();
  const reader = new Reader(response, job);
  try {
    response.writeHead(200, { ...STREAM_HEADERS, ...headers });
    const hello = {
      protocol: "tidewire/1",
      job: job.id,
      events: link(`/v1/jobs/${job.id}/events`),
      head: job.head,
      heartbeat_ms: HEARTBEAT_MS,
    };
    response.write(`event:hello\nretry:${drawRetry()}\ndata:${JSON.stringify(hello)}\n\n`);
    await reader.read(begin);
  } finally {
    reader.close();
    streams.set(caller, streams.get(caller) - 1);
    job.readers -= 1;
    if (job.readers === 0 && !job.done) awaitReader(job, reader.toldToComeBackMs);
  }
}

/** One connection: an offset into the log of a job. What it holds besides is what the socket has not taken yet. */
class Reader {
  toldToComeBackMs = 0;
  #response;
  #job;
  #wake = () => {};
  #gone = false;
  #goaway = null;
  #rotation = null;

  constructor(response, job) {
    this.#response = response;
    this.#job = job;
    this.#job.on("grown", this.#onChange);
    response.on("close", this.#onClose);
    response.on("drain", this.#onChange);
    if (ROTATE_MS > 0) this.#rotation = later(ROTATE_MS, () => this.sayGoaway("rotate"));
    farewells.add(this);
  }

  #onChange = () => this.#wake();
  #onClose = () => {
    this.#gone = true;
    this.#wake();
  };

  close() {
    this.#job.off("grown", this.#onChange);
    this.#rotation?.stop();
    farewells.delete(this);
  }

  sayGoaway(reason) {
    this.#goaway = reason;
    this.#wake();
  }

  #changeWithin(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(false), ms);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = () => {};
        resolve(true);
      };
    });
  }

  async read({ bytes, after }) {
    const job = this.#job;
    if (bytes !== null) this.#response.write(bytes);
    let at = after;
    let stalledSince = null;
    while (!this.#gone) {
      if (this.#response.writableNeedDrain) {
        stalledSince ??= Date.now();
        if (Date.now() - stalledSince >= STALL_MS) return this.#response.destroy();
        await this.#changeWithin(STALL_MS);
        continue;
      }
      stalledSince = null;
      if (this.#goaway !== null) return this.#leave();
      if (at < job.seq) {
        const event = job.event(at + 1);
        const { bytes: next, after: reached } = event ? { bytes: event.bytes, after: at + 1 } : job.snapshotAtHead("compacted");
        this.#response.write(next);
        at = reached;
      } else if (job.done) return this.#response.end();
      else if (!(await this.#changeWithin(HEARTBEAT_MS))) this.#response.write(`event:ping\ndata:{"head":"${job.head}"}\n\n`);
    }
    return undefined;
  }

  #leave() {
    const retry = drawRetry();
    this.toldToComeBackMs = retry;
    this.#response.end(`event:goaway\nretry:${retry}\ndata:{"reason":"${this.#goaway}","retry_ms":${retry}}\n\n`);
  }
}

/** Between 0.75 and 1.5 times the base, drawn anew for each connection: browsers wait exactly so long. */
function drawRetry() {
  return randomInt(Math.floor(RETRY_MS * 0.75), Math.ceil(RETRY_MS * 1.5) + 1);
}

// ---- the other resources ---------------------------------------------------------------------------------------

function discovery({ response, path }) {
  const link = linksFrom(path);
  const endpoints = Object.entries(ENDPOINTS).map(([name, { summary, input }]) => ({
    name,
    summary,
    href: link(`/v1/endpoints/${name}`),
    defaults: input.required.length === 0,
  }));
  const capabilities = ["batches", "deadlines", "disconnect", "idempotency"];
  const server = "tidewire-javascript/1.0";
  send(response, 200, { protocol: "tidewire/1", server, durability: "process", capabilities, limits: LIMITS, heartbeat_ms: HEARTBEAT_MS, endpoints });
}

function endpoint({ response, path, name }) {
  if (!Object.hasOwn(ENDPOINTS, name)) throw new Problem("endpoint_not_found");
  const { summary, input, value, examples } = ENDPOINTS[name];
  const link = linksFrom(path);
  const self = `/v1/endpoints/${name}`;
  send(response, 200, {
    name,
    summary,
    input_schema: input,
    value_schema: value,
    examples,
    capabilities: { streams: true, batch: { max_items: MAX_ITEMS }, cancel: true, rollback: false },
    links: { self: link(self), jobs: link(`${self}/jobs`) },
  });
}

function readJob({ response, path, id }) {
  send(response, 200, found(id).body(linksFrom(path)));
}

async function cancel({ request, response, path, id }) {
  const job = found(id);
  const { body = {} } = await readObject(request);
  refuseNulls(body, ["items"]);
  const { items } = body;
  const most = job.inputs.length - 1;
  if (items !== undefined && !(Array.isArray(items) && items.every((at) => isInteger(at, 0, most)))) {
    throw invalid("/items", `an array of integers from 0 to ${most}`);
  }
  const ended = job.done !== null;
  job.cancel(items);
  send(response, ended ? 200 : 202, job.body(linksFrom(path)));
}

const ROUTES = [
  [/^\/v1$/, { GET: discovery }],
  [/^\/v1\/endpoints\/(?<name>[^/]+)$/, { GET: endpoint }],
  [/^\/v1\/endpoints\/(?<name>[^/]+)\/jobs$/, { POST: submit }],
  [/^\/v1\/jobs\/(?<id>[^/]+)$/, { GET: readJob }],
  [/^\/v1\/jobs\/(?<id>[^/]+)\/events$/, { GET: events }],
  [/^\/v1\/jobs\/(?<id>[^/]+)\/cancel$/, { POST: cancel }],
];

async function answer(request, response) {
  const [path, search = ""] = request.url.split(/\?(.*)/s);
  const [pattern, methods] = ROUTES.find(([one]) => one.test(path)) ?? [];
  if (!pattern) throw new Problem("not_found");
  const method = request.method === "HEAD" ? "GET" : request.method; // Node sends no body in response to HEAD
  const handler = Object.hasOwn(methods, method) ? methods[method] : null;
  if (handler === null) throw new Problem("method_not_allowed", {}, { allow: Object.keys(methods).join(", ") });
  await handler({ request, response, path, query: new URLSearchParams(search), ...pattern.exec(path).groups });
}

const server = createServer({ requestTimeout: 30_000, headersTimeout: 15_000 }, async (request, response) => {
  try {
    await answer(request, response);
  } catch (error) {
    const problem = error instanceof Problem ? error : new Problem("internal");
    if (problem !== error) console.error(error);
    if (response.headersSent) return response.destroy();
    send(response, problem.body.status, problem.body, problem.headers);
    // A socket that is closed with bytes unread is reset, and the client may lose the answer: it gets a second to read it.
    if (problem.headers.connection === "close") later(1000, () => request.destroy());
  }
  return undefined;
});

process.on("SIGTERM", () => {
  for (const reader of farewells) reader.sayGoaway("restart");
  server.close(() => process.exit(0));
  server.closeIdleConnections();
  setTimeout(() => process.exit(0), 1000).unref();
});

server.listen(option("port", 0), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
