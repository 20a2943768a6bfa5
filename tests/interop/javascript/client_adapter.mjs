// Conformance adapter for the JavaScript package in Node: reads commands and writes reports, one JSON object per line.

import { createInterface } from "node:readline";
import { TRAITS, run } from "./run_command.mjs";

const send = (report) => console.log(JSON.stringify(report));

send({ client: "JavaScript", can: TRAITS, at_once: 24 });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.op === "bye") process.exit(0);
  run(command, send).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
