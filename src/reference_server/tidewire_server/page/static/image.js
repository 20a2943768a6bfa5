// An image in a value: base64, with a media type of the schema.

import { h } from "./dom.js";

const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

export const isBase64 = (text) => typeof text === "string" && text.length % 4 === 0 && BASE64.test(text);

/** An image that is replaced when a new one has been decoded, so that it does not flicker while a job refines it. */
export class ImageView {
  #shown = "";
  #decoding = false;
  #next = null;

  constructor(label) {
    this.label = label;
    this.element = h("div", { class: "image" });
  }

  show(text, type) {
    this.#next = { text, type };
    if (!this.#decoding && text !== this.#shown) this.#decode();
  }

  async #decode() {
    const { text, type } = this.#next;
    const image = h("img", { alt: this.label, src: `data:${type};base64,${text}` });
    this.#decoding = true;
    this.#shown = text;
    try {
      await image.decode();
      this.element.replaceChildren(image);
    } catch {
      this.element.replaceChildren(h("p", { class: "error", text: `This value is not an image of the type ${type}.` }));
    }
    this.#decoding = false;
    if (this.#next.text !== this.#shown) this.#decode();
  }
}
