// The text of a generation, each token shaded by its surprise. The text is exactly the member `text` of the value: the
// vocabulary only says how much of it belongs to each token.

import { copiesExactText, followsItsEnd, h, probability, surprise } from "./dom.js";
import { wholeCharacters } from "./vocabulary.js";

const PER_BLOCK = 200; // tokens; the browser lays out only the blocks that are in view
const PER_FRAME = 1_000; // tokens; more follow in the next frames
const SHADES = 8; // classes s0 to s8, one for each bit of surprise
const MOVES = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };

export class TokenView {
  #blocks = []; // { first, start, pending, element }: its first token, where its text starts, bytes before it
  #ids = []; // of the shown tokens
  #pending = ""; // bytes of a character that the next token completes
  #end = 0; // of the text of the shown tokens
  #value = null;
  #selected = -1;
  #toEnd;

  /** @param {import("./vocabulary.js").Vocabulary | null} vocabulary */
  constructor(vocabulary) {
    this.vocabulary = vocabulary;
    this.tail = h("span", {});
    this.text = h("div", { class: "text tokens", tabindex: "0", role: "region", "aria-label": "Generated text; the arrow keys move between tokens" }, this.tail);
    this.details = h("div", { class: "token-details", id: "token-details", role: "status", hidden: true });
    this.element = h("div", { class: "token-view" }, this.text, this.details);
    copiesExactText(this.text);
    this.#toEnd = followsItsEnd(this.text);
    this.text.addEventListener("pointerover", (event) => this.#pointed(event.target));
    this.text.addEventListener("pointerleave", () => this.#selected < 0 && this.#hide());
    this.text.addEventListener("click", (event) => this.select(this.#indexOf(event.target)));
    this.text.addEventListener("keydown", (event) => this.#moved(event));
    this.text.addEventListener("blur", () => this.select(-1));
    new ResizeObserver(() => this.#hide()).observe(this.element);
    this.text.addEventListener("scroll", () => this.#hide(), { passive: true });
  }

  /** Show a value. Returns false if a part of it has to wait for the next frame: call again then. */
  show(value, ended) {
    this.#value = value;
    const ids = value.token_ids ?? [];
    const same = this.#ids.findIndex((id, at) => id !== ids[at]);
    if (same >= 0) this.#truncate(same);
    const { text } = value;
    if (this.#ids.length === 0) this.#end = this.#prefix(text, ids);
    const stop = Math.min(ids.length, this.#ids.length + PER_FRAME);
    let block = this.#blocks.at(-1);
    let waits = false;
    for (let at = this.#ids.length; at < stop; at += 1) {
      const [piece, pending] = this.#pieceOf(at, ids[at]);
      // Text that may become a stop string is held back, so the text may end before its tokens do.
      waits = !ended && this.#end + piece.length > text.length;
      if (waits) break;
      if (block === undefined || at - block.first >= PER_BLOCK) block = this.#open(at);
      const end = Math.min(text.length, this.#end + piece.length);
      block.element.append(h("span", { class: `s${shadeOf(value.logprobs?.[at])}`, text: text.slice(this.#end, end) }));
      this.#ids.push(ids[at]);
      this.#end = end;
      this.#pending = pending;
    }
    const complete = waits || this.#ids.length === ids.length;
    const rest = complete ? text.slice(this.#end) : "";
    if (this.tail.textContent !== rest) this.tail.textContent = rest;
    this.#toEnd();
    return complete;
  }

  /** Where the text of the first token starts: after the prompt, if the text echoes it. */
  #prefix(text, ids) {
    const [joined] = wholeCharacters(ids.map((id) => this.vocabulary?.bytes(id) ?? "").join(""));
    const start = joined === "" ? 0 : text.lastIndexOf(joined);
    if (start > 0) this.text.prepend(h("span", { class: "echo", text: text.slice(0, start) }));
    return Math.max(0, start);
  }

  #pieceOf(at, id) {
    if (this.vocabulary !== null) return wholeCharacters(this.#pending + this.vocabulary.bytes(id));
    return [this.#value.token_text?.[at] ?? "", ""];
  }

  #open(first) {
    const block = { first, start: this.#end, pending: this.#pending, element: h("div", { class: "block" }) };
    this.#blocks.push(block);
    this.tail.before(block.element);
    return block;
  }

  /** Remove the tokens from a retracted one on, back to the beginning of its block. */
  #truncate(token) {
    while (this.#blocks.length > 0 && this.#ids.length > token) {
      const block = this.#blocks.pop();
      block.element.remove();
      this.#ids.length = block.first;
      this.#end = block.start;
      this.#pending = block.pending;
    }
    if (this.#blocks.length === 0) this.text.querySelector(".echo")?.remove();
    this.select(-1);
  }

  // ---- one token -----------------------------------------------------------------------------------------------

  #spanOf(index) {
    const block = this.#blocks[Math.floor(index / PER_BLOCK)];
    return block?.element.children[index - block.first];
  }

  #indexOf(span) {
    const block = this.#blocks.find(({ element }) => element === span.parentNode);
    return block === undefined ? -1 : block.first + Array.prototype.indexOf.call(block.element.children, span);
  }

  #pointed(span) {
    const index = this.#indexOf(span);
    if (index >= 0 && this.#selected < 0) this.#describe(index, span);
  }

  #moved(event) {
    const by = MOVES[event.key];
    if (event.key === "Escape") this.select(-1);
    if (by === undefined || this.#ids.length === 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const from = this.#selected < 0 && by < 0 ? this.#ids.length : this.#selected;
    this.select(Math.min(this.#ids.length - 1, Math.max(0, from + by)), true);
  }

  /** Select a token, and show its alternatives; -1 for none. */
  select(index, scrolls = false) {
    this.#spanOf(this.#selected)?.classList.remove("selected");
    this.#selected = index;
    const span = this.#spanOf(index);
    if (!span) return this.#hide();
    span.classList.add("selected");
    if (scrolls) span.scrollIntoView({ block: "nearest" });
    // The scroll event of this movement hides the details of the token before.
    requestAnimationFrame(() => requestAnimationFrame(() => this.#selected === index && this.#describe(index, span)));
  }

  #hide() {
    this.details.hidden = true;
  }

  #describe(index, span) {
    const { token_ids: ids, logprobs, ranks, top_ids: topIds, top_logprobs: top } = this.#value;
    const own = logprobs?.[index];
    const rows = (topIds?.[index] ?? []).map((id, at) => ({ id, logprob: top?.[index]?.[at] ?? null, name: this.#name(id, index, at) }));
    if (own !== undefined && !rows.some(({ id }) => id === ids[index])) rows.push({ id: ids[index], logprob: own, name: this.#name(ids[index], index) });
    const bits = own === undefined ? null : surprise(own);
    const facts = [`token ${index + 1}`, `id ${ids[index]}`, ranks?.[index] && `rank ${ranks[index]}`, bits !== null && `${bits.toFixed(1)} bits`];
    const list = h("ol", {}, ...rows.map((row) => {
      const meter = h("meter", { min: "0", max: "1", value: Math.exp(row.logprob ?? -Infinity), "aria-hidden": "true" });
      return h("li", { class: row.id === ids[index] ? "chosen" : "" }, h("code", { text: row.name }), meter, h("span", { text: probability(row.logprob) }));
    }));
    const title = h("p", {}, h("code", { text: this.#name(ids[index], index) }), own !== undefined && h("strong", { text: ` ${probability(own)}` }));
    this.details.replaceChildren(title, h("p", { class: "quiet", text: facts.filter(Boolean).join(" · ") }), list);
    this.details.hidden = false;
    this.#place(span);
  }

  #name(id, index, at) {
    const { token_text: texts, top_text: topTexts } = this.#value;
    const text = this.vocabulary?.text(id) ?? (at === undefined ? texts?.[index] : topTexts?.[index]?.[at]);
    return text === undefined ? `#${id}` : JSON.stringify(text).slice(1, -1).replaceAll(" ", "␣") || "∅";
  }

  /** Place the details below or above the token, within the view. */
  #place(span) {
    const around = this.element.getBoundingClientRect(), token = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.details;
    const below = token.bottom + 6 + height <= innerHeight || token.top < height + 6;
    this.details.style.left = `${Math.max(0, Math.min(token.left - around.left, around.width - width))}px`;
    this.details.style.top = `${(below ? token.bottom + 6 : token.top - height - 6) - around.top}px`;
  }
}

/** The class of a token by its surprise; 0 is none, for a token without a log-probability. */
function shadeOf(logprob) {
  if (logprob === undefined) return 0;
  return Math.min(SHADES, Math.floor(surprise(logprob)));
}
