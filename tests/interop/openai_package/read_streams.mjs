// Read the streams of a request with the JavaScript package `openai`, and print one JSON value per line.
// Arguments: base URL, `chat`, `completions`, `responses` or `retrieve`, and the body of the request.
import OpenAI from "openai";

const [baseURL, api, body] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const request = JSON.parse(body);

const streams = {
  chat: () => client.chat.completions.create({ ...request, stream: true }),
  completions: () => client.completions.create({ ...request, stream: true }),
  responses: () => client.responses.create({ ...request, stream: true }),
  retrieve: () => client.responses.retrieve(request.id, { stream: true, starting_after: request.after }),
};

try {
  for await (const event of await streams[api]()) console.log(JSON.stringify(event));
} catch (error) {
  console.log(JSON.stringify({ thrown: error.constructor.name, status: error.status ?? null, message: error.message }));
}
