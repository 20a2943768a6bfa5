// Runs spec/vectors through the decoder and the fold: `node vectors.mjs FOLDER`. Prints a line for each that fails, then the count.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Decoder } from "./decoder.mjs";
import { Refused, apply, digest, tokensOf, verify } from "./fold.mjs";
import { Decimal, canonical, parse } from "./strict_json.mjs";

const SHORT = 200; // bytes: up to here a stream is cut at every place, beyond it into pieces of a few sizes

/** Equal as JSON, and 1 is not 1.0. */
function same(one, other) {
  const mark = (_, value) => (value instanceof Decimal ? { decimal: Number(value) } : value);
  return canonical(JSON.parse(JSON.stringify(one, mark))) === canonical(JSON.parse(JSON.stringify(other, mark)));
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

function outcome(vector) {
  try {
    apply(vector.before, vector.columns ?? [], vector.diff);
    return "applied";
  } catch (error) {
    if (error instanceof Refused) return error.kind;
    throw error;
  }
}

const JUDGES = {
  sse: (vector) => {
    const { events, last_event_id, retry_ms } = vector;
    return [...chunkings(Buffer.from(vector.stream, "base64"))].every((chunks) =>
      same(decoded(chunks, vector.initial_last_event_id ?? ""), { events, last_event_id, retry_ms }),
    );
  },
  apply: (vector) => {
    const before = canonical(vector.before);
    const after = apply(vector.before, vector.columns ?? [], vector.diff);
    return same(after, vector.after) && canonical(vector.before) === before;
  },
  refused: (vector) => {
    const before = canonical(vector.before);
    return outcome(vector) === vector.outcome && canonical(vector.before) === before;
  },
  pointers: (vector) => {
    try {
      return same(tokensOf(vector.pointer), vector.tokens);
    } catch (error) {
      return error instanceof Refused && vector.tokens === null;
    }
  },
  proofs: (vector) => {
    if ("check" in vector) verify({ t: vector.text }, [vector.check]);
    return !("items" in vector) || (canonical(vector.items) === vector.canonical && digest(vector.items) === vector.digest);
  },
};

function judgeOf(folder, file) {
  return folder === "sse" ? JUDGES.sse : JUDGES[file.replace(".json", "")];
}

let count = 0;
let failures = 0;
for (const folder of ["sse", "diff"]) {
  for (const file of readdirSync(join(process.argv[2], folder)).filter((name) => name.endsWith(".json"))) {
    const judge = judgeOf(folder, file);
    if (!judge) throw new Error(`no judge for ${folder}/${file}`);
    for (const vector of parse(readFileSync(join(process.argv[2], folder, file), "utf-8")).vectors) {
      count += 1;
      let passed = false;
      let why = "";
      try {
        passed = judge(vector);
      } catch (error) {
        why = String(error);
      }
      if (!passed) {
        failures += 1;
        console.log(`${folder}/${file}: ${vector.name}: ${why || (folder === "diff" && "diff" in vector ? outcome(vector) : "differs")}`);
      }
    }
  }
}
console.log(`${count} vectors, ${failures} failed`);
process.exitCode = failures === 0 ? 0 : 1;
