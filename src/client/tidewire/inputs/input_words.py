"""KEY=VALUE arguments of the command line, whose values are typed by the endpoint's JSON Schema.

In this module, a word is one such argument, as a shell splits a command line into words. `tidewire call` and
`tidewire map` parse values with `parse_word`. `tidewire describe` and the startup banner of the server write example
commands with `words_of` and `words_for_required_members`. A server's schema may be malformed, so the functions in this
module accept any schema.
"""

import json
from typing import Any, Final

from tidewire.protocol.strict_json import JsonValue, StrictJsonError, loads

ANY_TYPE: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""Names of all types of JSON Schema."""

_BASE64: Final = ("base64", "byte")
"""Values of `format` for base64: the first is used by pydantic and `Binary`, the second by OpenAPI."""
_MAX_DEPTH: Final = 8
"""Maximum nesting depth of `$ref`, `anyOf`, `oneOf` and `allOf`. A schema below that depth is treated as allowing any type."""
_PREFERRED: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
"""Types in order of preference for the placeholder of a member that may have several types."""
_TEXT: Final = "TEXT"
"""Placeholder of a text."""


def parse_word(text: str, schema: Any, root: Any) -> JsonValue:
    """Parse the value of a KEY=VALUE argument, or the content of the file if the argument is KEY=@FILE.

    The value is the text itself in these cases:

    - The schema allows only strings.
    - The text is not valid JSON.
    - The text is valid JSON, but the schema allows strings and does not allow the type of the JSON value.

    Otherwise, the value is the JSON value.

    Args:
        text: Text after the equals sign.
        schema: JSON Schema of the member, or True if there is no schema.
        root: JSON Schema of the whole input, which contains the definitions.

    Raises:
        StrictJsonError: The value would be a JSON value that the protocol does not allow, such as an integer beyond ±2^53.
    """
    types = types_of(schema, root)
    if types == {"string"}:
        return text
    fault = None
    try:
        value: JsonValue = loads(text)
    except StrictJsonError as error:
        fault = error
        try:
            value = json.loads(text, parse_constant=_reject_constant)
        except json.JSONDecodeError:
            return text
        except (RecursionError, ValueError):  # an integer of more than 4300 digits
            raise fault from None
    if "string" in types and _type_name(value) not in types:
        return text
    if fault is not None:
        raise fault
    return value


def _reject_constant(name: str) -> None:
    """Reject NaN and the infinities, which `json.loads` accepts although they are not JSON."""
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)


def member_schema(name: str, schema: Any) -> Any:
    """Return the schema of a member of an input, or True if the schema does not restrict the member."""
    schema = resolved(schema, schema)
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return schema.get("additionalProperties", True)


def types_of(schema: Any, root: Any, *, depth: int = 0) -> frozenset[str]:
    """Return the names of the JSON types that a schema allows."""
    if depth > _MAX_DEPTH:
        return ANY_TYPE
    schema = resolved(schema, root)
    types = ANY_TYPE
    if "const" in schema:
        types &= {_type_name(schema["const"])}
    if isinstance(schema.get("enum"), list):
        types &= {_type_name(each) for each in schema["enum"]}
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        types &= {"integer", *names} if "number" in names else set(names)
    for combination in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(combination), list):
            types &= frozenset[str]().union(*(types_of(each, root, depth=depth + 1) for each in branches))
    if isinstance(branches := schema.get("allOf"), list):
        types = types.intersection(*(types_of(each, root, depth=depth + 1) for each in branches))
    return types or ANY_TYPE


def takes_base64(schema: Any, root: Any, *, depth: int = 0) -> bool:
    """Whether a schema says that a text is base64, by `contentEncoding` or `format`, possibly in one branch of a
    combination such as `anyOf`.
    """
    if depth > _MAX_DEPTH:
        return False
    schema = resolved(schema, root)
    if schema.get("contentEncoding") == "base64" or schema.get("format") in _BASE64:
        return True
    combinations = (schema.get(name) for name in ("anyOf", "oneOf", "allOf"))
    branches = (each for found in combinations if isinstance(found, list) for each in found)
    return any(takes_base64(each, root, depth=depth + 1) for each in branches)


def words_of(example: JsonValue, schema: Any) -> list[str]:
    """Return the arguments of `tidewire call` that pass an input: KEY=VALUE for each member, or `--input` and JSON.

    Args:
        example: The input.
        schema: JSON Schema of the input.
    """
    words = _member_words(example, schema) if isinstance(example, dict) else None
    # A line break within a quoted argument is valid in a shell, but hard to read and to copy.
    if words is None or not all(map(str.isprintable, words)):
        return ["--input", _to_json(example)]
    return words


def words_for_required_members(schema: Any) -> list[str]:
    """Return the arguments of an example command that passes only the required members, such as `prompt=TEXT`, or
    `picture=@FILE` for a member that takes base64.
    """
    words = []
    for word in words_of(_placeholder(schema, schema), schema):
        name, _, text = word.partition("=")
        is_file = text == _TEXT and takes_base64(member_schema(name, schema), schema)
        words.append(f"{name}=@FILE" if is_file else word)
    return words


def _member_words(example: dict[str, JsonValue], schema: Any) -> list[str] | None:
    """Return an argument for each member, or None if `parse_word` cannot parse an argument back to the same value."""
    words = []
    for name, value in example.items():
        of_member = member_schema(name, schema)
        texts = [value] if isinstance(value, str) else []
        texts.append(_to_json(value))
        # A value that begins with `@` is the name of a file.
        inline = (text for text in texts if not text.startswith("@"))
        text = next((text for text in inline if _parses_to(value, text, of_member, schema)), None)
        if text is None or not name or "=" in name or name.startswith("-"):
            return None
        words.append(f"{name}={text}")
    return words


def _to_json(value: JsonValue) -> str:
    """Serialize a value as JSON. If the value contains unprintable characters, use JSON escapes for all non-ASCII
    characters.
    """
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def _parses_to(value: JsonValue, text: str, schema: Any, root: Any) -> bool:
    try:
        parsed = parse_word(text, schema, root)
    except StrictJsonError:
        return False
    return type(parsed) is type(value) and parsed == value


def _placeholder(schema: Any, root: Any, depth: int = 0) -> JsonValue:
    schema = resolved(schema, root)
    if "const" in schema:
        return schema["const"]  # type: ignore[no-any-return]
    for several in ("examples", "enum"):
        if isinstance(values := schema.get(several), list) and values:
            return values[0]  # type: ignore[no-any-return]
    if "default" in schema:
        return schema["default"]  # type: ignore[no-any-return]
    types = types_of(schema, root)
    kind = next(name for name in _PREFERRED if name in types)
    if depth > _MAX_DEPTH:
        return None
    # A branch of `anyOf`, `oneOf` or `allOf` may describe the members of the object or the elements of the array.
    for combination in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(combination)
        for branch in branches if isinstance(branches, list) else ():
            if kind in {"array", "object"} and kind in types_of(branch, root):
                return _placeholder(branch, root, depth + 1)
    match kind:
        case "object":
            names = schema.get("required")
            return {
                name: _placeholder(member_schema(name, schema), root, depth + 1)
                for name in (names if isinstance(names, list) else ())
                if isinstance(name, str)
            }
        case "array":
            return [_placeholder(schema.get("items", True), root, depth + 1)]
        case "integer" | "number":
            least = schema.get("minimum", 1)
            return least if isinstance(least, int | float) and least > 1 else 1
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _TEXT


def resolved(schema: Any, root: Any) -> dict[str, Any]:
    """Follow the references (`$ref`) of a schema. If they cannot be resolved, return the empty schema, which allows any
    value.
    """
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        reference, schema = str(schema["$ref"]), root
        for part in reference.removeprefix("#/").split("/"):
            schema = schema.get(part) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) and "$ref" not in schema else {}


def _type_name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
