// The client on the command line, for the tests: what happens comes out as one JSON text a line.
//
//   node main.mjs run BASE ENDPOINT BODY [NAME=VALUE…]      submit, and follow to the end
//   node main.mjs attach BASE JOB [NAME=VALUE…]             follow a job
//
// NAME=VALUE: baseMs, maxFailures, token, checkpoint (text), stopAfter (updates), cancelAfter (updates), key

import { Client, FateUnknown, GivenUp, JobExpired, ProtocolError, Refusal, UnsupportedProtocol } from "./client.mjs";

const KINDS = { UnsupportedProtocol, ProtocolError, JobExpired, Refusal, GivenUp, FateUnknown };

function say(what) {
  console.log(JSON.stringify(what));
}

async function follow(job, { stopAfter = Infinity, cancelAfter = Infinity }) {
  let count = 0;
  for await (const update of job.updates()) {
    say({ update: { id: update.id, reason: update.reason, texts: update.texts, value: update.value(0) } });
    count += 1;
    if (count === Number(cancelAfter)) await job.cancel();
    if (count === Number(stopAfter)) break;
  }
}

const [command, base, ...rest] = process.argv.slice(2);
const [what, body] = command === "run" ? rest.splice(0, 2) : rest.splice(0, 1);
const options = Object.fromEntries(rest.map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]));
const client = new Client(base, {
  token: options.token ?? null,
  baseMs: Number(options.baseMs ?? 1000),
  maxFailures: Number(options.maxFailures ?? Infinity),
});

let job = null;
try {
  if (command === "run") job = await client.submit(what, JSON.parse(body), options.key ? { key: options.key } : {});
  else job = client.job(what, options.checkpoint ?? null);
  await follow(job, options);
} catch (error) {
  const kind = Object.keys(KINDS).find((name) => error instanceof KINDS[name]);
  if (!kind) throw error;
  say({ error: { kind, message: error.message, status: error.status ?? null, problem: error.problem ?? null, checkpoint: error.checkpoint ?? null } });
}
if (job) {
  const { id, connections, dropped, resyncs, done, items } = job;
  say({ job: { id, connections, dropped, resyncs, done, items, checkpoint: job.checkpoint() } });
}
