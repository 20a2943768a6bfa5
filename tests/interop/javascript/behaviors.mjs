// Behaviors of the JavaScript package: `node behaviors.mjs URL NAME...` runs some of the functions below against a server, one
// after another, and prints one JSON object per line: the name, and the error or null. Without arguments, it prints all names.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { crc32 } from "../../../clients/javascript/src/digests.js";
import { Document } from "../../../clients/javascript/src/document.js";
import { Follower } from "../../../clients/javascript/src/follower.js";
import * as tidewire from "../../../clients/javascript/src/index.js";

const { Client } = tidewire;
const JOB = "2yJq8sVbT1mHkP0dXw4RcA";
const VALUE = "/items/0/value";

const textOf = async (loop) => {
  let text = "";
  for await (const update of loop) text += update.text;
  return text;
};

const firstOf = async (loop) => {
  for await (const update of loop) return { ops: update.ops, value: update.value, seq: update.seq };
};

/** Bytes of the heap that are in use after a garbage collection. */
function heapUsed() {
  setFlagsFromString("--expose-gc");
  runInNewContext("gc")();
  return process.memoryUsage().heapUsed;
}

/**
 * Serves the job JOB, whose stream consists of snapshots and diffs, on one connection or several, and other paths as JSON. In
 * place of a stream, a connection may be a function that responds.
 */
async function scripted({ connections, paths = {}, heartbeatMs = 15000, ends = true }) {
  const requests = [];
  const server = createServer((request, response) => {
    requests.push(request);
    const { pathname } = new URL(request.url, "http://a");
    if (pathname in paths) return response.end(JSON.stringify(paths[pathname]));
    const events = connections.shift();
    if (events === undefined) return response.destroy();
    if (typeof events === "function") return events(response);
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`retry:1\nevent:hello\ndata:${JSON.stringify({ protocol: "tidewire/1", job: JOB, events: `/v1/jobs/${JOB}/events`, head: "1-1", heartbeat_ms: heartbeatMs })}\n\n`);
    for (const [id, data, type] of events) response.write(`id:${id}\n${type ? `event:${type}\n` : ""}data:${JSON.stringify(data)}\n\n`);
    if (ends) response.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

const snapshot = (value, { columns = [VALUE], reason = "start", ...item } = {}) => [
  { state: { status: "running", items: [{ status: "running", value, ...item }], usage: {}, notes: [] }, columns, reason },
  "snapshot",
];

/** A function that responds with `hello`, unless its head is undefined, and a ping. @param {{hello?: string, ping: string}} heads */
const pinging = ({ hello, ping }) => (response) => {
  response.writeHead(200, { "content-type": "text/event-stream" });
  const greeting = { protocol: "tidewire/1", job: JOB, events: `/v1/jobs/${JOB}/events`, head: hello, heartbeat_ms: 15000 };
  if (hello !== undefined) response.write(`retry:1\nevent:hello\ndata:${JSON.stringify(greeting)}\n\n`);
  response.end(`event:ping\ndata:{"head":"${ping}"}\n\n`);
};

const BEHAVIORS = {
  async "a loop after a break continues"(url) {
    const job = await new Client(url).submit("talk", { words: 20, slow: true });
    let text = "";
    for await (const update of job) {
      text += update.text;
      if (text.length > 20) break;
    }
    assert.equal(text + (await textOf(job)), await job.result());
  },

  async "a call may wait next to a loop"(url) {
    const job = await new Client(url).submit("talk", { words: 20, slow: true });
    const [text, result, tooLate] = await Promise.all([textOf(job), job.result(), job.wait()]);
    assert.equal(text, result);
    assert.equal(tooLate, undefined);
  },

  async "a slow loop next to a waiting call gets all text"(url) {
    const job = await new Client(url).submit("talk", { words: 40 });
    const waiting = job.result();
    let text = "";
    for await (const update of job) {
      text += update.text;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    assert.equal(text, await waiting);
  },

  async "a loop after a wait yields one update"(url) {
    const job = await new Client(url).submit("talk", { words: 20 });
    const value = await job.result();
    const updates = [];
    for await (const update of job) updates.push(update);
    assert.deepEqual(updates.map((update) => [update.text, update.value, update.firstSeq]), [[value, value, 1]]);
  },

  async "versions of a value that no loop reads are not kept"() {
    const valueAt = (seq) => `${seq}`.padEnd(300_000, "x");
    const versions = function* () {
      for (let seq = 2; seq <= 101; seq += 1) yield [`1-${seq}`, [["s", VALUE, valueAt(seq)]]];
    };
    const { url } = await scripted({ connections: [[["1-1", ...snapshot("")]], versions()] });
    const job = new Client(url, { retry: { attempts: 1 } }).job(JOB);
    await firstOf(job);
    const before = heapUsed();
    await assert.rejects(job.wait(), tidewire.TransportError);
    const grown = heapUsed() - before;
    assert.ok(grown < 5e6, `${grown} bytes for a value of 300,000`);
    assert.deepEqual(await firstOf(job), { ops: null, value: valueAt(101), seq: 101 });
  },

  async "an update that covers several events has all their ops"() {
    const pieces = [1, 2, 3].map((at) => [`1-${at + 1}`, `${at}`]);
    const { url } = await scripted({ connections: [[["1-1", ...snapshot("")]], pieces] });
    const job = new Client(url, { retry: { attempts: 1 } }).job(JOB);
    await firstOf(job);
    await assert.rejects(job.wait(), tidewire.TransportError);
    assert.deepEqual((await firstOf(job)).ops, [["a", "", "1"], ["a", "", "2"], ["a", "", "3"]]);
  },

  async "an update with an op on an item has no ops"() {
    const item = (value) => ["s", "/items/0", { status: "running", value }];
    const events = [["1-1", ...snapshot("")], ["1-2", [item("x"), ["a", VALUE, "y"]]], ["1-3", "z"]];
    const { url } = await scripted({ connections: [events] });
    const found = [];
    await assert.rejects(async () => {
      for await (const { ops, value } of new Client(url, { retry: { attempts: 1 } }).job(JOB)) found.push([ops, value]);
    }, tidewire.TransportError);
    assert.deepEqual(found.slice(1), [[null, "xy"], [[["a", "", "z"]], "xyz"]]);
  },

  async "a second loop is refused"(url) {
    const job = await new Client(url).submit("forever");
    for await (const _ of job) {
      await assert.rejects(textOf(job), tidewire.ConcurrentReadError);
      break;
    }
    await job.cancel();
  },

  async "earlier updates keep their values"(url) {
    const job = await new Client(url).submit("grow", { steps: 5 });
    const updates = [];
    const values = [];
    for await (const update of job) {
      updates.push(update);
      values.push(structuredClone(update.value));
      update.value.rows?.push("a change of the copy");
    }
    assert.deepEqual(updates.map((update) => update.value), values);
    assert.ok(new Set(values.map((value) => JSON.stringify(value))).size >= 3);
  },

  async "ops lead from each value to the next"(url) {
    const job = await new Client(url).submit("grow", { steps: 5 });
    let mine = null;
    for await (const update of job) {
      for (const [op, path, argument] of update.ops ?? [["s", "", update.value]]) {
        const [, name] = path.split("/");
        if (op === "s" && path === "") mine = argument;
        else if (op === "s") mine[name] = argument;
        else if (op === "a") mine[name] = typeof argument === "string" ? mine[name] + argument : [...mine[name], ...argument];
        else assert.fail(op);
      }
      assert.deepEqual(mine, update.value);
    }
  },

  async "close ends a pending loop, and another loop continues"(url) {
    const job = await new Client(url).submit("talk", { words: 40, slow: true });
    let text = "";
    let closing;
    const states = [];
    job.listener = (event) => event.type === "connection" && states.push(event.state);
    await assert.rejects(async () => {
      for await (const update of job) {
        text += update.text;
        if (text.length > 10) closing ??= setTimeout(() => job.close());
      }
    }, tidewire.ClientClosedError);
    text += await textOf(job);
    assert.equal(text, await job.result());
    assert.ok(states.includes("closed"));
  },

  async "close ends a loop whose body runs, and another loop takes over"(url) {
    const job = await new Client(url).submit("talk", { words: 40, slow: true });
    let text = "";
    const body = {};
    body.ends = new Promise((resolve) => (body.end = resolve));
    body.runs = new Promise((resolve) => (body.begin = resolve));
    const first = (async () => {
      for await (const update of job) {
        text += update.text;
        if (text.length > 10) await (body.begin(), body.ends);
      }
    })();
    await body.runs;
    job.close();
    assert.equal(text + (await textOf(job)), await job.result());
    body.end();
    await assert.rejects(first, tidewire.ClientClosedError);
  },

  async "a loop that takes over gets the text that the closed loop held back"() {
    const stable = [["s", "/items/0/stable", { "": 3 }]];
    const events = [["1-1", ...snapshot("", { stable: { "": 0 } })], ["1-2", "abc"], ["1-3", "de"], ["1-4", stable]];
    const { url } = await scripted({ connections: [events, [["1-5", "f"]]] });
    const job = new Client(url, { retry: { attempts: 1 } }).job(JOB);
    const deltas = [];
    const readRest = async () => {
      for await (const delta of job.iterTextDeltas()) deltas.push(delta);
    };
    await assert.rejects(async () => {
      for await (const text of job.iterText()) {
        assert.equal(text, "abc");
        job.close();
        await assert.rejects(readRest(), tidewire.TransportError);
      }
    }, tidewire.ClientClosedError);
    assert.deepEqual(deltas, [{ deleted: 0, text: "de" }, { deleted: 0, text: "f" }]);
  },

  async "close after the end of a job ends no loop"(url) {
    const job = await new Client(url).submit("talk", { words: 3 });
    await job.wait();
    let text = "";
    for await (const update of job) {
      text += update.text;
      job.close();
      assert.equal(await textOf(job), "");
    }
    assert.equal(text, await job.result());
  },

  async "an aborted loop throws the reason, and another loop continues"(url) {
    const job = await new Client(url).submit("talk", { words: 40, slow: true });
    const controller = new AbortController();
    let text = "";
    await assert.rejects(async () => {
      for await (const update of job.updates({ signal: controller.signal })) {
        text += update.text;
        if (text.length > 10) setTimeout(() => controller.abort(new Error("hidden")));
      }
    }, /hidden/);
    assert.equal(text + (await textOf(job)), await job.result());
  },

  async "an aborted loop does not disturb a waiting call"(url) {
    const job = await new Client(url).submit("talk", { words: 20, slow: true });
    const waiting = job.result();
    const controller = new AbortController();
    await assert.rejects(async () => {
      for await (const _ of job.updates({ signal: controller.signal })) controller.abort(new Error("hidden"));
    }, /hidden/);
    assert.ok((await waiting).length > 20);
  },

  async "a job is read again at once after it was closed"(url) {
    const job = await new Client(url).submit("talk", { words: 20, slow: true });
    let text = "";
    for (let round = 0; !job.ended; round += 1) {
      const controller = new AbortController();
      setTimeout(() => (round % 2 ? job.close() : controller.abort(new Error("hidden"))), 20 + 7 * (round % 9));
      try {
        for await (const update of job.updates({ signal: controller.signal })) text += update.text;
      } catch (error) {
        assert.ok(error instanceof tidewire.ClientClosedError || error.message === "hidden", error.stack);
      }
    }
    text += await textOf(job);
    assert.equal(text, await job.result());
  },

  async "a submit can be aborted"(url) {
    await assert.rejects(new Client(url).submit("talk", {}, { signal: AbortSignal.abort(new Error("gone")) }), /gone/);
  },

  async "a timeout leaves the job running"(url) {
    const job = await new Client(url).submit("forever");
    await assert.rejects(job.wait({ timeoutMs: 50 }), tidewire.TotalTimeoutError);
    assert.equal(await job.status(), "running");
    assert.equal(await job.cancel().then(() => job.wait()), undefined);
    await assert.rejects(job.result(), (error) => error instanceof tidewire.JobCancelledError && error.value.startsWith("on and on"));
  },

  async "the timeout of a run includes its submit"(url) {
    const server = createServer(() => {}).listen(0, "127.0.0.1").unref();
    await new Promise((resolve) => server.once("listening", resolve));
    const silent = `http://127.0.0.1:${server.address().port}`;
    const options = { timeoutMs: 200, idempotencyKey: "my-key" };
    for (const run of [new Client(silent).run("talk", {}, options), new Client(silent, { timeoutMs: 200 }).run("talk", {}, { idempotencyKey: "my-key" })]) {
      const error = await run.catch((error) => error);
      assert.ok(error instanceof tidewire.TotalTimeoutError && /200 ms.*idempotencyKey: "my-key"/.test(error.message), error.stack);
    }
    await assert.rejects(new Client(silent).run("talk", {}, { signal: AbortSignal.abort(new Error("gone")) }), /gone/);
    await assert.rejects(new Client(silent).run("talk", {}, { signal: AbortSignal.timeout(50) }), /timeout/);
    const slow = async (...request) => {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      return fetch(...request);
    };
    const begun = performance.now();
    await assert.rejects(new Client(url, { fetch: slow }).run("forever", {}, { timeoutMs: 1500 }), tidewire.TotalTimeoutError);
    assert.ok(performance.now() - begun < 2400);
    assert.ok((await new Client(url).run("talk", { words: 3 }, { timeoutMs: 20_000 })).length > 5);
    server.closeAllConnections();
  },

  async "items of a batch are cancelled by index"(url) {
    const batch = await new Client(url).submitBatch("forever", [{}, {}]);
    await batch.cancel([1]);
    for await (const [index, result] of batch.asCompleted()) {
      assert.deepEqual([index, result.ended], [1, "cancelled"]);
      break;
    }
    await batch.cancel();
    await assert.rejects(batch.results(), tidewire.ItemFailedError);
  },

  async "a job with several items is no single job"(url) {
    const client = new Client(url);
    const batch = await client.submitBatch("point", [{ x: 1 }, { x: 2 }]);
    await batch.wait();
    await assert.rejects(client.job(batch.id).result(), tidewire.SeveralItemsError);
    assert.deepEqual((await client.batchJob(batch.id).results()).map((point) => point.x), [1, 2]);
  },

  async "a batch continues from a checkpoint within an event"() {
    const items = (...values) => values.map((value) => ({ status: "running", value }));
    const state = { status: "running", items: items("", ""), usage: {}, notes: [] };
    const ops = [["a", "/items/0/value", "x"], ["a", "/items/1/value", "y"]];
    const events = [["1-1", { state, columns: ["/items/0/value", "/items/1/value"], reason: "start" }, "snapshot"], ["1-2", ops], ["1-3", ops]];
    const { url } = await scripted({ connections: [events, events] });
    const seen = [];
    const read = async (job, count) => {
      for await (const update of job) {
        if (update.text) seen.push([update.seq, update.index, update.text]);
        if (seen.length === count) return job.checkpoint();
      }
    };
    const client = new Client(url);
    const saved = await read(client.batchJob(JOB), 1);
    assert.deepEqual(saved.undelivered.map(({ index, text }) => [index, text]), [[1, "y"]]);
    await read(client.batchJob({ checkpoint: JSON.stringify(saved) }), 4);
    assert.deepEqual(seen, [[2, 0, "x"], [2, 1, "y"], [3, 0, "x"], [3, 1, "y"]]);
  },

  async "an unknown endpoint lists those that exist"(url) {
    await assert.rejects(new Client(url).submit("tlak"), (error) => error instanceof tidewire.EndpointNotFoundError && /talk/.test(error.message));
  },

  async "a wrong input names its member"(url) {
    await assert.rejects(new Client(url).submit("talk", { words: "many" }), (error) => error instanceof tidewire.InvalidInputError && error.pointer === "/input/words");
  },

  async "an input that is not JSON is refused before it is sent"() {
    const nested = (levels) => (levels === 0 ? 1 : [nested(levels - 1)]);
    const circular = {};
    circular.self = circular;
    const refused = [
      [NaN, "", /NaN is not a JSON number; send null, or a string/],
      [[0, -Infinity], "/1", /-Infinity is not a JSON number/],
      [{ "a/b": { "~": 2 ** 53 + 2 } }, "/a~1b/~0", /integer beyond/],
      [10n, "", /BigInt/],
      ["a\ud800", "", /lone surrogate/],
      [{ "\ud800": 1 }, "/\ud800", /lone surrogate/],
      [{ toJSON: () => [NaN] }, "/0", /NaN/],
      [{ a: Promise.resolve(1) }, "/a", /await the promise/],
      [[() => 1], "/0", /a function is not JSON/],
      [{ a: Symbol("a") }, "/a", /a symbol is not JSON/],
      [new Uint8Array(2), "", /base64/],
      [Buffer.from("ab"), "", /base64/],
      [new ArrayBuffer(2), "", /base64/],
      [new Blob(["ab"]), "", /base64/],
      [new Map([["a", 1]]), "", /Map or a Set is not JSON/],
      [[new Set([1])], "/0", /Map or a Set is not JSON/],
      [nested(63), "/0".repeat(62), /deeper than 64/],
      [circular, "/self".repeat(62), /deeper than 64/],
    ];
    const { url, requests } = await scripted({ connections: [] });
    for (const [x, pointer, message] of refused) {
      const error = await new Client(url).submit("echo", { x }).catch((error) => error);
      assert.ok(error instanceof tidewire.InvalidInputError && message.test(error.message), error.stack);
      assert.equal(error.pointer, `/input/x${pointer}`);
    }
    assert.equal(requests.length, 0);
    const error = await new Client(url).submitBatch("echo", [{}, NaN]).catch((error) => error);
    assert.equal(error.pointer, "/inputs/1");
  },

  async "all that JSON can express is sent"(url) {
    const date = new Date(0);
    const words = [2 ** 53, 1e308, -0, 5e-324, "\ud83d\ude00\u0000", null, undefined, date];
    const error = await new Client(url).submit("talk", { words, none: undefined }).catch((error) => error);
    assert.equal(error.status, 422, error.stack);
  },

  async "a body that a proxy refuses as too large is named"() {
    const refuse = (response) => response.writeHead(413, { "content-type": "text/html" }).end("<html>");
    const { url } = await scripted({ connections: [refuse] });
    const error = await new Client(url).submit("talk").catch((error) => error);
    assert.ok(error instanceof tidewire.InvalidInputError && /413 text\/html.*or a proxy in front of it: send less\./.test(error.message), error.stack);
  },

  async "redirects in a circle are an error of the protocol"() {
    const circle = createServer((request, response) => response.writeHead(302, { location: request.url }).end());
    await new Promise((resolve) => circle.listen(0, "127.0.0.1", resolve));
    try {
      const error = await new Client(`http://127.0.0.1:${circle.address().port}`).discover().catch((caught) => caught);
      assert.ok(error instanceof tidewire.ProtocolError);
      assert.match(error.message, /the server sent more than 5 redirects/);
      assert.doesNotMatch(error.message, /Create a client/);
    } finally {
      circle.close();
      circle.closeAllConnections();
    }
  },

  async "a redirect of a submit names its target"() {
    const location = "https://user:secret@example.com/v1/endpoints/talk/jobs";
    for (const status of [301, 302, 307, 308]) {
      const { url } = await scripted({ connections: [(response) => response.writeHead(status, { location }).end("<html>")] });
      const error = await new Client(url).submit("talk").catch((error) => error);
      assert.equal(error.constructor, tidewire.RequestError, error.stack);
      assert.match(error.message, /redirects this POST request to https:\/\/example\.com\/v1.*Create a client with the new URL/);
      assert.ok(!error.message.includes("secret"));
    }
  },

  async "a page of a proxy is named by its title"() {
    const html = `<!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01//EN" "http://www.w3.org/TR/html4/strict.dtd">\n<html><TITLE>Log\nin</TITLE>`;
    const { url } = await scripted({ connections: [(response) => response.writeHead(502, { "content-type": "text/html" }).end(html)] });
    await assert.rejects(new Client(url, { retry: { attempts: 1 } }).discover(), /502 text\/html: "Log in"/);
    const hostile = (response) => response.writeHead(502, { "content-type": "text/html" }).end("<title".repeat(150_000));
    const { url: other } = await scripted({ connections: [hostile] });
    await assert.rejects(new Client(other, { retry: { attempts: 1 } }).discover(), /502 text\/html: "<title<title/);
  },

  async "the content coding of a stream is named"() {
    const compressed = (response) => response.writeHead(200, { "content-type": "text/event-stream", "content-encoding": "gzip" }).end("x");
    const { url } = await scripted({ connections: [compressed] });
    await assert.rejects(new Client(url, { retry: { attempts: 1 } }).job(JOB).result(), /with the content coding gzip, which the client did not request/);
  },

  async "one key starts one job"(url) {
    const options = { idempotencyKey: "k".repeat(30) };
    const [one, two] = await Promise.all([1, 2].map(() => new Client(url).submit("talk", {}, options)));
    assert.equal(one.id, two.id);
    await assert.rejects(new Client(url).submit("talk", {}, { idempotencyKey: "not a key" }), TypeError);
  },

  async "a state beyond maxStateBytes is refused"(url) {
    const small = await new Client(url, { maxStateBytes: 4000 }).run("talk", { words: 100 });
    assert.ok(small.length > 400);
    await assert.rejects(new Client(url, { maxStateBytes: 2000 }).run("talk", { words: 1000 }), tidewire.StateTooLargeError);
  },

  async "a snapshot beyond maxStateBytes is refused at once"() {
    const { url, requests } = await scripted({ connections: [[["1-1", ...snapshot("x".repeat(2 ** 20))]]] });
    const error = await new Client(url, { maxStateBytes: 4000 }).job(JOB).result().catch((error) => error);
    assert.ok(error instanceof tidewire.StateTooLargeError && /maxStateBytes/.test(error.message), error.stack);
    assert.equal(requests.length, 1);
  },

  async "nothing at an address is reported after three attempts"() {
    const closed = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => closed.once("listening", resolve));
    const { port } = closed.address();
    await new Promise((resolve) => closed.close(resolve));
    for (const address of [port, 9]) {
      let attempts = 0;
      const counted = (...request) => ((attempts += 1), fetch(...request));
      const client = new Client(`http://127.0.0.1:${address}`, { fetch: counted });
      await assert.rejects(client.discover(), (error) => error instanceof tidewire.TransportError && error.sent === false && /gave up/.test(error.message));
      assert.equal(attempts, 3);
    }
  },

  async "https to a server without TLS fails at once"() {
    const { url } = await scripted({ connections: [] });
    let attempts = 0;
    const counted = (...request) => ((attempts += 1), fetch(...request));
    const client = new Client(url.replace("http:", "https:"), { fetch: counted });
    for (const call of [() => client.discover(), () => textOf(client.job(JOB))]) {
      const error = await call().catch((error) => error);
      assert.ok(error instanceof tidewire.TransportError && error.sent === false, error.stack);
      assert.ok(error.message.endsWith(`If the server does not use TLS, try ${url}.`), error.message);
    }
    assert.equal(attempts, 2);
  },

  async "a certificate that is not trusted is named"() {
    const failing = () => Promise.reject(Object.assign(new TypeError("fetch failed"), { cause: { code: "DEPTH_ZERO_SELF_SIGNED_CERT" } }));
    const error = await new Client("https://a", { fetch: failing }).discover().catch((error) => error);
    assert.match(error.message, /^TLS with a failed: DEPTH_ZERO_SELF_SIGNED_CERT .*NODE_EXTRA_CA_CERTS/);
  },

  async "a stream is given up after so many attempts"() {
    const { url, requests } = await scripted({ connections: [[["1-1", ...snapshot("a")]]] });
    const job = new Client(url, { retry: { attempts: 4 } }).job(JOB);
    await assert.rejects(textOf(job), tidewire.TransportError);
    assert.equal(requests.length, 4 + 1 - 1);
    assert.equal(job.checkpoint().cursor, "1-1");
  },

  async "a stream is given up after the patience"() {
    const { url, requests } = await scripted({ connections: [[["1-1", ...snapshot("a")]]] });
    const job = new Client(url, { retry: { patienceMs: 2000, minDelayMs: 10, maxDelayMs: 10 } }).job(JOB);
    await assert.rejects(textOf(job), (error) => error instanceof tidewire.TransportError && /patienceMs/.test(error.message));
    assert.ok(requests.length > 2);
  },

  async "another server is reported"() {
    const { url } = await scripted({ connections: [], paths: { "/v1": "hello" } });
    await assert.rejects(new Client(url).discover(), tidewire.ProtocolError);
    const page = createServer((_, response) => response.end("<html>")).listen(0, "127.0.0.1").unref();
    await new Promise((resolve) => page.once("listening", resolve));
    await assert.rejects(new Client(`http://127.0.0.1:${page.address().port}`).discover(), tidewire.NotATidewireServerError);
  },

  async "a page of a proxy does not prove that a job is gone"() {
    const page = (response) => response.writeHead(404, { "content-type": "text/html; charset=utf-8" }).end("<html>404\npage not found</html>");
    const opening = [["1-1", ...snapshot("")], ["1-2", "abc"]];
    const { url } = await scripted({ connections: [page, opening, page, [["1-3", "d"]], page] });
    const client = new Client(url, { retry: { attempts: 1, minDelayMs: 1 } });
    const unknown = await textOf(client.job(JOB)).catch((error) => error);
    assert.ok(unknown instanceof tidewire.NotATidewireServerError, unknown.stack);
    assert.match(unknown.message, /404 text\/html: "<html>404 page not found/);
    const job = new Client(url).job(JOB);
    let text = "";
    const read = async () => {
      for await (const update of job) text += update.text;
    };
    for (const expected of ["abc", "abcd"]) {
      const refused = await read().catch((error) => error);
      assert.equal(refused.constructor, tidewire.RequestError, refused.stack);
      assert.match(refused.message, /refused with 404 text\/html/);
      assert.equal(text, expected);
    }
  },

  async "a link outside the base path causes a warning and an advice"() {
    const page = (response) => response.writeHead(404, { "content-type": "text/html" }).end("<html>");
    const { url, requests } = await scripted({ connections: [[["1-1", ...snapshot("a")]], page, [], page] });
    const warnings = [];
    const warn = console.warn;
    console.warn = (text) => warnings.push(text);
    try {
      const job = new Client(`${url}/ai`).job(JOB);
      for (let loop = 0; loop < 2; loop += 1) await assert.rejects(textOf(job), /set root_path on the server/);
    } finally {
      console.warn = warn;
    }
    assert.deepEqual(requests.map((request) => request.url.split("/v1")[0]), ["/ai", "", "/ai", ""]);
    assert.equal(warnings.length, 1);
    assert.match(warnings[0], /outside the base path .*root_path/);
  },

  async "text that was yielded and is retracted throws"() {
    const events = [["1-1", ...snapshot("")], ["1-2", "abc"], ["1-3", [["t", VALUE, 2]]]];
    const { url } = await scripted({ connections: [events, events, events] });
    const texts = [];
    await assert.rejects(async () => {
      for await (const text of new Client(url).job(JOB).iterText()) texts.push(text);
    }, tidewire.VoidTextError);
    assert.deepEqual(texts, ["abc"]);
    await assert.rejects(textOf(new Client(url).job(JOB)), tidewire.VoidTextError);
    const deltas = [];
    for await (const delta of new Client(url).job(JOB).iterTextDeltas()) {
      deltas.push(delta);
      if (deltas.length === 2) break;
    }
    assert.deepEqual(deltas, [{ deleted: 0, text: "abc" }, { deleted: 2, text: "" }]);
  },

  async "text that is not stable is held back"() {
    const events = [
      ["1-1", ...snapshot("", { stable: { "": 0 } })],
      ["1-2", "abc"],
      ["1-3", [["t", VALUE, 1], ["a", VALUE, "d"]]],
      ["1-4", [["s", "/items/0/stable", { "": 3 }]]],
      ["1-5", "e"],
    ];
    const { url } = await scripted({ connections: [events] });
    const job = new Client(url, { retry: { attempts: 1 } }).job(JOB);
    const texts = [];
    await assert.rejects(async () => {
      for await (const text of job.iterText()) texts.push([text, job.checkpoint().cursor]);
    }, tidewire.TransportError);
    assert.deepEqual(texts, [["abd", "1-4"]]);
  },

  async "a job without events is followed through cuts after a ping"() {
    // As behind a proxy that limits the whole time of a response.
    const ping = pinging({ hello: "1-1", ping: "1-1" });
    const { url, requests } = await scripted({ connections: [[["1-1", ...snapshot("a")]], ...Array(12).fill(ping), [["1-2", "b"]]] });
    const job = new Client(url, { retry: { patienceMs: 200, minDelayMs: 40, maxDelayMs: 40 } }).job(JOB);
    for await (const update of job) if (update.text === "b") break;
    assert.ok(requests.length >= 14);
  },

  async "cuts after a ping that does not confirm the id end a job"() {
    for (const heads of [{ ping: "1-2" }, { hello: "1-1", ping: "1-1" }]) {
      const { url, requests } = await scripted({ connections: [[["1-2", ...snapshot("a")]], ...Array(40).fill(pinging(heads))] });
      const job = new Client(url, { retry: { patienceMs: 200, minDelayMs: 40, maxDelayMs: 40 } }).job(JOB);
      await assert.rejects(textOf(job), /patienceMs is 200/);
      assert.ok(requests.length < 40);
    }
  },

  async "the silence of a live stream counts toward the patience"() {
    const connections = Array.from({ length: 500 }, () => [["1-1", ...snapshot("")]]);
    const { url, requests } = await scripted({ connections, heartbeatMs: 20, ends: false });
    const job = new Client(url, { retry: { patienceMs: 500, maxDelayMs: 1 } }).job(JOB);
    await assert.rejects(textOf(job), tidewire.SilenceTimeoutError);
    assert.ok(requests.length >= 2 && requests.length <= 11, `${requests.length} connections, each silent for 50 ms`);
  },

  async "checks of a growing text read each part of it once"() {
    const encode = TextEncoder.prototype.encode;
    let encoded = 0;
    TextEncoder.prototype.encode = function (text) {
      encoded += text.length;
      return encode.call(this, text);
    };
    try {
      const document = new Document({ items: [{ value: "" }] }, [VALUE], { epoch: 1, seq: 1, text: "1-1" });
      const whole = "né 😀 ".repeat(1000);
      for (let end = 6; end <= whole.length; end += 6) {
        document.apply({ ops: [["a", VALUE, whole.slice(end - 6, end)]], check: [] });
        document.verify([[VALUE, [...whole.slice(0, end)].length, crc32(whole.slice(0, end))]]);
      }
      const ofExpected = (whole.length * (whole.length / 6 + 1)) / 2;
      assert.equal(encoded, ofExpected + whole.length);
      document.apply([["t", VALUE, 2], ["a", VALUE, "x"]]);
      const now = `${whole.slice(0, -3)}x`;
      document.verify([[VALUE, [...now].length, crc32(now)]]);
      assert.throws(() => document.verify([[VALUE, [...now].length, crc32(whole)]]), /check/);
    } finally {
      TextEncoder.prototype.encode = encode;
    }
  },

  async "an op reads the stable texts of its own item only"() {
    let reads = 0;
    const items = Array.from({ length: 100 }, () => ({ status: "running", value: "ab", get stable() {
      reads += 1;
      return { "": 1 };
    } }));
    const document = new Document({ items }, [], { epoch: 1, seq: 1, text: "1-1" });
    document.apply([["s", "/items/7/status", "succeeded"]]);
    assert.ok(reads > 0 && reads <= 2, `${reads} reads`);
    assert.throws(() => document.apply([["s", "/items/7/value", "b"]]), /stable prefix of {2}in item 7/);
    assert.throws(() => document.apply([["d", "/items/0"], ["s", "/items/3/value", ""]]), /stable prefix/);
  },

  async "text is yielded up to its stable part, and another loop gets the rest"() {
    const stable = (n) => [["s", "/items/0/stable", { "": n }]];
    const events = [
      ["1-1", ...snapshot("", { stable: { "": 0 } })], ["1-2", "abc"], ["1-3", "de"], ["1-4", stable(3)],
      ["1-5", [["t", VALUE, 1], ["a", VALUE, "fg"]]], ["1-6", stable(4)], ["1-7", stable(6)], ["1-8", "h"],
    ];
    const { url } = await scripted({ connections: [events, events.slice(7)] });
    const job = new Client(url, { retry: { attempts: 1 } }).job(JOB);
    const texts = [];
    await assert.rejects(async () => {
      for await (const text of job.iterText()) texts.push([text, job.checkpoint().cursor]);
    }, tidewire.TransportError);
    assert.deepEqual(texts, [["abc", "1-2"], ["dfg", "1-7"]]);
    const rest = [];
    await assert.rejects(async () => {
      for await (const delta of job.iterTextDeltas()) rest.push(delta);
    }, tidewire.TransportError);
    assert.deepEqual(rest, [{ deleted: 0, text: "h" }]);
  },

  async "text in an element that is appended is delivered"() {
    const parts = `${VALUE}/parts`;
    const events = [["1-1", ...snapshot({ parts: [] }, { columns: [`${parts}/0/text`] })], ["1-2", [["a", parts, [{ text: "ab" }]]]], ["1-3", "c"]];
    const { url } = await scripted({ connections: [events] });
    const texts = [];
    await assert.rejects(async () => {
      for await (const update of new Client(url, { retry: { attempts: 1 } }).job(JOB)) texts.push(update.text);
    }, tidewire.TransportError);
    assert.deepEqual(texts, ["", "ab", "c"]);
  },

  async "results as they complete do not disturb a loop"(url) {
    const batch = await new Client(url).submitBatch("point", [{ x: 1 }, { x: 2, fail: true }, { x: 3 }]);
    const completed = [];
    const updates = [];
    await Promise.all([
      (async () => {
        for await (const [index, result] of batch.asCompleted()) completed.push([index, result.x ?? result.ended]);
      })(),
      (async () => {
        for await (const update of batch) updates.push(update.index);
      })(),
    ]);
    assert.deepEqual(completed.sort(), [[0, 1], [1, "failed"], [2, 3]]);
    assert.ok(updates.includes(0) && updates.includes(2));
    for await (const [index] of batch.asCompleted()) completed.push(index);
    assert.deepEqual(completed.slice(3), [0, 1, 2]);
  },

  async "a value without text has no text to iterate"(url) {
    const job = await new Client(url).submit("count", { n: 2 });
    await assert.rejects(async () => {
      for await (const _ of job.iterText());
    }, tidewire.NoTextError);
  },

  async "tokens have texts from the vocabulary"() {
    const value = { text: "", token_ids: [], logprobs: [], top_ids: [], top_logprobs: [] };
    const columns = Object.keys(value).map((name) => `${VALUE}/${name}`);
    const events = [["1-1", ...snapshot(value, { columns })], ["1-2", [["r", "a", 0, -0.5, [0, 1], [-0.5, null]]]], ["1-3", [["r", "\ufeffé", 1, null, [1], [-2]]]]];
    const job = { id: JOB, endpoint: "generate", status: "running", batch: false, state: events[0][1].state, columns, cursor: "1-1", attempt: 1, created_at: "2026-03-01T12:00:00Z", links: { self: "a", events: "b", cancel: "c" } };
    const paths = {
      [`/v1/jobs/${JOB}`]: job,
      "/v1/endpoints/generate": { name: "generate", input_schema: {}, value_schema: {}, capabilities: {}, links: { vocabulary: "generate/vocabulary" } },
      "/v1/endpoints/generate/vocabulary": { hash: "h", tokens: ["YQ==", "77u/w6k="] },
    };
    const { url } = await scripted({ connections: [events], paths });
    const tokens = [];
    await assert.rejects(async () => {
      for await (const token of new Client(url, { retry: { attempts: 1 } }).job(JOB).tokens()) tokens.push(token);
    }, tidewire.TransportError);
    const alternatives = [[{ text: "a", id: 0, logprob: -0.5 }, { text: "\ufeffé", id: 1, logprob: -Infinity }], [{ text: "\ufeffé", id: 1, logprob: -2 }]];
    assert.deepEqual(tokens, [
      { text: "a", id: 0, logprob: -0.5, rank: null, alternatives: alternatives[0] },
      { text: "\ufeffé", id: 1, logprob: -Infinity, rank: null, alternatives: alternatives[1] },
    ]);
  },

  async "hostile names change no prototype"() {
    const data = JSON.parse('{"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}}');
    const events = [["1-1", ...snapshot({}, { columns: [] })], ["1-2", [["s", `${VALUE}/__proto__`, data], ["s", `${VALUE}/__proto__/__proto__/x`, 1], ["s", `${VALUE}/toString`, 2]]]];
    const { url } = await scripted({ connections: [events] });
    for await (const update of new Client(url).job(JOB)) {
      if (!update.ops) continue;
      assert.equal({}.polluted, undefined);
      assert.equal(JSON.stringify(update.value), '{"__proto__":{"__proto__":{"polluted":1,"x":1},"constructor":{"prototype":{"polluted":1}}},"toString":2}');
      assert.equal(update.ops[1][1], "/__proto__/__proto__/x");
      break;
    }
  },

  async "an id or name that leads to another path is refused"() {
    // URL parsers resolve `%2e%2e` as well, so that the request would go to /v1/jobs/../cancel, which is /v1/cancel.
    for (const name of ["..", "."]) {
      const [{ state, columns }] = snapshot("");
      const links = { self: `/v1/jobs/${name}`, events: `/v1/jobs/${name}/events`, cancel: `/v1/jobs/${name}/cancel` };
      const job = { id: name, endpoint: "talk", status: "running", batch: false, state, columns, cursor: "1-1", attempt: 1, created_at: "2026-03-01T12:00:00Z", links };
      const { url, requests } = await scripted({ connections: [], paths: { "/v1/endpoints/talk/jobs": job } });
      const client = new Client(url, { token: "secret" });
      for (const call of [() => client.job(name), () => client.batchJob(name), () => client.submit(name), () => client.describe(name), () => client.vocabulary(name)]) {
        await assert.rejects(async () => call(), (error) => error instanceof TypeError && error.message.includes(`not "${name}"`), name);
      }
      assert.throws(() => client.job({ checkpoint: { protocol: "tidewire/1", job: name } }), tidewire.CheckpointError);
      await assert.rejects(client.submit("talk"), tidewire.ProtocolError);
      assert.deepEqual(requests.map((request) => request.url), ["/v1/endpoints/talk/jobs"]);
    }
  },

  async "a diff with many ops or checks reads the state once"() {
    const text = "x".repeat(2 ** 20);
    const document = new Document({ status: "running", items: [{ status: "running", value: text }] }, [VALUE], { text: "1-1", epoch: 1, seq: 1 });
    let reads = 0;
    const starts = String.prototype.startsWith;
    String.prototype.startsWith = function (...args) {
      reads += this.length >= text.length;
      return starts.apply(this, args);
    };
    try {
      document.apply({ ops: [], check: Array(1000).fill([VALUE, text.length, crc32(text)]) }, { text: "1-2", epoch: 1, seq: 2 });
    } finally {
      String.prototype.startsWith = starts;
    }
    assert.ok(reads <= 1, `the text was compared ${reads} times`);

    const follower = new Follower(JOB, 2 ** 24);
    let items = 0;
    const item = Object.defineProperty({ value: 1 }, "status", { enumerable: true, get: () => ((items += 1), "running") });
    follower.restore({ status: "running", items: [{ status: "running", value: 1 }] }, [VALUE], { text: "1-1", epoch: 1, seq: 1 });
    follower.document.root.items.push(item);
    follower.connection.hello = {};
    await follower.receive({ type: "message", id: "1-2", data: JSON.stringify(Array(1000).fill(["s", "/other", 1])) });
    assert.ok(items <= 10, `the item was read ${items} times`);
    const invalid = { type: "message", id: "1-3", data: JSON.stringify([["s", "/status", "odd"], ["s", "/other", 1]]) };
    await assert.rejects(follower.receive(invalid), /invalid state/);
  },

  async "errors of a listener do not break the stream"(url) {
    const reported = [];
    console.error = (...report) => reported.push(report);
    const listener = () => {
      throw new Error("of the listener");
    };
    const value = await new Client(url).run("talk", { words: 3 }, { listener });
    assert.ok(value.length > 5);
    assert.ok(reported.length > 1);
  },

  async "a listener receives the events of a job"(url) {
    const events = [];
    const job = await new Client(url).submit("talk", { words: 8, slow: true }, { listener: (event, its) => events.push([event.type, its.id]) });
    await job.wait();
    assert.deepEqual(new Set(events.map(([, id]) => id)), new Set([job.id]));
    assert.deepEqual(new Set(events.map(([type]) => type)), new Set(["status", "item", "connection", "end"]));
    assert.equal(events.at(-1)[0], "end");
  },

  async "a token goes to its server only"() {
    const other = await scripted({ connections: [], paths: {} });
    const state = snapshot("a")[0].state;
    const links = { self: `${other.url}/v1/jobs/${JOB}`, events: `${other.url}/e`, cancel: "c" };
    const job = { id: JOB, endpoint: "talk", status: "running", batch: false, state, columns: [VALUE], cursor: "1-1", attempt: 1, created_at: "2026-03-01T12:00:00Z", links };
    const { url, requests } = await scripted({ connections: [[["1-1", ...snapshot("a")]]], paths: { "/v1/endpoints/talk/jobs": job } });
    const attached = await new Client(url, { token: "secret", retry: { attempts: 1 } }).submit("talk").catch((error) => error);
    assert.ok(attached instanceof tidewire.TidewireError || attached instanceof tidewire.Job);
    if (attached instanceof tidewire.Job) await textOf(attached).catch(() => {});
    assert.equal(other.requests.length, 0);
    assert.deepEqual(new Set(requests.map((request) => request.headers.authorization)), new Set(["Bearer secret"]));
    assert.ok(requests.every((request) => !request.url.includes("secret")));
  },

  async "a token that a header cannot contain is refused without naming it"() {
    for (const token of ["se\ncret", "se cret", "s\u00e9cret", ""]) {
      const late = new Client("http://a", { token: async () => token }).discover().catch((error) => error);
      const early = (() => {
        try {
          return new Client("http://a", { token });
        } catch (error) {
          return error;
        }
      })();
      for (const error of [early, await late]) {
        assert.ok(error instanceof TypeError && /visible ASCII/.test(error.message), error.stack);
        assert.ok(!error.stack.includes("cret"));
      }
    }
  },

  async "one signal ends many jobs without a warning"(url) {
    const warnings = [];
    const warned = (warning) => warnings.push(warning);
    process.on("warning", warned);
    const client = new Client(url);
    const controller = new AbortController();
    const { signal } = controller;
    const jobs = await Promise.all(Array.from({ length: 15 }, () => client.submit("forever", {}, { signal })));
    const loops = jobs.map((job) => assert.rejects(async () => {
      for await (const _ of job.updates({ signal })) {
        await new Promise((resolve) => setTimeout(resolve));
        controller.abort(new Error("hidden"));
      }
    }, /hidden/));
    await Promise.all(loops);
    await new Promise((resolve) => setImmediate(resolve)); // Node reports warnings later
    process.off("warning", warned);
    assert.deepEqual(warnings, []);
    await Promise.all(jobs.map((job) => job.cancel()));
  },

  async "a URL with credentials or another scheme is refused"() {
    for (const url of ["ftp://a", "http://user:password@a", "not a url"]) assert.throws(() => new Client(url), TypeError);
    const client = new Client("http://a/under/");
    assert.equal(client.job(`http://a/under/v1/jobs/${JOB}`).id, JOB);
    assert.throws(() => client.job(`http://b/under/v1/jobs/${JOB}`), TypeError);
    assert.throws(() => client.job({ checkpoint: { job: JOB, url: "http://b" } }), tidewire.CheckpointError);
    for (const saved of ["{", "[]", { job: JOB, cursor: "1-1" }, { job: JOB, cursor: "x", state: {} }]) {
      assert.throws(() => client.job({ checkpoint: saved }), tidewire.CheckpointError);
    }
    for (const retry of [{ patienceMs: 0 }, { attempts: 0 }, { jitter: 1 }, { minDelayMs: 0 }]) assert.throws(() => new Client("http://a", { retry }), RangeError);
  },
};

const PATIENCE_MS = 30_000;

const [url, ...names] = process.argv.slice(2);
if (url === undefined) console.log(JSON.stringify(Object.keys(BEHAVIORS)));
for (const name of names) {
  let timer;
  const hung = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`has not ended within ${PATIENCE_MS} ms`)), PATIENCE_MS);
  });
  const error = await Promise.race([BEHAVIORS[name](url), hung]).then(
    () => null,
    (error) => error?.stack ?? `${error}`,
  );
  clearTimeout(timer);
  console.log(JSON.stringify({ name, error }));
}
