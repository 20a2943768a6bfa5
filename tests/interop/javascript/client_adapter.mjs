// The JavaScript client of this folder as a client under test: it reads commands and writes reports, JSON a line.

import { createInterface } from "node:readline";
import { Client, FateUnknown, GivenUp, ProtocolError, Refusal, UnsupportedProtocol } from "./client.mjs";

const say = (line) => console.log(JSON.stringify(line));
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function wordOf(error) {
  if (error instanceof UnsupportedProtocol) return "unsupported";
  if (error instanceof ProtocolError) return /checkpoint/.test(error.message) ? "usage_error" : "protocol_error";
  if (error instanceof Refusal) return "refused";
  if (error instanceof GivenUp || error instanceof FateUnknown) return "connection_error";
  throw error;
}

class Run {
  values = [];
  handed = new Map();
  job = null;

  constructor(command) {
    Object.assign(this, { command, id: command.id });
    const tokens = [...(command.credentials ?? [])];
    this.client = new Client(command.base_url, {
      token: tokens.shift() ?? null,
      refresh: tokens.length ? async () => tokens.shift() : null,
      maxFailures: command.attempts ?? Infinity,
    });
  }

  async end() {
    const { command, client } = this;
    try {
      if (command.do === "discover") {
        await client.discover();
        return { end: "discovered" };
      }
      const body = "inputs" in command ? { inputs: command.inputs } : { input: command.input };
      if (command.do === "submit") this.job = await client.submit(command.endpoint, body);
      else this.job = client.job(command.job, command.checkpoint ?? null);
      for (const item of JSON.parse(command.checkpoint ?? "{}").state?.items ?? []) this.handed.set(this.handed.size, item.value);
      let end = await this.follow(this.job);
      if ("then_job" in command) end = await this.follow((this.job = client.job(command.then_job)));
      return end;
    } catch (error) {
      const kept = { value: this.handed.get(0) ?? null, incomplete: true, detail: error.message };
      return { end: wordOf(error), ...kept, ...(error.status && { status: error.status }), ...(error.problem && { problem: error.problem }) };
    }
  }

  async follow(job) {
    const { command } = this;
    let cancelled = false;
    for await (const update of job.updates()) {
      for (const [index] of job.items.entries()) this.saw(index, update.value(index), update.texts);
      const value = update.value(0);
      if ("stop_at" in command && same(value, command.stop_at)) return { end: "stopped", checkpoint: job.checkpoint() };
      if ("cancel_at" in command && same(value, command.cancel_at) && !cancelled) {
        cancelled = true;
        await job.cancel();
      }
    }
    const { status, error } = job.done;
    const items = job.items.map((item) => ({ status: item.status, ...(item.error && { code: item.error.code }) }));
    const batch = "inputs" in command ? { items } : {};
    return { end: status, value: job.items[0].value, incomplete: !job.items[0].complete, ...(error && { problem: error }), ...batch };
  }

  saw(index, value, texts) {
    const root = `/items/${index}/value`;
    const told = texts.find(({ path }) => path === root || path === `${root}/text`);
    if (!told && same(value, this.handed.get(index) ?? null)) return;
    this.handed.set(index, value);
    this.values.push(value);
    const place = "inputs" in this.command ? { index } : {};
    const text = told ? { deleted: told.voided, text: told.text } : typeof value === "string" ? { deleted: 0, text: "" } : {};
    say({ id: this.id, saw: "value", value, ...place, ...text });
  }
}

say({ client: "JavaScript", can: ["submit", "batch", "checkpoint", "cancel", "discover", "credentials", "attempts", "in_turn", "exact_json", "digests", "id_fields"] });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.op === "bye") process.exit(0);
  const run = new Run(command);
  const end = await run.end();
  say({ id: command.id, kept: run.values, ...end });
}
