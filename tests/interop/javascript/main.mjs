// The JavaScript package on the command line, for the tests. It prints one JSON text a line.
//
//   node main.mjs run BASE ENDPOINT BODY [NAME=VALUE…]      submit, and follow to the end
//   node main.mjs attach BASE JOB [NAME=VALUE…]             follow a job
//
// NAME=VALUE: minDelayMs, attempts, token, checkpoint (text), stopAfter (updates), cancelAfter (updates), key

import { Client, TidewireError } from "../../../clients/javascript/src/index.js";

function say(what) {
  console.log(JSON.stringify(what));
}

const [command, base, ...rest] = process.argv.slice(2);
const [what, body] = command === "run" ? rest.splice(0, 2) : rest.splice(0, 1);
const options = Object.fromEntries(rest.map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]));
const counts = { connections: 0, resyncs: 0 };
const client = new Client(base, {
  token: options.token,
  retry: { minDelayMs: Number(options.minDelayMs ?? 1), attempts: Number(options.attempts ?? Infinity) },
  listener: (event) => {
    if (event.type === "connection") counts.connections = event.connections;
    if (event.type === "connection" && event.state === "resync") counts.resyncs += 1;
  },
});

let job = null;
try {
  if (command === "run") {
    const { input, inputs } = JSON.parse(body);
    const idempotencyKey = options.key;
    job = inputs ? await client.submitBatch(what, inputs, { idempotencyKey }) : await client.submit(what, input, { idempotencyKey });
  } else job = client.job(what, { checkpoint: options.checkpoint });
  let count = 0;
  for await (const update of job) {
    const { id, index, deleted, text, value, ops } = update;
    say({ update: { id, index, deleted, text, value, ops } });
    count += 1;
    if (count === Number(options.cancelAfter)) await job.cancel();
    if (count === Number(options.stopAfter)) break;
  }
} catch (error) {
  if (!(error instanceof TidewireError)) throw error;
  say({ error: { name: error.name, message: error.message, problem: error.problem, value: error.value ?? null } });
}
if (job) {
  const { done, state } = job.ended ? await job.read() : {};
  say({ job: { id: job.id, ...counts, done, items: state?.items, checkpoint: JSON.stringify(job.checkpoint()) } });
}
