// A text that grows, in blocks of a few thousand characters. The browser lays out only the blocks that are in view, and a
// piece at the end costs the layout of one block.

import { copiesExactText, followsItsEnd, h } from "./dom.js";

const BLOCK = 4_000;
const PER_FRAME = 100_000; // characters; more of a long text follows in the next frames

export class TextBlocks {
  #blocks = []; // { start, node }; the text of a block never changes, except at the end of the last one
  #shown = "";
  #toEnd;

  /** @param {string} label for screen readers */
  constructor(label) {
    this.element = h("div", { class: "text", tabindex: "0", role: "region", "aria-label": label });
    copiesExactText(this.element);
    this.#toEnd = followsItsEnd(this.element);
  }

  /** Show a text. Returns false if a part of it has to wait for the next frame: call again then. */
  show(text) {
    if (!text.startsWith(this.#shown)) this.#truncate(text);
    const end = Math.min(text.length, this.#shown.length + PER_FRAME);
    if (end === this.#shown.length) return true;
    this.#append(text.slice(this.#shown.length, end));
    this.#shown = text.slice(0, end);
    this.#toEnd();
    return end === text.length;
  }

  /** Remove the blocks from the first difference on. */
  #truncate(text) {
    while (this.#blocks.length > 0) {
      const { start, node } = this.#blocks.at(-1);
      const kept = this.#shown.slice(0, start);
      node.parentNode.remove();
      this.#blocks.pop();
      this.#shown = kept;
      if (text.startsWith(kept)) return;
    }
  }

  #append(piece) {
    if (this.#blocks.length === 0) this.#open(0, "");
    let { start, node } = this.#blocks.at(-1);
    node.appendData(piece);
    for (let at; (at = endOfBlock(node.data)) > 0; ) {
      const rest = node.data.slice(at);
      node.data = node.data.slice(0, at);
      start += at;
      node = this.#open(start, rest);
    }
  }

  #open(start, text) {
    const node = document.createTextNode(text);
    this.element.append(h("div", { class: "block" }, node));
    this.#blocks.push({ start, node });
    return node;
  }
}

/** Where a text is cut into blocks: after a line, or in a very long line after a space; 0 if it is too short. */
function endOfBlock(text) {
  if (text.length <= BLOCK) return 0;
  const line = text.indexOf("\n", BLOCK - 1);
  if (line >= 0) return line + 1;
  if (text.length <= 2 * BLOCK) return 0;
  const space = text.lastIndexOf(" ", 2 * BLOCK - 1);
  if (space > BLOCK) return space + 1;
  return (text.charCodeAt(2 * BLOCK) & 0xfc00) === 0xdc00 ? 2 * BLOCK - 1 : 2 * BLOCK; // never within a surrogate pair
}
