// The JavaScript package as a client under test: runs one command of the conformance suite, in Node and in a page.

import * as tidewire from "../../../clients/javascript/src/index.js";

export const TRAITS = ["submit", "batch", "checkpoint", "cancel", "discover", "credentials", "attempts", "in_turn", "exact_json", "digests", "id_fields"];

const END_NAMES = [
  [tidewire.JobFailedError, "failed"],
  [tidewire.JobCancelledError, "cancelled"],
  [tidewire.UnsupportedProtocolError, "unsupported"],
  [tidewire.ProtocolError, "protocol_error"],
  [tidewire.RequestError, "refused"],
  [tidewire.TransportError, "connection_error"],
  [tidewire.CheckpointError, "usage_error"],
];

/** Compares JSON values, regardless of the order of members. */
function same(one, other) {
  const sorted = (value) => JSON.stringify(value, (_, each) => (each && typeof each === "object" && !Array.isArray(each) ? Object.fromEntries(Object.entries(each).sort()) : each));
  return sorted(one) === sorted(other);
}

/** Run one command, and send reports. */
export async function run(command, send) {
  const { id } = command;
  const tokens = [...(command.credentials ?? [])];
  const client = new tidewire.Client(command.base_url, {
    token: command.credentials && (() => tokens.shift()),
    retry: command.attempts === undefined ? {} : { attempts: command.attempts },
  });
  const kept = [];
  let job = null;
  const end = (name, members) => send({ id, kept: kept.map((update) => update.value), end: name, ...members });

  const follow = async () => {
    for await (const update of job) {
      const { value, deleted, text } = update;
      kept.push(update);
      const place = "inputs" in command ? { index: update.index } : {};
      send({ id, saw: "value", value, ...place, ...(!("inputs" in command) && (deleted || text || typeof value === "string") ? { deleted, text } : {}) });
      if ("stop_at" in command && same(value, command.stop_at)) return end("stopped", { checkpoint: job.checkpoint() });
      if ("cancel_at" in command && same(value, command.cancel_at)) await job.cancel();
    }
    if (!("inputs" in command)) return end("succeeded", { value: await job.result(), incomplete: false });
    const items = (await job.results({ returnExceptions: true })).map((result) =>
      result instanceof tidewire.ItemFailedError ? { status: result.ended, code: result.code } : { status: "succeeded", value: result });
    const ends = new Set(items.map(({ status }) => status));
    return end(!ends.has("succeeded") ? "failed" : ends.size === 1 ? "succeeded" : "partially_failed", { items });
  };

  try {
    if (command.do === "discover") {
      await client.discover();
      return end("discovered");
    }
    if ("inputs" in command) job = await client.submitBatch(command.endpoint, command.inputs);
    else if (command.do === "submit") job = await client.submit(command.endpoint, command.input);
    else job = client.job(command.job, { checkpoint: command.checkpoint });
    if (!("then_job" in command)) return await follow();
    for await (const update of job) {
      kept.push(update);
      send({ id, saw: "value", value: update.value, deleted: update.deleted, text: update.text });
    }
    job = client.job(command.then_job);
    return await follow();
  } catch (error) {
    const [, name] = END_NAMES.find(([kind]) => error instanceof kind) ?? [];
    if (name === undefined) throw error;
    const { state } = job?.checkpoint() ?? {};
    return end(name, {
      incomplete: true,
      detail: error.message,
      ...(state ? { value: state.items[0].value } : {}),
      ...(error.problem ? { problem: error.problem } : {}),
      ...(error.status ? { status: error.status } : {}),
    });
  }
}
