// What the page reads from a JSON Schema: types, defaults, and where a value is an image. Schemas come from the server, and
// may be anything: every walk is bounded.

const MAX_STEPS = 32; // of references, one after another
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** A schema with its references followed. In place of an alternative null, it is `nullable`. `root` holds the definitions. */
export function resolved(schema, root) {
  let found = isObject(schema) ? schema : {};
  for (let step = 0; step < MAX_STEPS; step += 1) {
    if (typeof found.$ref === "string") {
      const { $ref, ...own } = found;
      found = { ...referenced($ref, root), ...own };
      continue;
    }
    const types = Array.isArray(found.type) ? found.type.filter((each) => each !== "null") : [];
    if (types.length === 1) found = { ...found, type: types[0], nullable: found.nullable || found.type.length > 1 };
    const choices = found.anyOf ?? found.oneOf ?? found.allOf;
    const some = Array.isArray(choices) ? choices.filter((each) => isObject(each) && each.type !== "null") : [];
    if (some.length !== 1) return found;
    const { anyOf, oneOf, allOf, ...own } = found;
    found = { ...some[0], ...own, nullable: own.nullable || some.length < choices.length };
  }
  return {};
}

function referenced(ref, root) {
  if (!ref.startsWith("#/")) return {};
  let found = root;
  for (const token of ref.slice(2).split("/").slice(0, MAX_STEPS)) {
    const name = token.replaceAll("~1", "/").replaceAll("~0", "~");
    found = isObject(found) && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  return isObject(found) ? found : {};
}

/** The members of an object schema, as pairs of a name and a resolved schema. */
export function members(schema, root) {
  const properties = isObject(schema.properties) ? schema.properties : {};
  return Object.entries(properties).map(([name, each]) => [name, resolved(each, root)]);
}

/** The schema of a member or an element of a value; `{}` if it is unknown. */
export function below(schema, root, key) {
  const found = resolved(schema, root);
  if (typeof key === "number") {
    const prefix = Array.isArray(found.prefixItems) ? found.prefixItems[key] : undefined;
    return resolved(prefix ?? found.items, root);
  }
  const properties = isObject(found.properties) ? found.properties : {};
  return resolved(Object.hasOwn(properties, key) ? properties[key] : found.additionalProperties, root);
}

/** The media type of a base64 image that the page shows, or null. SVG is none of them: it can contain scripts. */
export function imageType(schema) {
  const type = typeof schema.contentMediaType === "string" ? schema.contentMediaType.toLowerCase() : "";
  return IMAGE_TYPES.includes(type) ? type : null;
}

/** Whether a text is the base64 of a file. */
export function isFile(schema) {
  return schema.contentEncoding === "base64" || ["base64", "byte"].includes(schema.format) || imageType(schema) !== null;
}
