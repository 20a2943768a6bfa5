// Runs the vectors of the specification that are about a client: `node vectors.mjs FOLDER`.
// Prints a line for each that fails and for each file that is passed over, then the count.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { retryAfterMs, verdict } from "./answers.mjs";
import { Decoder } from "./decoder.mjs";
import { Refused, apply, baseOf, digest, textChange, tokensOf, verify } from "./fold.mjs";
import { Follower } from "./follower.mjs";
import { FITS, compareIds, parseId } from "./messages.mjs";
import { Decimal, JSONError, canonical, parse } from "./strict_json.mjs";

const SHORT = 200; // bytes: up to here a stream is cut at every place, beyond it into pieces of a few sizes
const JOB = "2yJq8sVbT1mHkP0dXw4RcA";
const HELLO = { protocol: "tidewire/1", job: JOB, events: "/x", head: "1-1", heartbeat_ms: 15000 };

/** Equal as JSON, and 1 is not 1.0. */
function same(one, other) {
  const mark = (value) => {
    if (Array.isArray(value)) return value.map(mark);
    if (value instanceof Decimal) return { decimal: Number(value) };
    if (typeof value !== "object" || value === null) return value;
    return Object.assign(Object.create(null), ...Object.entries(value).map(([name, x]) => ({ [name]: mark(x) })));
  };
  return canonical(mark(one)) === canonical(mark(other));
}

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
function holding(id, state, columns) {
  const follower = new Follower(JOB, { id, state, columns });
  follower.take({ type: "hello", id: null, data: JSON.stringify(HELLO) });
  return follower;
}

const OUTCOMES = { update: "accept", done: "accept", hello: "accept", cut: "leave", goaway: "leave", busy: "leave", fatal: "fatal" };

/** What became of an event, in the words of the vectors. */
function outcome(action, type) {
  if (action.do === "resync") return action.unknown ? "unknown" : "malformed";
  if (action.do === "ignore") return type in FITS ? "accept" : "ignore";
  return OUTCOMES[action.do];
}

const RUNNING = { status: "running", items: [{ status: "running", value: "" }], usage: {}, notes: [] };

/** Data of a good event of each kind, for a vector that is about ids alone. */
const GOOD = {
  snapshot: ({ reason }) => ({ state: RUNNING, columns: ["/items/0/value"], reason }),
  diff: ({ on }) => ({ ops: [], ...(on === undefined ? {} : { on }) }),
  done: () => ({ status: "succeeded", usage: {}, check: [], digest: digest(RUNNING.items), expires_at: "2026-03-01T13:00:00Z" }),
};

const refusedAs = (make) => {
  try {
    make();
    return "applied";
  } catch (error) {
    if (error instanceof Refused) return error.kind;
    throw error;
  }
};

const JUDGES = {
  "sse/framing": (vector) =>
    [...chunkings(Buffer.from(vector.stream, "base64"))].every((chunks) => {
      const { events, last_event_id, retry_ms } = vector;
      return same(decoded(chunks, vector.initial_last_event_id ?? ""), { events, last_event_id, retry_ms });
    }),
  "diff/apply": (vector) => {
    const before = canonical(vector.before);
    const after = apply(vector.before, vector.columns ?? [], vector.diff);
    return same(after, vector.after) && canonical(vector.before) === before;
  },
  "diff/refused": (vector) => {
    const before = canonical(vector.before);
    const why = refusedAs(() => apply(vector.before, vector.columns ?? [], vector.diff));
    return why === vector.outcome && canonical(vector.before) === before;
  },
  "diff/pointers": (vector) =>
    vector.tokens === null
      ? refusedAs(() => tokensOf(vector.pointer)) === "malformed"
      : same(tokensOf(vector.pointer), vector.tokens),
  "diff/proofs": (vector) => {
    if ("check" in vector) verify({ t: vector.text }, [vector.check]);
    return !("items" in vector) || (canonical(vector.items) === vector.canonical && digest(vector.items) === vector.digest);
  },
  "diff/merged": (vector) => {
    const follow = (held, events) =>
      events.reduce(
        ({ id, state }, event) => {
          const { epoch, seq } = parseId(event.id);
          if (epoch !== id.epoch || baseOf(event.diff, seq) !== id.seq) throw new Error(`${event.id} does not continue`);
          return { id: { epoch, seq }, state: apply(state, vector.columns ?? [], event.diff, seq) };
        },
        { id: parseId(held), state: vector.before },
      ).state;
    return [vector.events, [vector.merged]].every((events) => same(follow(vector.held, events), vector.after));
  },
  "diff/told": ({ old, diff, new: fresh, void: voided, text }) => {
    const held = diff === undefined ? fresh : apply({ t: old }, ["/t"], diff).t;
    return held === fresh && same(textChange(old, held), { voided, text });
  },
  "messages/json": (vector) => {
    let found = "accept";
    try {
      const bytes = "text" in vector ? Buffer.from(vector.text) : Buffer.from(vector.bytes, "base64");
      parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
    } catch (error) {
      if (!(error instanceof JSONError) && !(error instanceof TypeError)) throw error;
      found = "malformed";
    }
    return found === vector.outcome;
  },
  "messages/events": (vector, { held }) => {
    const { id, state, columns } = held[vector.held ?? "running"];
    const follower = holding(id, state, columns);
    const action = follower.take({ type: vector.type, id: vector.id ?? null, data: vector.data });
    return outcome(action, vector.type) === vector.outcome && (!("after" in vector) || same(follower.state, vector.after));
  },
  "messages/bodies": (vector) => {
    if (!(vector.body in FITS)) return null; // this client asks for neither lists nor stream tokens
    try {
      return FITS[vector.body](parse(vector.data)) === (vector.outcome === "accept");
    } catch (error) {
      return error instanceof JSONError && vector.outcome === "malformed";
    }
  },
  "messages/answers": ({ asked, status, headers = {}, cursor, then }) => verdict(asked, status, headers, cursor) === then,
  "messages/retry-after": ({ value, seconds }) => {
    const found = retryAfterMs(value === null ? {} : { "retry-after": value });
    return (found === undefined ? null : found / 1000) === seconds;
  },
  "cursor/ids": ({ text, id }) => {
    const found = parseId(text);
    return same(found && [found.epoch, found.seq], id);
  },
  "cursor/order": ({ ids: [one, other], order }) => {
    const found = compareIds(parseId(one), parseId(other));
    return order === "below" ? found < 0 : order === "equal" ? found === 0 : found > 0;
  },
  "cursor/standing": (vector) => {
    const follower = holding(vector.mine, RUNNING, ["/items/0/value"]);
    const data = JSON.stringify(GOOD[vector.event](vector));
    const action = follower.take({ type: vector.event === "diff" ? "message" : vector.event, id: vector.id, data });
    const word = follower.dropped > 0 ? "repeat" : action.do === "resync" ? "resync" : "next";
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
        passed = JUDGES[name](vector, whole);
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
