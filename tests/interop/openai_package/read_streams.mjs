// Read the streams of requests with the JavaScript package `openai`, and print a JSON array of the events of each on one line.
// Arguments: base URL, and a JSON array of requests, each with `chat`, `completions`, `responses` or `retrieve` and its body.
import OpenAI from "openai";

const [baseURL, requests] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });

const streams = {
  chat: (body) => client.chat.completions.create({ ...body, stream: true }),
  completions: (body) => client.completions.create({ ...body, stream: true }),
  responses: (body) => client.responses.create({ ...body, stream: true }),
  retrieve: ({ id, after }) => client.responses.retrieve(id, { stream: true, starting_after: after }),
};

for (const [api, body] of JSON.parse(requests)) {
  const events = [];
  try {
    for await (const event of await streams[api](body)) events.push(event);
  } catch (error) {
    events.push({ thrown: error.constructor.name, status: error.status ?? null, message: error.message });
  }
  console.log(JSON.stringify(events));
}
