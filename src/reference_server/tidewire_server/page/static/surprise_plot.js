// The surprise of each token as bars. With more tokens than pixels, a bar shows the mean of some tokens, and their maximum
// above it in a lighter color.

import { counted, h, setText, surprise } from "./dom.js";

const BAR = 3; // pixels per bar, at least
const MAX_BAR = 14;
const MAX_BITS = 16; // higher surprises are cut off
const HEIGHT = 84;

export class SurprisePlot {
  #logprobs = [];
  #size = { width: 0, ratio: 1 };
  #perBar = 1;
  #barWidth = BAR;

  /** @param {(token: number) => void} select called with the token of a bar that was clicked */
  constructor(select) {
    this.canvas = h("canvas", { role: "img", height: HEIGHT });
    this.summary = h("span", { class: "numbers" });
    this.element = h("figure", { class: "plot" }, h("figcaption", {}, h("span", { text: "Surprise per token, in bits" }), this.summary), this.canvas);
    this.canvas.addEventListener("click", ({ offsetX }) => {
      const token = Math.floor(offsetX / this.#barWidth) * this.#perBar;
      if (token < this.#logprobs.length) select(token);
    });
    new ResizeObserver(([entry]) => {
      this.#size = { width: Math.floor(entry.contentRect.width), ratio: devicePixelRatio };
      this.draw();
    }).observe(this.element);
  }

  /** @param {(number | null)[]} logprobs in nats, one per token */
  show(logprobs) {
    this.#logprobs = logprobs;
    this.draw();
  }

  draw() {
    const { width, ratio } = this.#size, count = this.#logprobs.length;
    if (width === 0) return;
    const bars = Math.floor(width / BAR);
    this.#perBar = Math.max(1, Math.ceil(count / bars));
    this.#barWidth = this.#perBar === 1 ? Math.min(MAX_BAR, Math.max(BAR, Math.floor(width / Math.max(1, count)))) : BAR;
    if (this.canvas.width !== Math.round(width * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(HEIGHT * ratio);
    }
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    let total = 0, finite = 0;
    const means = [], peaks = [];
    for (let at = 0; at < count; at += this.#perBar) {
      let sum = 0, peak = 0;
      const end = Math.min(count, at + this.#perBar);
      for (let token = at; token < end; token += 1) {
        const bits = surprise(this.#logprobs[token]);
        if (bits < Infinity) total += bits, (finite += 1);
        sum += Math.min(bits, MAX_BITS);
        peak = Math.max(peak, Math.min(bits, MAX_BITS));
      }
      means.push(sum / (end - at));
      peaks.push(peak);
    }
    const top = Math.max(4, ...peaks);
    this.#bars(context, peaks, top, style.caretColor); // computed colors, which depend on the theme
    this.#bars(context, means, top, style.color);
    const mean = finite === 0 ? 0 : total / finite;
    setText(this.summary, count === 0 ? "" : `mean ${mean.toFixed(2)} · perplexity ${(2 ** mean).toFixed(2)} · ${counted(count, "token")}`);
    this.canvas.setAttribute("aria-label", count === 0 ? "No tokens yet" : `Bars of the surprise of ${counted(count, "token")}`);
  }

  #bars(context, values, top, color) {
    context.fillStyle = color;
    const gap = this.#barWidth > 4 ? 2 : 1;
    values.forEach((value, at) => {
      const height = Math.max(1, (value / top) * (HEIGHT - 2));
      context.fillRect(at * this.#barWidth, HEIGHT - height, this.#barWidth - gap, height);
    });
  }
}
