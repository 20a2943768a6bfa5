// What an operator sees: queue, slots, batch sizes and rates of each endpoint, from the metrics of the server.

import { bytes, counted, h, number } from "./dom.js";

const INTERVAL = 2_000; // ms between two reads of the metrics
const HISTORY = 60; // reads in a sparkline
const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const SVG = "http://www.w3.org/2000/svg";

/** Read the Prometheus text format. @returns {Map<string, {labels: Record<string, string>, value: number}[]>} */
export function readMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = line.match(LINE) ?? [];
    if (name === undefined) continue;
    const escapes = { n: "\n", "\\": "\\", '"': '"' };
    const unescaped = [...labels.matchAll(LABEL)].map(([, key, raw]) => [key, raw.replace(/\\(.)/g, (_, char) => escapes[char] ?? char)]);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels: Object.fromEntries(unescaped), value: Number(value.replace("Inf", "Infinity")) });
  }
  return found;
}

export class OperatorView {
  #timer = null;
  #last = null;
  #history = new Map();
  #closed = false;

  /** @param {{metrics: () => Promise<string>}} source `metrics` rejects with an Error whose message is for the operator */
  constructor(source) {
    this.source = source;
    this.body = h("div", {});
    this.element = h("div", { class: "operator" }, h("h1", { text: "Operator" }), h("p", { class: "quiet", text: "Live numbers of this server process, from /metrics, every two seconds." }), this.body);
    this.visible = () => document.hidden || this.#read();
    document.addEventListener("visibilitychange", this.visible);
    this.#read();
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.visible);
  }

  async #read() {
    clearTimeout(this.#timer);
    try {
      const metrics = readMetrics(await this.source.metrics());
      if (this.#closed) return;
      this.#draw(metrics, performance.now());
    } catch (error) {
      if (this.#closed) return;
      this.#last = null;
      this.body.replaceChildren(h("p", { class: "banner bad", text: error.message }));
      if (error.final) return;
    }
    if (!document.hidden) this.#timer = setTimeout(() => this.#read(), INTERVAL);
  }

  #draw(metrics, at) {
    const total = (name, where = {}) =>
      (metrics.get(`tidewire_${name}`) ?? [])
        .filter(({ labels }) => Object.entries(where).every(([key, value]) => labels[key] === value))
        .reduce((sum, { value }) => sum + value, 0);
    const last = this.#last;
    this.#last = { total, at };
    const rate = (name, where) => (last === null ? null : Math.max(0, total(name, where) - last.total(name, where)) / ((at - last.at) / 1000));
    const per = (value, unit = "") => (value === null ? "…" : `${unit === "B" ? bytes(value) : number.format(value)}/s`);
    const track = (name, value) => {
      const values = [...(this.#history.get(name) ?? []), value ?? 0].slice(-HISTORY);
      this.#history.set(name, values);
      return sparkline(values);
    };
    const tile = (name, value, shown) =>
      h("div", { class: "tile" }, h("dt", { text: name }), h("dd", {}, h("strong", { text: shown }), track(name, value)));
    const started = rate("jobs_submitted_total"), streamed = rate("bytes_streamed_total"), logged = rate("events_logged_total");
    const tiles = h("dl", { class: "tiles" },
      tile("Running", total("items_running"), number.format(total("items_running"))),
      tile("Waiting", total("items_waiting"), number.format(total("items_waiting"))),
      tile("Jobs submitted", started, per(started)),
      tile("Events logged", logged, per(logged)),
      tile("Bytes streamed", streamed, per(streamed, "B")),
      tile("Open streams", total("open_streams"), number.format(total("open_streams"))),
    );
    const names = [...new Set((metrics.get("tidewire_slots") ?? []).map(({ labels }) => labels.endpoint))];
    const rows = names.map((endpoint) => {
      const where = { endpoint };
      const slots = total("slots", where), running = total("items_running", where);
      const batch = total("batch_size", where), tokens = rate("generated_tokens", where);
      const ended = ["succeeded", "failed", "cancelled"].map((status) => `${number.format(total("jobs_ended_total", { endpoint, status }))} ${status}`);
      return h("tr", {}, h("th", { scope: "row", text: endpoint }),
        h("td", { "data-name": "Slots" }, Number.isFinite(slots) && h("meter", { min: "0", max: slots || 1, value: running, "aria-label": `Slots of ${endpoint} in use` }), ` ${number.format(running)}${Number.isFinite(slots) ? ` of ${number.format(slots)}` : " running"}`),
        h("td", { "data-name": "Waiting", text: number.format(total("items_waiting", where)) }),
        h("td", { "data-name": "Items started", text: per(rate("items_started_total", where)) }),
        h("td", { "data-name": "Batch size", text: batch > 0 ? number.format(batch) : "–" }),
        h("td", { "data-name": "Tokens", text: metrics.get("tidewire_generated_tokens")?.some(({ labels }) => labels.endpoint === endpoint) ? per(tokens) : "–" }),
        h("td", { "data-name": "Jobs ended", text: ended.join(", ") }));
    });
    const head = ["Endpoint", "Slots", "Waiting", "Items started", "Batch size", "Tokens", "Jobs ended"];
    const table = h("table", {}, h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col", text })))), h("tbody", {}, ...rows));
    const resumed = total("stream_requests_total", { cursor: "yes" });
    const problems = (metrics.get("tidewire_problems_total") ?? []).map(({ labels, value }) => `${labels.code} ${number.format(value)}`);
    this.body.replaceChildren(tiles, h("h2", { text: "Endpoints" }), table, h("h2", { text: "Streams and problems" }), h("ul", { class: "facts" },
      h("li", { text: `${counted(resumed, "stream")} resumed at a cursor, ${number.format(total("events_merged_total"))} events merged for slow readers, ${number.format(total("streams_stalled_total"))} stalled.` }),
      h("li", { text: problems.length === 0 ? "No problem responses." : `Problem responses: ${problems.join(", ")}.` }),
    ));
  }
}

/** A line of the last values. It repeats what the number says, so screen readers skip it. */
function sparkline(values) {
  const svg = document.createElementNS(SVG, "svg");
  const attributes = { viewBox: `0 0 ${HISTORY - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" };
  for (const [name, value] of Object.entries(attributes)) svg.setAttribute(name, value);
  const top = Math.max(1, ...values);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", values.map((value, at) => `${HISTORY - values.length + at},${19 - (18 * value) / top}`).join(" "));
  svg.append(line);
  return svg;
}
