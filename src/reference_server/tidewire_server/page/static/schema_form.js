// A form for the input of an endpoint, generated from its JSON Schema, and the same input as JSON.

import { copy, parse } from "./client/strict_json.js";
import { bytes, h } from "./dom.js";
import { ImageView } from "./image.js";
import { imageType, isFile, members, resolved } from "./schema.js";

const MAX_FIELDS = 200; // the input of a schema with more members is written as JSON
const MAX_SHOWN_FIELDS = 7; // of the optional members; the others are below "More options"
const SINGLE_LINE = 60;

/** A message for the caller about one field. */
export class InputError extends Error {
  constructor(field, message, isMissing = false) {
    super(message);
    Object.assign(this, { field, isMissing });
  }
}

export class SchemaForm {
  #fields = new Map();
  #json = null; // the textarea, while the input is edited as JSON
  #kept = {}; // members of an example that have no field

  /** @param {any} endpoint description of the endpoint  @param {number} maxBytes limit of a request's body */
  constructor(endpoint, maxBytes) {
    this.root = endpoint.input_schema;
    this.maxBytes = maxBytes;
    const schema = resolved(this.root, this.root);
    const found = members(schema, this.root);
    this.isObject = found.length > 0 || schema.type === "object";
    this.fieldset = h("div", { class: "fields" });
    this.problem = h("p", { class: "error", role: "alert", hidden: true });
    this.toggle = h("button", { type: "button", class: "small", text: "Edit as JSON", "aria-pressed": "false" });
    this.toggle.addEventListener("click", () => this.#switch());
    this.element = h("div", { class: "form" }, this.fieldset, this.problem);
    if (!this.isObject) this.#add("input", schema, true, this.fieldset);
    else if (found.length <= MAX_FIELDS) this.#addMembers(found, schema, endpoint.examples);
    if (this.isObject && this.#fields.size === 0 && (found.length > 0 || schema.additionalProperties)) this.#switch();
    else if (this.isObject && found.length === 0) this.fieldset.append(h("p", { class: "quiet", text: "This endpoint takes no input." }));
  }

  #addMembers(found, schema, examples) {
    const required = new Set(Array.isArray(schema.required) ? schema.required : []);
    const used = new Set((Array.isArray(examples) ? examples : []).flatMap((each) => Object.keys(each ?? {})));
    const first = found.filter(([name, each]) => required.has(name) || used.has(name) || isFile(each));
    const others = found.filter((each) => !first.includes(each));
    if (found.length <= MAX_SHOWN_FIELDS) first.push(...others.splice(0));
    for (const [name, each] of first) this.#add(name, each, required.has(name), this.fieldset);
    if (others.length === 0) return;
    const more = h("div", { class: "fields" });
    for (const [name, each] of others) this.#add(name, each, false, more);
    this.fieldset.append(h("details", { class: "more" }, h("summary", { text: `More options (${others.length})` }), more));
  }

  #add(name, schema, required, parent) {
    const field = new Field(`field-${this.#fields.size}`, name, schema, required, this.maxBytes);
    this.#fields.set(name, field);
    parent.append(field.element);
  }

  /** The input. Throws an InputError if a field has no valid value, unless required members may be missing. */
  async read({ incomplete = false } = {}) {
    this.showProblem(null);
    if (this.#json !== null) return fromJson(this.#json.value, null);
    const read = (field) => field.read().catch((error) => {
      if (!incomplete || !error.isMissing) throw error;
    });
    if (!this.isObject) return (await read(this.#fields.get("input"))) ?? null;
    const input = { ...this.#kept };
    for (const [name, field] of this.#fields) {
      const value = await read(field);
      // A name such as __proto__ has to become a member of its own.
      if (value !== undefined) Object.defineProperty(input, name, { value, enumerable: true, configurable: true });
    }
    return input;
  }

  /** Fill the form, for example with an example. Members that `input` does not have get their defaults. */
  fill(input) {
    this.showProblem(null);
    if (this.#json !== null) this.#json.value = JSON.stringify(input, null, 2);
    const isObject = typeof input === "object" && input !== null && !Array.isArray(input);
    const given = !this.isObject ? new Map([["input", input]]) : new Map(isObject ? Object.entries(input) : []);
    for (const [name, field] of this.#fields) field.write(given.get(name));
    this.#kept = Object.fromEntries([...given].filter(([name]) => !this.#fields.has(name)));
    const more = this.fieldset.querySelector("details");
    if (more && [...more.querySelectorAll("[data-changed]")].length > 0) more.open = true;
  }

  /** Show a problem, at the field that its JSON Pointer names. */
  showProblem(problem) {
    for (const field of this.#fields.values()) field.showError("");
    this.problem.hidden = true;
    if (problem === null) return;
    const name = problem.pointer?.match(/^\/input\/([^/]*)/)?.[1].replaceAll("~1", "/").replaceAll("~0", "~");
    const field = this.#fields.get(problem.field ?? name ?? (this.isObject ? "" : "input"));
    if (field && this.#json === null) return field.showError(problem.message);
    this.problem.textContent = problem.message;
    this.problem.hidden = false;
  }

  async #switch() {
    const editing = this.#json === null;
    try {
      const input = await this.read({ incomplete: editing });
      this.#json = editing ? h("textarea", { class: "code json", rows: "12", spellcheck: "false", "aria-label": "Input as JSON" }) : null;
      if (editing) this.#json.value = JSON.stringify(input, null, 2);
      if (editing) this.element.prepend(this.#json);
      else this.element.querySelector(".json").remove();
      if (!editing) this.fill(input);
    } catch (error) {
      return this.showProblem(error);
    }
    this.fieldset.hidden = editing;
    this.toggle.textContent = editing ? "Edit as a form" : "Edit as JSON";
    this.toggle.setAttribute("aria-pressed", String(editing));
  }
}

/** One member of the input. */
class Field {
  #error;
  #file = null; // base64 of the chosen file
  #given; // the value that the form was filled with
  #isEdited = false;

  constructor(id, name, schema, required, maxBytes) {
    Object.assign(this, { id, name, schema: withNullAsChoice(schema), required, maxBytes });
    this.kind = kindOf(this.schema);
    this.control = this.#control();
    this.control.id = id;
    this.#error = h("p", { class: "error", id: `${id}-error`, hidden: true });
    const hint = typeof schema.description === "string" ? schema.description : "";
    const label = h("label", { for: id }, name, required && h("span", { class: "required", text: " required" }));
    this.control.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
    const text = h("p", { class: "hint", id: `${id}-hint`, text: hint });
    if (required) this.control.setAttribute("aria-required", "true");
    this.preview = this.kind === "file" ? h("div", { class: "preview" }) : null;
    const parts = this.kind === "boolean" ? [h("div", { class: "check" }, this.control, label)] : [label, this.control];
    this.element = h("div", { class: "field" }, ...parts, this.preview, text, this.#error);
    this.control.addEventListener("input", () => {
      this.#isEdited = true;
      this.element.toggleAttribute("data-changed", true);
    });
    this.write(undefined);
  }

  #control() {
    const { schema, kind } = this;
    if (kind === "choice") {
      const none = this.required || this.#choiceOf(schema.default) >= 0 ? [] : [h("option", { value: "", text: "—" })];
      return h("select", {}, ...none, ...schema.enum.map((each, at) => h("option", { value: at, text: shown(each) })));
    }
    if (kind === "boolean") return h("input", { type: "checkbox" });
    if (kind === "file") {
      const input = h("input", { type: "file", accept: schema.contentMediaType ?? null });
      input.addEventListener("change", () => this.#choose(input.files[0]));
      return input;
    }
    if (kind === "number") {
      const step = schema.type === "integer" ? "1" : "any";
      return h("input", { type: "number", step, min: schema.minimum ?? null, max: schema.maximum ?? null, inputmode: "decimal" });
    }
    // An input element would delete the line ends of a text.
    const rows = kind === "json" ? 2 : isLong(schema) ? 4 : 1;
    return h("textarea", { rows, autocomplete: "off", spellcheck: "false", class: kind === "json" ? "code" : "" });
  }

  #choiceOf(value) {
    return this.schema.enum.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
  }

  async #choose(file) {
    this.#file = null;
    this.preview.replaceChildren();
    this.showError("");
    if (!file) return;
    this.#file = new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
      reader.onerror = () => reject(new InputError(this.name, `The file cannot be read: ${reader.error.message}`));
      if ((file.size * 4) / 3 <= this.maxBytes) reader.readAsDataURL(file);
      else reject(new InputError(this.name, `The file has ${bytes(file.size)}, and the server accepts requests of at most ${bytes(this.maxBytes)}.`));
    });
    const type = imageType({ contentMediaType: file.type });
    const text = await this.#file.catch((error) => this.showError(error.message));
    if (type === null || !text) return;
    const image = new ImageView(`Chosen file ${file.name}`);
    image.show(text, type);
    this.preview.replaceChildren(image.element);
  }

  /** The value, or undefined if the member is left out. */
  async read() {
    const { control, kind, schema } = this;
    // A control cannot show every value, such as a text with \r, so an unchanged value is not read from it.
    if (!this.#isEdited && this.#given !== undefined) return this.#given;
    if (!this.#isEdited && (!this.required || "default" in schema)) return this.required ? schema.default : undefined;
    if (kind === "file") return (await this.#file) ?? this.#missing("choose a file");
    if (kind === "boolean") return this.#unlessDefault(control.checked);
    if (kind === "choice") return control.value === "" ? undefined : this.#unlessDefault(schema.enum[Number(control.value)]);
    if (kind === "number") {
      if (control.validity.badInput) throw new InputError(this.name, "This is not a number, or it is too large.");
      if (control.value === "") return this.#missing("enter a number");
      // A browser also accepts 007 and .5, which are not JSON.
      const text = control.value.replace(/^(-?)0*([.\d])/, (_, sign, first) => sign + (first === "." ? "0." : first));
      return this.#unlessDefault(fromJson(text, this.name));
    }
    if (kind === "text") {
      const empty = control.value === "" && !this.required && typeof schema.default !== "string";
      return empty ? undefined : this.#unlessDefault(control.value);
    }
    if (control.value.trim() === "") return this.#missing("enter JSON");
    return this.#unlessDefault(fromJson(control.value, this.name));
  }

  #unlessDefault(value) {
    const same = !this.required && "default" in this.schema && JSON.stringify(value) === JSON.stringify(this.schema.default);
    return same ? undefined : value;
  }

  #missing(what) {
    if (this.schema.nullable && this.kind !== "file") return this.#unlessDefault(null);
    if (this.required) throw new InputError(this.name, `This member is required: ${what}.`, true);
  }

  write(value) {
    const { control, kind, schema } = this;
    this.element?.toggleAttribute("data-changed", value !== undefined);
    this.#given = value;
    this.#isEdited = false;
    const now = value === undefined ? schema.default : value;
    if ("placeholder" in control) control.placeholder = now === null ? "null" : "";
    if (kind === "file") {
      control.value = "";
      this.#file = typeof value === "string" ? Promise.resolve(value) : null;
      this.preview?.replaceChildren(...(this.#file ? [h("p", { class: "hint", text: "A file is already chosen." })] : []));
    } else if (kind === "boolean") control.checked = now === true;
    else if (kind === "choice") {
      const at = this.#choiceOf(now);
      control.value = at >= 0 ? String(at) : control.options[0]?.value ?? "";
    } else if (kind === "number" || kind === "text") control.value = now ?? "";
    else control.value = now === undefined || now === null ? "" : JSON.stringify(now, null, 1);
  }

  showError(message) {
    this.#error.hidden = message === "";
    this.#error.textContent = message;
    if (message === "") return this.control.removeAttribute("aria-invalid");
    this.control.setAttribute("aria-invalid", "true");
    this.element.closest("details")?.setAttribute("open", "");
    this.control.focus();
  }
}

/** The schema of a field that offers null as a choice, if it may be null and offers choices. */
function withNullAsChoice(schema) {
  const choices = schema.enum ?? (schema.type === "boolean" ? [false, true] : undefined);
  if (!schema.nullable || !Array.isArray(choices) || choices.includes(null)) return schema;
  return { ...schema, enum: [...choices, null] };
}

/** The value of a text of JSON. JavaScript would change other values silently, such as integers beyond 2^53. */
function fromJson(text, field) {
  try {
    return copy(parse(text));
  } catch (error) {
    throw new InputError(field, `This cannot be sent: ${error.message}.`);
  }
}

function kindOf(schema) {
  if (Array.isArray(schema.enum) && schema.enum.length > 0 && schema.enum.length <= MAX_FIELDS) return "choice";
  if (schema.type === "boolean") return "boolean";
  if (schema.type === "integer" || schema.type === "number") return "number";
  if (schema.type === "string") return isFile(schema) ? "file" : "text";
  return "json";
}

const isLong = (schema) =>
  schema.maxLength === undefined && !schema.format && !schema.pattern &&
  !(typeof schema.default === "string" && schema.default.length > 0 && schema.default.length < SINGLE_LINE && /^\S*$/.test(schema.default));
const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
