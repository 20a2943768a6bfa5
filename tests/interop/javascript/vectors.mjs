// Runs the vectors of the specification that are about a client: `node vectors.mjs FOLDER`.
// Prints a line for each that fails and for each file that is passed over, then the count.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { textChange } from "../../../clients/javascript/src/code_points.js";
import { digest } from "../../../clients/javascript/src/digests.js";
import { Document, changeOfText, tokensOf } from "../../../clients/javascript/src/document.js";
import { TidewireError } from "../../../clients/javascript/src/errors.js";
import { Decoder } from "../../../clients/javascript/src/event_decoder.js";
import { Follower } from "../../../clients/javascript/src/follower.js";
import { FITS, compareIds, parseId } from "../../../clients/javascript/src/messages.js";
import { actionFor, isEventStream, retryAfterMs } from "../../../clients/javascript/src/retry_policy.js";
import { InvalidData, canonicalPieces, copy, parse, same as equal } from "../../../clients/javascript/src/strict_json.js";

const SHORT = 200; // bytes: up to here a stream is cut at every place, beyond it into pieces of a few sizes
const JOB = "2yJq8sVbT1mHkP0dXw4RcA";
const HELLO = { protocol: "tidewire/1", job: JOB, events: "/x", head: "1-1", heartbeat_ms: 15000 };

/** Equal as JSON, regardless of the order of members. */
const same = (one, other) => equal(copy(one), copy(other));

function* chunkings(bytes) {
  yield [bytes];
  yield [...bytes].map((_, at) => bytes.subarray(at, at + 1));
  if (bytes.length <= SHORT) {
    for (let at = 1; at < bytes.length; at += 1) yield [bytes.subarray(0, at), bytes.subarray(at)];
  } else {
    for (const size of [2, 3, 7, 64, 1000]) {
      yield Array.from({ length: Math.ceil(bytes.length / size) }, (_, n) => bytes.subarray(n * size, (n + 1) * size));
    }
  }
}

function decoded(chunks, lastEventId) {
  const decoder = new Decoder({ lastEventId });
  const events = [];
  for (const chunk of chunks) {
    for (const event of decoder.feed(chunk)) {
      events.push({ type: event.type, data: event.data, id: event.lastEventId });
    }
  }
  return { events, last_event_id: decoder.lastEventId, retry_ms: decoder.retryMs };
}

/** A follower after hello, which holds a state up to an id. */
async function holding(id, state, columns) {
  const follower = new Follower(JOB, 2 ** 24);
  if (id !== null) follower.restore(state, columns, parseId(id));
  await follower.receive({ type: "hello", id: null, data: JSON.stringify(HELLO) });
  return follower;
}

/** What became of an event, in the words of the vectors. */
async function outcome(follower, event) {
  try {
    const found = await follower.receive(event);
    return found || event.type in FITS || follower.repeats > 0 ? "accept" : "ignore";
  } catch (error) {
    if (error instanceof InvalidData) return error.kind === "unknown" ? "unknown" : "malformed";
    if (!(error instanceof TidewireError)) throw error;
    return error.interruption === null ? "fatal" : "leave";
  }
}

const RUNNING = { status: "running", items: [{ status: "running", value: "" }], usage: {}, notes: [] };

/** Data of a good event of each kind, for a vector that is about ids alone. */
const GOOD = {
  snapshot: ({ reason }) => ({ state: RUNNING, columns: ["/items/0/value"], reason }),
  diff: ({ on }) => ({ ops: [], ...(on === undefined ? {} : { on }) }),
  done: async () => ({ status: "succeeded", usage: {}, check: [], digest: await digest(RUNNING.items), expires_at: "2026-03-01T13:00:00Z" }),
};

const refusedAs = (make) => {
  try {
    make();
    return "applied";
  } catch (error) {
    if (error instanceof InvalidData) return error.kind;
    throw error;
  }
};

/** The state after a diff. */
function applied(before, columns, diff) {
  const document = new Document(copy(before), columns);
  document.apply(diff);
  return document.root;
}

/** The base of a diff: the seq of the event before it, unless it names another. */
const baseOf = (diff, seq) => diff?.on ?? seq - 1;

const JUDGES = {
  "sse/framing": (vector) =>
    [...chunkings(Buffer.from(vector.stream, "base64"))].every((chunks) => {
      const { events, last_event_id, retry_ms } = vector;
      return same(decoded(chunks, vector.initial_last_event_id ?? ""), { events, last_event_id, retry_ms });
    }),
  "diff/apply": (vector) => same(applied(vector.before, vector.columns ?? [], vector.diff), vector.after),
  "diff/refused": async (vector) => {
    const document = new Document(copy(vector.before), vector.columns ?? []);
    const why = refusedAs(() => document.apply(vector.diff));
    if (why !== "applied") return why === vector.outcome && same(document.root, vector.before);
    // The follower refuses a diff that leaves no valid state, and a base that is not an earlier event.
    const follower = await holding("1-5", vector.before, vector.columns ?? []);
    const found = await outcome(follower, { type: "message", id: "1-6", data: JSON.stringify(vector.diff) });
    return vector.outcome === "malformed" && found === "malformed" && same(follower.document.root, vector.before);
  },
  "diff/pointers": (vector) =>
    vector.tokens === null
      ? refusedAs(() => tokensOf(vector.pointer)) === "malformed"
      : same(tokensOf(vector.pointer), vector.tokens),
  "diff/proofs": async (vector) => {
    if ("check" in vector) new Document({ t: vector.text }, []).verify([vector.check]);
    const items = copy(vector.items);
    return items === undefined || ([...canonicalPieces(items)].join("") === vector.canonical && (await digest(items)) === vector.digest);
  },
  "diff/merged": (vector) =>
    [vector.events, [vector.merged]].every((events) => {
      const document = new Document(copy(vector.before), vector.columns ?? []);
      let { epoch, seq } = parseId(vector.held);
      for (const event of events) {
        const id = parseId(event.id);
        if (id.epoch !== epoch || baseOf(event.diff, id.seq) !== seq) throw new Error(`${event.id} does not continue`);
        document.apply(event.diff);
        seq = id.seq;
      }
      return same(document.root, vector.after);
    }),
  "diff/told": ({ old, diff, new: fresh, void: voided, text }) => {
    const state = { items: [{ value: { t: old } }] };
    const document = new Document(state, ["/items/0/value/t"]);
    const moved = (ops) => ops.map(([op, path, ...rest]) => (op === "r" ? [op, path, ...rest] : [op, `/items/0/value${path}`, ...rest]));
    if (diff === undefined) return same(textChange(old, fresh), { deleted: voided, text });
    const ops = document.apply(typeof diff === "string" ? diff : Array.isArray(diff) ? moved(diff) : { ...diff, ops: moved(diff.ops) });
    const { value } = document.root.items[0];
    const found = changeOfText("/items/0/value/t", old, value.t, ops);
    return value.t === fresh && same(found, { deleted: voided, text });
  },
  "messages/json": (vector) => {
    let found = "accept";
    try {
      const bytes = "text" in vector ? Buffer.from(vector.text) : Buffer.from(vector.bytes, "base64");
      parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
    } catch (error) {
      if (!(error instanceof InvalidData) && !(error instanceof TypeError)) throw error;
      found = "malformed";
    }
    return found === vector.outcome;
  },
  "messages/events": async (vector, { held }) => {
    const { id, state, columns } = held[vector.held ?? "running"];
    const follower = await holding(id, state, columns);
    const found = await outcome(follower, { type: vector.type, id: vector.id ?? null, data: vector.data });
    return found === vector.outcome && (!("after" in vector) || same(follower.document.root, vector.after));
  },
  "messages/bodies": (vector) => {
    if (!(vector.body in FITS)) return null; // this client asks for neither lists nor stream tokens
    try {
      return FITS[vector.body](parse(vector.data)) === (vector.outcome === "accept");
    } catch (error) {
      return error instanceof InvalidData && vector.outcome === "malformed";
    }
  },
  "messages/answers": ({ asked, status, headers = {}, cursor, then }) => {
    const kind = asked === "other" ? "request" : asked;
    const action = actionFor(status, kind, { hasCursor: cursor, usable: isEventStream(new Headers(headers)) });
    return (action === "read_job" ? "read" : action) === then;
  },
  "messages/retry-after": ({ value, seconds }) => {
    const found = retryAfterMs(value);
    return (found === null ? null : found / 1000) === seconds;
  },
  "cursor/ids": ({ text, id }) => {
    const found = parseId(text);
    return same(found && [found.epoch, found.seq], id);
  },
  "cursor/order": ({ ids: [one, other], order }) => {
    const found = compareIds(parseId(one), parseId(other));
    return order === "below" ? found < 0 : order === "equal" ? found === 0 : found > 0;
  },
  "cursor/standing": async (vector) => {
    const follower = await holding(vector.mine, RUNNING, ["/items/0/value"]);
    const data = JSON.stringify(await GOOD[vector.event](vector));
    const found = await outcome(follower, { type: vector.event === "diff" ? "message" : vector.event, id: vector.id, data });
    const word = follower.repeats > 0 ? "repeat" : found === "accept" ? "next" : "resync";
    return word === vector.then && (word !== "next" || follower.id.text === vector.id);
  },
};

let [count, failures, passedOver] = [0, 0, 0];
for (const folder of readdirSync(process.argv[2], { withFileTypes: true }).filter((entry) => entry.isDirectory())) {
  for (const file of readdirSync(join(process.argv[2], folder.name)).filter((name) => name.endsWith(".json"))) {
    const name = `${folder.name}/${file.replace(".json", "")}`;
    const whole = parse(readFileSync(join(process.argv[2], folder.name, file), "utf-8"));
    if (whole.role === "server") {
      console.log(`passed over: ${name}, for servers`);
      continue;
    }
    for (const vector of whole.vectors) {
      let passed = false;
      let why = "";
      try {
        passed = await JUDGES[name](vector, whole);
      } catch (error) {
        why = String(error.stack);
      }
      if (passed === null) passedOver += 1;
      else count += 1;
      if (passed === false) {
        failures += 1;
        console.log(`${name}: ${vector.name} ${why}`);
      }
    }
  }
}
console.log(`${count} vectors, ${failures} failed, ${passedOver} passed over`);
process.exitCode = failures === 0 ? 0 : 1;
