// A page with browser_client.js in it: `node page.mjs BASE JOB`. Prints each state that it shows, then how it ended.

import { follow } from "../browser_client.js";
import { EventSource } from "./event_source.mjs";

globalThis.EventSource = EventSource;
const [base, job] = process.argv.slice(2);
const say = (what) => console.log(JSON.stringify(what));

follow({
  renew: (cursor) => `${base}/v1/jobs/${job}/events${cursor && `?after=${cursor}`}`,
  show: (state) => say({ show: state }),
  done: (state) => say({ done: state }),
  fail: (error) => say({ fail: error.code ?? String(error) }),
});
