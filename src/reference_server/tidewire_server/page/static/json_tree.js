// A JSON value as a tree. A node compares the new value with the one that it shows, and only nodes in open parts of the tree
// exist, so that a change costs what is visible of it. Changed nodes flash.

import { counted, h, setText } from "./dom.js";
import { ImageView, isBase64 } from "./image.js";
import { below, imageType, resolved } from "./schema.js";
import { TextBlocks } from "./text_blocks.js";

const GROUP = 100; // children of one node; longer arrays and objects are shown in groups
const OPEN_DEPTH = 2; // nodes above this depth are open at first
const LONG_TEXT = 120;
const FLASH_INTERVAL = 1000; // ms between two flashes of a node
const MAX_FLASHES = 40; // at a time, in the whole tree

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class JsonTree {
  #root = null;
  #flashing = 0;
  #schema;

  /** @param {any} schema JSON Schema of the value */
  constructor(schema) {
    this.#schema = schema;
    this.element = h("div", { class: "tree", tabindex: "0", role: "region", "aria-label": "Value as JSON" });
  }

  /** Show a value. Returns false if a long text in it has to wait for the next frame: call again then. */
  show(value) {
    this.pending = false;
    this.#root = updated(this.#root, value, () => ({ tree: this, name: null, depth: 0, schema: resolved(this.#schema, this.#schema) }), (node) =>
      this.element.replaceChildren(node.element),
    );
    return !this.pending;
  }

  schemaBelow(schema, key) {
    return below(schema, this.#schema, key);
  }

  /** Flash an element, at most once a second, and never if its reader prefers reduced motion. */
  flash(node) {
    const now = performance.now();
    if (calm.matches || this.#flashing >= MAX_FLASHES || now < (node.flashedAt ?? 0) + FLASH_INTERVAL) return;
    node.flashedAt = now;
    this.#flashing += 1;
    const ended = () => (this.#flashing -= 1);
    node.flashed.animate([{ backgroundColor: "var(--flash)" }, { backgroundColor: "transparent" }], 700).finished.then(ended, ended);
  }
}

/** Show a value in a node, or in a new node that `place` puts into the document. Returns the node. */
function updated(node, value, place, put) {
  const kind = kindOf(value);
  if (node?.kind === kind) {
    node.update(value);
    return node;
  }
  const made = new (kind === "object" || kind === "array" ? Container : Leaf)(kind, place());
  made.update(value);
  put(made);
  if (node) made.place.tree.flash(made);
  return made;
}

function kindOf(value) {
  if (Array.isArray(value)) return "array";
  if (typeof value === "object" && value !== null) return "object";
  return typeof value === "string" ? "text" : "other";
}

const label = (name) => (name === null ? "" : typeof name === "number" ? `${name}` : name);
const nameTag = (name) => name !== null && h("span", { class: typeof name === "number" ? "index" : "key", text: `${label(name)}: ` });

/** A text, a number, a boolean or null. */
class Leaf {
  #shown;
  #content = null; // shows a long text, or an image

  constructor(kind, place) {
    Object.assign(this, { kind, place });
    this.type = imageType(place.schema);
    this.value = h("span", {});
    this.flashed = this.value;
    this.element = h("div", { class: "leaf" }, nameTag(place.name), this.value);
  }

  update(value) {
    const first = this.#shown === undefined;
    const changed = value !== this.#shown;
    this.#shown = value;
    if (changed && !first) this.place.tree.flash(this);
    if (this.kind === "text" && this.type !== null && isBase64(value)) return this.#contentOf(ImageView).show(value, this.type);
    if (this.kind === "text" && (value.length > LONG_TEXT || value.includes("\n"))) {
      setText(this.value, counted(value.length, "character"));
      this.value.className = "note";
      if (!this.#contentOf(TextBlocks).show(value)) this.place.tree.pending = true;
      return;
    }
    this.#content?.element.remove();
    this.#content = null;
    if (!changed) return;
    this.value.className = this.kind === "text" ? "string" : value === null ? "null" : typeof value;
    setText(this.value, JSON.stringify(value));
  }

  #contentOf(View) {
    if (this.#content instanceof View) return this.#content;
    this.#content?.element.remove();
    this.#content = new View(label(this.place.name) || "Value");
    this.value.textContent = "";
    this.element.append(this.#content.element);
    return this.#content;
  }
}

/** An object or an array, or a group of their children. */
class Container {
  #value;
  #children = new Map();
  #groupSize = 0;

  constructor(kind, place) {
    Object.assign(this, { kind, place });
    this.count = h("span", { class: "note" });
    this.flashed = this.count;
    this.body = h("div", { class: "children" });
    this.element = h("details", { class: "node" }, h("summary", {}, nameTag(place.name), this.count), this.body);
    this.element.open = place.depth < OPEN_DEPTH && place.group === undefined;
    this.element.addEventListener("toggle", () => this.#draw());
  }

  update(value) {
    const old = this.#value, first = old === undefined;
    if (value === old || (!first && this.#isSameGroup(old, value))) return;
    this.#value = value;
    if (this.place.group === undefined) {
      const size = this.kind === "array" ? value.length : Object.keys(value).length;
      if (first && size > GROUP && this.place.depth > 0) this.element.open = false;
      setText(this.count, this.kind === "array" ? `[${counted(size, "element")}]` : `{${counted(size, "member")}}`);
    }
    if (!first && !this.element.open) this.place.tree.flash(this);
    this.#draw();
  }

  /** Whether the elements of this group of an array are as they were. */
  #isSameGroup(old, value) {
    if (this.place.group === undefined || this.kind !== "array") return false;
    const { start, end } = this.place.group;
    if (Math.min(end, old.length) !== Math.min(end, value.length)) return false;
    for (let at = start; at < end && at < value.length; at += 1) if (old[at] !== value[at]) return false;
    return true;
  }

  #draw() {
    if (!this.element.open) {
      if (this.#children.size > 0) this.body.replaceChildren();
      this.#children.clear();
      return;
    }
    const names = this.kind === "array" ? null : Object.keys(this.#value);
    const { start = 0, end = names?.length ?? this.#value.length } = this.place.group ?? {};
    const stop = Math.min(end, names?.length ?? this.#value.length);
    let groupSize = 0;
    if (stop - start > GROUP) for (groupSize = GROUP; (stop - start) / groupSize > GROUP; ) groupSize *= GROUP;
    if (groupSize !== this.#groupSize) {
      this.#children.clear();
      this.body.replaceChildren();
      this.#groupSize = groupSize;
    }
    const shown = new Set();
    if (groupSize > 0) {
      for (let at = start; at < stop; at += groupSize) {
        const group = { start: at, end: Math.min(end, at + groupSize) };
        shown.add(at);
        this.#child(at, this.#value, () => ({ name: `${at} – ${Math.min(stop, at + groupSize) - 1}`, group, schema: this.place.schema }));
      }
    } else {
      for (let at = start; at < stop; at += 1) {
        const name = names === null ? at : names[at];
        shown.add(name);
        this.#child(name, this.#value[name], () => ({ name, schema: this.place.tree.schemaBelow(this.place.schema, name) }));
      }
    }
    for (const [name, node] of this.#children) {
      if (shown.has(name)) continue;
      node.element.remove();
      this.#children.delete(name);
    }
  }

  #child(name, value, place) {
    const old = this.#children.get(name);
    const node = updated(old, value, () => ({ ...place(), tree: this.place.tree, depth: this.place.depth + 1 }), (made) => {
      if (old) old.element.replaceWith(made.element);
      else this.body.append(made.element);
    });
    this.#children.set(name, node);
  }
}
