// A JSON value as a tree. The value may be changed in place between two calls of `show`, so a node keeps what it shows, and
// `show` gets which parts may have changed. Only nodes in open parts of the tree exist: a change costs what is visible of it.

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

  /**
   * Show a value. Returns false if a long text in it has to wait for the next frame: call again then.
   * @param {unknown} value
   * @param {Iterable<string> | null} changed JSON Pointers of what may have changed; null for everything
   */
  show(value, changed = null) {
    this.pending = false;
    const place = () => ({ tree: this, name: null, depth: 0, schema: resolved(this.#schema, this.#schema) });
    this.#root = updated(this.#root, value, partsOf(changed), place, (node) => this.element.replaceChildren(node.element));
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

/** What changed, as nested maps of names; EVERYTHING is a value and all that is in it. */
const EVERYTHING = null;
function partsOf(pointers) {
  if (pointers === null) return EVERYTHING;
  const root = new Map();
  for (const pointer of pointers) {
    const tokens = pointer.split("/").slice(1).map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~"));
    if (tokens.length === 0) return EVERYTHING;
    let parts = root;
    const last = tokens.pop();
    for (const token of tokens) {
      if (parts.get(token) === EVERYTHING && parts.has(token)) break;
      if (!parts.has(token)) parts.set(token, new Map());
      parts = parts.get(token);
    }
    if (parts !== EVERYTHING) parts.set(last, EVERYTHING);
  }
  return root;
}

/** Show a value in a node, or in a new node that `put` adds to the document. Returns the node. */
function updated(node, value, parts, place, put) {
  const kind = kindOf(value);
  if (node?.kind === kind) {
    node.update(value, parts);
    return node;
  }
  const made = new (kind === "object" || kind === "array" ? Container : Leaf)(kind, place());
  made.update(value, EVERYTHING);
  put(made);
  if (node) made.place.tree.flash(made);
  return made;
}

function kindOf(value) {
  if (Array.isArray(value)) return "array";
  if (typeof value === "object" && value !== null) return "object";
  return typeof value === "string" ? "text" : "other";
}

const nameTag = (name) => name !== null && h("span", { class: typeof name === "number" ? "index" : "key", text: `${name}: ` });

/** A text, a number, a boolean or null. */
class Leaf {
  #shown;
  #content = null; // shows a long text, or an image

  constructor(kind, place) {
    Object.assign(this, { kind, place });
    this.type = imageType(place.schema);
    this.flashed = this.value = h("span", {});
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
    this.#content = new View(`${this.place.name ?? ""}` || "Value");
    this.value.textContent = "";
    this.element.append(this.#content.element);
    return this.#content;
  }
}

/** An object or an array, or a group of their children. */
class Container {
  #value;
  #size = -1; // unknown, so that the count of an empty value is written, too
  #children = new Map();
  #groupSize = 0;

  constructor(kind, place) {
    Object.assign(this, { kind, place });
    this.count = h("span", { class: "note" });
    this.flashed = this.count;
    this.body = h("div", { class: "children" });
    this.element = h("details", { class: "node" }, h("summary", {}, nameTag(place.name), this.count), this.body);
    this.element.open = place.depth < OPEN_DEPTH && place.group === undefined;
    this.element.addEventListener("toggle", () => this.#draw(EVERYTHING));
  }

  update(value, parts) {
    const first = this.#value === undefined;
    this.#value = value;
    const size = this.kind === "array" ? value.length : Object.keys(value).length;
    if (this.place.group === undefined && size !== this.#size) {
      if (first && size > GROUP && this.place.depth > 0) this.element.open = false;
      setText(this.count, this.kind === "array" ? `[${counted(size, "element")}]` : `{${counted(size, "member")}}`);
    }
    const { start = 0, end = Infinity } = this.place.group ?? {};
    const grew = this.#size < end && size !== this.#size;
    this.#size = size;
    if (!first && !this.element.open && (grew || (parts !== EVERYTHING && touches(parts, start, end)))) this.place.tree.flash(this);
    this.#draw(parts);
  }

  #draw(parts) {
    if (!this.element.open) {
      if (this.#children.size > 0) this.body.replaceChildren();
      this.#children.clear();
      return;
    }
    const names = this.kind === "array" ? null : Object.keys(this.#value);
    const { start = 0, end = Infinity } = this.place.group ?? {};
    const stop = Math.min(end, this.#size);
    let groupSize = 0;
    if (stop - start > GROUP) for (groupSize = GROUP; (stop - start) / groupSize > GROUP; ) groupSize *= GROUP;
    if (groupSize !== this.#groupSize) {
      this.#children.clear();
      this.body.replaceChildren();
      this.#groupSize = groupSize;
    }
    const shown = new Set();
    for (let at = start; at < stop; at += groupSize || 1) {
      const name = names === null || groupSize > 0 ? at : names[at];
      shown.add(name);
      const value = groupSize > 0 ? this.#value : this.#value[name];
      const own = groupSize > 0 || parts === EVERYTHING ? parts : parts.get(String(name));
      // `undefined`: the child is as it was. An element that is new has no node yet.
      if (own !== undefined || !this.#children.has(name)) this.#child(name, value, own ?? EVERYTHING, groupSize);
    }
    for (const [name, node] of this.#children) {
      if (shown.has(name)) continue;
      node.element.remove();
      this.#children.delete(name);
    }
  }

  #child(name, value, parts, groupSize) {
    const old = this.#children.get(name);
    const place = () => {
      const { tree, schema, depth } = this.place;
      if (groupSize === 0) return { tree, name, depth: depth + 1, schema: tree.schemaBelow(schema, name) };
      const group = { start: name, end: Math.min(this.place.group?.end ?? Infinity, name + groupSize) };
      return { tree, name: `${name} – ${group.end - 1}`, depth: depth + 1, schema, group };
    };
    const node = updated(old, value, parts, place, (made) => {
      if (old) old.element.replaceWith(made.element);
      else this.body.append(made.element);
    });
    this.#children.set(name, node);
  }
}

function touches(parts, start, end) {
  for (const token of parts.keys()) if (end === Infinity || (Number(token) >= start && Number(token) < end)) return true;
  return false;
}
