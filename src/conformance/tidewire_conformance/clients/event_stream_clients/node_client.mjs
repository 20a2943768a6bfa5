// Adapter for readers of event streams in JavaScript: node node_client.mjs NAME, where NAME is one of the functions below.
// Node looks for a package in the folder `node_modules` of the working directory or of one of its parents.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.cwd()}/`));
const name = process.argv[2];
const [packageName, can, open] = {
  eventsource: ["eventsource", ["types", "ids", "reconnect"], withEventSource],
  "eventsource-parser": ["eventsource-parser", ["types", "ids", "retry"], withParser],
  "fetch-event-source": ["@microsoft/fetch-event-source", ["types", "reconnect"], withFetchEventSource],
}[name];

function load() {
  try {
    return require(packageName);
  } catch (error) {
    console.error(`this client needs the package ${packageName}: npm install ${packageName} (${error.message})`);
    process.exit(1);
  }
}

function version() {
  const file = require.resolve.paths(packageName).map((folder) => `${folder}/${packageName}/package.json`);
  for (const each of file) {
    try {
      return require(each).version;
    } catch {
      continue;
    }
  }
  return "";
}

// eventsource: `EventSource` for Node. An EventSource has a listener for each type, so this one adds a listener when its
// dispatcher is called with an event of a new type.
function withEventSource(url, saw) {
  const { EventSource } = load();
  return new Promise((resolve) => {
    const source = new EventSource(url);
    const dispatch = source.dispatchEvent.bind(source);
    source.dispatchEvent = (event) => {
      if (event.data !== undefined) saw({ type: event.type, data: event.data, last_event_id: event.lastEventId });
      return dispatch(event);
    };
    source.onerror = () => {
      if (source.readyState === 2) resolve({ end: "closed" });
    };
  });
}

// eventsource-parser: the parser, with the bytes of a response of fetch.
async function withParser(url, saw) {
  const { createParser } = load();
  let retry = null;
  const response = await fetch(url, { headers: { Accept: "text/event-stream" } });
  const type = (response.headers.get("content-type") ?? "").split(";")[0].trim().toLowerCase();
  if (response.status !== 200 || type !== "text/event-stream") throw new Error(`status ${response.status}, type ${type}`);
  let lastId = "";
  const parser = createParser({
    onEvent: (event) => {
      lastId = event.id ?? lastId;
      saw({ type: event.event ?? "message", data: event.data, last_event_id: lastId });
    },
    onRetry: (milliseconds) => {
      retry = milliseconds;
    },
  });
  const decoder = new TextDecoder();
  for await (const chunk of response.body) parser.feed(decoder.decode(chunk, { stream: true }));
  parser.reset({ consume: true }); // as its documentation says
  return { end: "closed", retry_ms: retry };
}

// @microsoft/fetch-event-source: reconnects after an error only, so onclose raises one, as its documentation says.
async function withFetchEventSource(url, saw) {
  globalThis.window ??= globalThis;
  globalThis.document ??= { hidden: false, addEventListener() {}, removeEventListener() {} };
  const { fetchEventSource, EventStreamContentType } = load();
  class Final extends Error {}
  try {
    await fetchEventSource(url, {
      openWhenHidden: true,
      async onopen(response) {
        const type = (response.headers.get("content-type") ?? "").split(";")[0].trim().toLowerCase();
        if (response.status !== 200 || type !== EventStreamContentType) throw new Final(`status ${response.status}, type ${type}`);
      },
      onmessage(event) {
        // The `id` of a message is empty both without an id field and with an empty one, so it is not the last event id.
        saw({ type: event.event || "message", data: event.data });
      },
      onclose() {
        throw new Error("the response has ended");
      },
      onerror(error) {
        if (error instanceof Final) throw error;
      },
    });
  } catch (error) {
    return { end: "failed", detail: String(error) };
  }
  return { end: "closed" };
}

const write = (report) => process.stdout.write(`${JSON.stringify(report)}\n`);
load();
write({ client: `${packageName} ${version()}`, can });
const commands = createInterface({ input: process.stdin });
commands.on("close", () => process.exit(0)); // also while a stream is open that would reconnect for ever
for await (const line of commands) {
  const command = JSON.parse(line);
  if (command.op === "bye") break;
  const id = command.id;
  try {
    write({ id, ...(await open(command.url, (event) => write({ id, saw: "event", ...event }))) });
  } catch (error) {
    write({ id, end: "failed", detail: String(error) });
  }
}
process.exit(0);
