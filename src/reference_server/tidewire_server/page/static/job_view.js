// One job: its status, its connection, its queue position and progress, and its value while it grows.

import { copyButton, counted, duration, h, number, onNextFrame, setText } from "./dom.js";
import { ImageView, isBase64 } from "./image.js";
import { JsonTree } from "./json_tree.js";
import { imageType, resolved } from "./schema.js";
import { SurprisePlot } from "./surprise_plot.js";
import { TextBlocks } from "./text_blocks.js";
import { TokenView } from "./token_view.js";

const TICK = 500; // ms between two updates of the times
const MAX_LOG = 50; // entries of the connection's history
const MAX_NOTES = 100; // the last ones are shown

export const STATUS_ICONS = { queued: "◔", running: "●", succeeded: "✓", failed: "✕", cancelled: "⊘", lost: "✕", partially_failed: "✕" };
const STATUS_NAMES = { partially_failed: "partially failed" };

/** A status as a chip. */
export function statusChip(status) {
  return h("span", { class: `chip ${status}` }, h("span", { "aria-hidden": "true", text: STATUS_ICONS[status] ?? "○" }), ` ${STATUS_NAMES[status] ?? status}`);
}

export class JobView {
  #shownItem = 0;
  #view = null; // { name, key, element, show(value, changed, ended) }
  #chosen = null; // name of the view that the reader chose
  #draw = onNextFrame(() => this.#drawn());
  #log = [];

  /**
   * @param {import("./job_feed.js").JobFeed} feed
   * @param {{endpoint: any, vocabulary: any, announce: (text: string) => void, cancel: () => Promise<void>, link: string}} context
   *   `endpoint` is the description of the job's endpoint, or null
   */
  constructor(feed, context) {
    Object.assign(this, { feed, context });
    this.chip = h("span", {});
    this.facts = h("p", { class: "quiet numbers" });
    this.cancel = h("button", { type: "button", class: "small danger", text: "Cancel" });
    this.cancel.addEventListener("click", () => this.#cancel());
    this.connection = h("p", { class: "connection" });
    this.history = h("ol", { class: "history" });
    this.queue = h("p", { class: "queue", hidden: true });
    this.progress = h("div", { class: "progress", hidden: true });
    this.item = h("select", { "aria-label": "Item of the job" });
    this.item.addEventListener("change", () => this.#show(Number(this.item.value)));
    this.items = h("label", { class: "items", hidden: true }, "Item ", this.item);
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Form of the result" });
    this.tabs.addEventListener("keydown", (event) => this.#moveTab(event));
    this.panel = h("div", { class: "panel", id: "result", role: "tabpanel", tabindex: "-1" });
    this.error = h("div", { class: "banner bad", hidden: true });
    this.notes = h("ul", { class: "notes", hidden: true });
    const copyValue = copyButton("Copy", () => this.#shownText());
    this.element = h("section", { class: "job", "aria-label": "Job" },
      h("div", { class: "job-head" }, this.chip, h("span", { class: "spring" }), this.cancel, copyButton("Copy link", () => context.link), copyValue),
      this.facts, this.connection, this.queue, this.progress, this.error, this.notes,
      h("div", { class: "bar" }, this.tabs, this.items), this.panel,
      h("details", { class: "connection-log" }, h("summary", { text: "Connection" }), this.history));
    feed.onChange = () => this.#draw();
    feed.onConnection = (entry) => this.#logged(entry);
    this.timer = setInterval(() => this.#times(), TICK);
    this.#draw();
  }

  close() {
    clearInterval(this.timer);
    this.feed.close();
  }

  redraw() {
    this.plot?.draw();
  }

  // ---- drawing ---------------------------------------------------------------------------------------------------

  #drawn() {
    const { feed } = this;
    const status = feed.status;
    if (this.chip.dataset.status !== status) {
      this.chip.dataset.status = status;
      this.chip.replaceChildren(statusChip(status));
    }
    this.cancel.hidden = feed.ended || feed.lost !== null;
    this.#times();
    this.#queue();
    this.#progress();
    this.#errors();
    this.#itemChoice();
    if (this.#value(feed.value(this.#shownItem)) === false) this.#draw();
    this.context.announce(this.#summary());
  }

  #summary() {
    const { feed } = this;
    if (feed.lost !== null) return feed.lost;
    if (!feed.ended && feed.connection.state === "waiting") return "Connection lost. Reconnecting.";
    const { queue, progress } = feed.job;
    if (feed.status === "queued" && queue) return `Queued at position ${queue.position}.`;
    if (feed.status === "running" && progress) return `Running, ${progressText(progress)}.`;
    return `Job ${STATUS_NAMES[feed.status] ?? feed.status}.`;
  }

  #times() {
    const { feed } = this, now = Date.now();
    const facts = [feed.endpoint ?? feed.job.id];
    if (feed.startedAt) facts.push(duration((feed.endedAt ?? now) - feed.startedAt));
    for (const [name, value] of Object.entries(feed.job.state?.usage ?? {}).slice(0, 4)) {
      if (typeof value === "number") facts.push(`${number.format(value)} ${name.replaceAll("_", " ")}`);
    }
    facts.push(counted(feed.received, "update"));
    if (feed.resumes > 0) facts.push(`resumed ${feed.resumes === 1 ? "once" : counted(feed.resumes, "time")}`);
    setText(this.facts, facts.join(" · "));
    const { state, retryAt, cursor } = feed.connection;
    const left = retryAt === null ? "" : ` Next try in ${duration(Math.max(0, retryAt - now))}.`;
    const after = cursor === null ? "" : ` after event ${cursor}`;
    const texts = {
      connecting: ["", "Connecting …"],
      live: ["good", feed.status === "queued" ? "Connected. The job keeps its place in the queue, also if you close this page." : feed.resumes > 0 ? `Live. The connection was lost and the stream resumed${after}: nothing is missing.` : "Live: every change arrives as it happens."],
      waiting: ["bad", `Connection lost. The job does not depend on it, and the stream continues${after}, without a gap.${left}`],
      hidden: ["", `Paused while this tab is hidden; continues${after}.`],
    };
    const [tone, text] = texts[state];
    this.connection.className = `connection ${tone}`;
    this.connection.hidden = feed.ended || feed.lost !== null;
    setText(this.connection, text);
  }

  #logged({ text, bad }) {
    const time = new Date().toLocaleTimeString();
    this.history.prepend(h("li", { class: bad ? "bad" : "" }, h("time", { text: time }), ` ${text}`));
    if (this.history.children.length > MAX_LOG) this.history.lastChild.remove();
    this.#draw();
  }

  #queue() {
    const { status, job: { queue } } = this.feed;
    this.queue.hidden = status !== "queued";
    if (status !== "queued") return;
    const parts = [queue ? `Position ${queue.position} in the queue` : "Waiting in the queue"];
    if ((queue?.etaMs ?? null) !== null) parts.push(`starts in about ${duration(queue.etaMs)}`);
    if (queue?.waitsFor) parts.push(`waits for a ${queue.waitsFor}`);
    setText(this.queue, parts.join(" · "));
  }

  #progress() {
    const { progress, ended } = this.feed.job;
    this.progress.hidden = !progress || ended;
    if (!progress || ended) return;
    const bar = this.progress.querySelector("progress") ?? h("progress", { "aria-label": "Progress" });
    if (progress.total) bar.setAttribute("max", progress.total), (bar.value = progress.current ?? 0);
    else bar.removeAttribute("value");
    if (!bar.parentNode) this.progress.append(bar, h("span", { class: "numbers" }));
    setText(this.progress.lastChild, progressText(progress));
  }

  #errors() {
    const { feed } = this;
    const error = feed.itemError(this.#shownItem) ?? feed.error;
    const text = feed.lost ?? (error ? `${error.detail ?? error.title} [${error.code}]` : "");
    this.error.hidden = text === "";
    setText(this.error, text);
    const notes = feed.job.state?.notes ?? [], last = notes.at(-1);
    if (this.lastNote === last) return;
    this.lastNote = last;
    this.notes.hidden = notes.length === 0;
    this.notes.replaceChildren(...notes.slice(-MAX_NOTES).map(({ level, text: note }) => h("li", { class: level === "info" ? "" : "bad", text: note })));
  }

  #itemChoice() {
    const { items } = this.feed;
    this.items.hidden = items.length < 2;
    if (items.length < 2) return;
    items.forEach((status, at) => {
      const option = this.item.children[at] ?? this.item.appendChild(h("option", { value: at }));
      setText(option, `${at + 1} of ${items.length} – ${status}`);
    });
  }

  #show(item) {
    this.#shownItem = item;
    this.#view = null;
    this.#draw();
  }

  // ---- the value -------------------------------------------------------------------------------------------------

  #value(value) {
    const { feed } = this;
    if ((value ?? null) === null || (value === "" && this.#view === null && !feed.ended)) {
      this.#view = null;
      this.#drawTabs([], "");
      const text = feed.ended || feed.lost !== null ? "There is no value." : "The value appears here as it grows.";
      if (this.panel.textContent !== text) this.panel.replaceChildren(h("p", { class: "quiet", text }));
      return true;
    }
    const names = this.#viewNames(value);
    const name = names.includes(this.#chosen) ? this.#chosen : names[0];
    this.#drawTabs(names, name);
    if (this.#view?.name !== name) {
      this.#view = { name, ...this.#made(name) };
      feed.tracksChanges = name === "JSON";
      this.panel.replaceChildren(this.#view.element);
      feed.takeChanged(this.#shownItem);
      return this.#view.show(value, null);
    }
    return this.#view.show(value, feed.takeChanged(this.#shownItem));
  }

  /** The value as text, in the form that is shown. */
  #shownText() {
    const value = this.feed.value(this.#shownItem) ?? null;
    if (value === null || this.#view?.name === "JSON") return JSON.stringify(value, null, 2);
    return typeof value === "string" ? value : value.text ?? JSON.stringify(value, null, 2);
  }

  /** The views that fit a value, the best one first. */
  #viewNames(value) {
    const schema = this.#valueSchema();
    if (typeof value === "string") {
      return imageType(schema) !== null && isBase64(value) ? ["Image", "JSON"] : ["Text", "JSON"];
    }
    if (typeof value !== "object" || Array.isArray(value) || typeof value.text !== "string") return ["JSON"];
    const hasTokens = Array.isArray(value.token_ids) && Array.isArray(value.logprobs) && (this.context.vocabulary || value.token_text);
    if (hasTokens) return ["Tokens", "Text", "JSON"];
    // The other members of a generation describe its text. Those of other values are a part of the result.
    const isText = this.context.endpoint?.capabilities?.model || Object.keys(value).length === 1;
    return isText ? ["Text", "JSON"] : ["JSON", "Text"];
  }

  #valueSchema() {
    const root = this.context.endpoint?.value_schema ?? {};
    return resolved(root, root);
  }

  #made(name) {
    this.plot = null;
    if (name === "JSON") {
      const tree = new JsonTree(this.context.endpoint?.value_schema ?? {});
      return { element: tree.element, show: (value, changed) => tree.show(value, changed) };
    }
    if (name === "Image") {
      const image = new ImageView(`Result of ${this.feed.endpoint}`);
      const type = imageType(this.#valueSchema());
      return { element: image.element, show: (value) => image.show(value, type) };
    }
    if (name === "Text") {
      const text = new TextBlocks("Text of the result");
      return { element: text.element, show: (value) => text.show(typeof value === "string" ? value : value.text) };
    }
    const tokens = new TokenView(this.context.vocabulary);
    this.plot = new SurprisePlot((token) => tokens.select(token, true));
    const legend = h("p", { class: "legend quiet" }, "likely ", ...Array.from({ length: 9 }, (_, bits) => h("span", { class: `s${bits}`, text: bits })), " surprising, in bits. Hover, tap or use the arrow keys for alternatives.");
    const element = h("div", {}, this.plot.element, tokens.element, legend);
    const show = (value) => {
      this.plot?.show(value.logprobs);
      return tokens.show(value, this.feed.ended);
    };
    return { element, show };
  }

  #drawTabs(names, current) {
    const key = names.join() + current;
    if (this.tabs.dataset.key === key) return;
    const hadFocus = this.tabs.contains(document.activeElement);
    this.tabs.dataset.key = key;
    this.tabs.replaceChildren(...names.map((name) => {
      const selected = name === current;
      const tab = h("button", { type: "button", role: "tab", text: name, "aria-selected": String(selected), "aria-controls": "result", tabindex: selected ? "0" : "-1" });
      tab.addEventListener("click", () => this.#choose(name));
      return tab;
    }));
    this.panel.setAttribute("aria-label", current);
    if (hadFocus) this.tabs.querySelector("[aria-selected=true]").focus();
  }

  #choose(name) {
    this.#chosen = name;
    this.#view = null;
    this.#draw();
  }

  #moveTab(event) {
    const tabs = [...this.tabs.children], by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.#choose(tabs[(tabs.indexOf(event.target) + by + tabs.length) % tabs.length].textContent);
  }

  async #cancel() {
    this.cancel.disabled = true;
    try {
      await this.context.cancel();
    } catch (error) {
      this.#logged({ text: `Cancel failed: ${error.message}`, bad: true });
    }
    this.cancel.disabled = false;
  }
}

function progressText({ current, total, unit, phase }) {
  const count = current === undefined ? "" : number.format(current) + (total ? ` of ${number.format(total)}` : "");
  return [phase, count && `${count}${unit ? ` ${unit}${(total ?? current) === 1 ? "" : "s"}` : ""}`].filter(Boolean).join(", ");
}
