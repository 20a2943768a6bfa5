"""Description of the parts of a JSON value that violate a JSON Schema, each with the form that the schema requires.

The schemas are those of the specification, and those that a server declares for the inputs and values of its endpoints.
A schema that a server declares may be invalid, so no function of this module raises an exception because of a schema.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from referencing import Registry

from tidewire_conformance import compiled_schemas, specification

MAX_LISTED: Final = 20
"""Maximum number of violations in a text. After them, the text only says how many more there are."""
_SHOWN: Final = 80
"""Maximum length, in characters, of a value in a text."""
_FORM_KEYWORDS: Final = frozenset(
    {"type", "const", "enum", "pattern", "format", "minimum", "maximum", "minLength", "anyOf", "oneOf"}
)
"""Keywords of JSON Schema whose violation is described by the expected form of the value, as `form` returns it."""
_TYPE_KEYWORDS: Final = frozenset({"type", "anyOf", "oneOf"})
"""Keywords of JSON Schema that a value of the wrong type violates."""
_MISSING = re.compile(r"'(.*)' is a required property", re.DOTALL)


class SchemaViolation(NamedTuple):
    """Part of a value that violates a schema."""

    place: str
    """Path of the part, such as `limits.max_depth` or `endpoints[0].href`."""
    expected: str
    """Form that the schema requires, such as "an integer of at least 1024"."""
    got: str
    """The part as JSON, or an empty string if it is missing."""

    def __str__(self) -> str:
        if not self.got:
            return f"{self.place}: missing; expected {self.expected}"
        return f"{self.place}: expected {self.expected}, not {self.got}"


def schema_violation(name: str, value: Any) -> str:
    """Describe all violations of a schema of the specification. The text is empty if there is none.

    A single violation is one line. Several violations follow a line that announces them, one for each line.

    Args:
        name: File name of the schema without `.schema.json`.
        value: JSON value to validate.
    """
    found = [*map(str, violations(name, value))]
    if len(found) < 2:
        return "".join(found)
    more = [f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return "\n- ".join([f"{len(found)} faults:", *found[:MAX_LISTED], *more])


def violations(name: str, value: Any) -> list[SchemaViolation]:
    """Return all violations of a schema of the specification, ordered by their places in the value."""
    valid = compiled_schemas.is_valid(name)
    if valid is not None and valid(value):
        return []
    found = (
        _violation(error)
        for error in sorted(
            specification.validator(name).iter_errors(value), key=lambda each: [*map(str, each.absolute_path)]
        )
    )
    return [*dict.fromkeys(found)]


def _violation(error: ValidationError) -> SchemaViolation:
    path, schema = [*error.absolute_path], error.schema if isinstance(error.schema, dict) else {}
    if error.validator == "required" and (missing := _MISSING.match(error.message)):
        member = schema.get("properties", {}).get(missing[1], {})
        return SchemaViolation(_place([*path, missing[1]]), form(member), "")
    expected = form(schema) if error.validator in _FORM_KEYWORDS else _short(error.message)
    return SchemaViolation(_place(path), expected, shown(error.instance))


def _place(path: Sequence[str | int]) -> str:
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    return text.removeprefix(".") or "the whole value"


def form(schema: dict[str, Any]) -> str:
    """Describe the values that a schema allows, for example as "an integer of at least 1024"."""
    if "$ref" in schema:
        file, _, part = str(schema["$ref"]).partition("#")
        return form(specification.schema(file)) if file and not part else "a JSON value"
    if "const" in schema:
        return shown(schema["const"])
    if "enum" in schema:
        return _alternatives(map(shown, schema["enum"]))
    if "anyOf" in schema or "oneOf" in schema:
        return _alternatives(map(form, schema.get("anyOf") or schema["oneOf"]))
    if isinstance(schema.get("type"), list):
        return _alternatives(form({**schema, "type": each}) for each in schema["type"])
    return "".join(_form_of_type(schema))


def _form_of_type(schema: dict[str, Any]) -> Iterator[str]:
    kind = schema.get("type")
    names = {"null": "null", "boolean": "true or false", "string": "a string", "integer": "an integer",
             "number": "a number", "array": "an array", "object": "an object"}  # fmt: skip
    if schema.get("format") == "uri-reference":
        yield "a link"
    elif schema.get("minLength"):
        yield "a non-empty string"
    else:
        yield names.get(str(kind), "a JSON value")
    if kind == "string" and "pattern" in schema:
        yield f" that matches {schema['pattern']}"
    if kind in {"integer", "number"} and "minimum" in schema:
        yield f" of at least {schema['minimum']}"
    if kind in {"integer", "number"} and "maximum" in schema:
        yield f"{' and' if 'minimum' in schema else ' of'} at most {schema['maximum']}"
    if kind == "array" and isinstance(schema.get("items"), dict):
        yield f" in which each element is {form(schema['items'])}"
    if kind == "object" and schema.get("required"):
        yield f" with {', '.join(schema['required'])}"


def _alternatives(forms: Iterable[str]) -> str:
    *first, last = dict.fromkeys(forms)
    return f"{', '.join(first)} or {last}" if first else last


def shown(value: Any) -> str:
    """Return a value as JSON. Long JSON is shortened."""
    return _short(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as JSON, for a text that a user reads. Bytes become a string, in which invalid UTF-8 is escaped."""
    plain = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return json.dumps(plain, ensure_ascii=False, default=str)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def usable(name: str, value: Any, *, types_only: bool = False) -> Any:
    """Return a copy of a value without the parts that violate a schema of the specification.

    In the copy, each member that the schema names has the right type, or is absent. The result is an empty object if the
    value as a whole violates the schema. A suite that reads only such a copy can test a server whose description is
    wrong in places.

    Args:
        name: File name of the schema without `.schema.json`.
        value: JSON value.
        types_only: Whether to keep a part that has the right type and another fault, such as a text that does not match
            its pattern.
    """
    if not schema_violation(name, value):
        return value if isinstance(value, dict) else {}
    copy = deepcopy(value)
    while wrong := _wrong_paths(name, copy, types_only):
        if [] in wrong:
            return {}
        for *path, last in wrong:
            container = copy
            for token in path:
                container = container[token]
            del container[last]
    return copy if isinstance(copy, dict) else {}


def _wrong_paths(name: str, value: Any, types_only: bool) -> list[list[str | int]]:
    """Return the paths of the outermost parts that violate a schema. Later array elements come first, so they can be deleted in order."""
    errors = specification.validator(name).iter_errors(value)
    paths = {
        tuple(error.absolute_path)
        for error in errors
        if (_is_wrong_type(error) if types_only else error.validator != "required")
    }
    outermost = [path for path in paths if not any(path[:n] in paths for n in range(len(path)))]
    return [[*path] for path in sorted(outermost, key=lambda path: [*map(_order, path)], reverse=True)]


def _is_wrong_type(error: ValidationError) -> bool:
    if error.validator in {"enum", "const"}:  # A schema with one of these keywords has no `type`.
        found: Any = error.validator_value
        words: list[Any] = found if error.validator == "enum" else [found]
        return type(error.instance) not in map(type, words)
    return error.validator in _TYPE_KEYWORDS


def _order(token: str | int) -> tuple[int, str]:
    return (token, "") if isinstance(token, int) else (-1, token)


def named_members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each member that a schema of the specification names, at any depth.

    The members of inputs, values, `usage` and extensions are free, so they are skipped.
    """
    return _named_members([specification.schema(f"{name}.schema.json")], value)


def _named_members(schemas: Iterable[Any], value: Any) -> Iterator[tuple[str, Any]]:
    parts = [part for schema in schemas for part in _parts(schema)]
    if isinstance(value, list):
        elements = [part["items"] for part in parts if "items" in part]
        for child in value:
            yield from _named_members(elements, child)
    elif isinstance(value, dict):
        for name, child in value.items():
            own = [part["properties"][name] for part in parts if name in part.get("properties", {})]
            if own:
                yield name, child
                yield from _named_members(own, child)


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas that it combines."""
    if isinstance(schema, dict):
        yield schema
        combined = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
        combined += [specification.schema(schema["$ref"])] if "$ref" in schema else []
        for part in combined:
            yield from _parts(part)


def violation_of(schema: Any, value: Any) -> str:
    """Describe how a value violates a schema that a server declares.

    The text is empty if the value is valid, or if the schema cannot be used, which `schema_fault` reports.
    """
    try:
        error = next(_validator(schema).iter_errors(value), None)
    except Exception:  # noqa: BLE001 - an invalid schema can raise nearly anything, such as re.error or RecursionError
        return ""
    return "" if error is None else f"at {error.json_path}: {error.message}"


def schema_fault(schema: Any, samples: Iterable[Any] = ()) -> str:
    """Describe why a schema that a server declares is not a usable JSON Schema. The text is empty if it is usable.

    Args:
        schema: The schema.
        samples: Values to validate, because some faults, such as a reference without a target, show only then.
    """
    if not isinstance(schema, dict):
        return f"the schema is {shown(schema)}, not an object"
    if str(schema.get("$schema", specification.DRAFT)).rstrip("#") != specification.DRAFT:
        return f"the schema is of {shown(schema['$schema'])}"
    try:
        Draft202012Validator.check_schema(schema)
        for sample in samples:
            list(_validator(schema).iter_errors(sample))
    except Exception as error:  # noqa: BLE001 - see `violation_of`
        return _short(f"{type(error).__name__}: {getattr(error, 'message', error)}")
    return ""


def _validator(schema: Any) -> Draft202012Validator:
    # With this registry, the validator fetches no document from the network.
    return Draft202012Validator(schema, registry=Registry())
