"""Convert values that functions return, yield or write to plain JSON types, and create validators for the converted values.

The conversion does not reject NaN and lone surrogates. They are rejected when the value is written to the job's document,
with an error that names their path.
"""

from collections.abc import Iterator
from functools import lru_cache
from io import IOBase
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaError, SchemaValidator, core_schema

from tidewire.protocol.jsonable import converted, is_plain_dataclass, place_of, rows_of, rows_of_dataclass
from tidewire_server.endpoints.value_errors import named
from tidewire_server.errors import InvalidValueError
from tidewire_server.job_log.value_differ import PLAIN

_MAX_MODELS: Final = 256
"""Number of models whose serializers are cached."""


def plain(value: Any) -> Any:
    """Convert a value to plain JSON types. The value may contain models, dataclasses, tuples, dates, and numpy or torch
    arrays.

    Raises:
        InvalidValueError: The value has no JSON form.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, IOBase):
        # Reject the file. pydantic would convert it to a list of its lines, without an error.
        raise InvalidValueError(f"the value: {_FILE}")
    try:
        return _plain(value)
    except UnicodeEncodeError as error:
        reason = f"lone surrogate in the name {error.object!r}"
    except (PydanticSerializationError, ValueError, TypeError, RuntimeError) as error:
        # pandas' `NaT` raises a TypeError here, and a sparse tensor of PyTorch a RuntimeError.
        reason = f"{error}{_BYTES if 'invalid utf-8' in str(error) else ''}"
    raise InvalidValueError(f"{named(place_of(value, _plain))}: not JSON: {reason}")


def _plain(value: Any) -> Any:
    if is_plain_dataclass(value):
        kind: Any = type(value)
        return converted(rows_of_dataclass(kind), value)
    return converted(_rows_of_kind(type(value) if isinstance(value, BaseModel) else Any), value)


_FILE: Final = (
    "an open file; return its text, file.read(), or its bytes with the annotation tidewire_server.Binary"
)
_BYTES: Final = "; to send binary data as base64, annotate it with tidewire_server.Binary"

_rows_of_kind = lru_cache(_MAX_MODELS)(rows_of)


# ---- the serialized form -------------------------------------------------------------------------------------------

_Node = dict[str, Any]
"""A part of pydantic's core schema."""

_FUNCTIONS: Final = {"function-before", "function-after", "function-wrap"}
_FIELDS: Final = {"model-fields", "typed-dict", "dataclass-args"}
_CONTAINERS: Final = (dict, list, tuple)
_NOT_SCHEMAS: Final = {"metadata", "serialization", "config", "default", "expected"}


def serialized_form_validator(adapter: TypeAdapter[Any]) -> SchemaValidator | None:
    """Return a validator for the JSON form of a type, or None if the type's own pydantic validator accepts this form.

    If the type contains a `field_serializer`, `computed_field`, `serialization_alias` or `Field(exclude=True)`, pydantic
    serializes a value to a form that it does not accept as input. Clients receive the serialized form, which the published
    schema describes. Validators in the user's models are not called, because they expect the input form.
    """
    schema: Any = adapter.core_schema
    if not any(map(_differs, _parts(schema))):
        return None
    try:
        return SchemaValidator(_serialized(schema))
    except SchemaError:
        # Another version of pydantic may have a different core schema. Accept any value then, so that the endpoint still works.
        return SchemaValidator(core_schema.any_schema())


def _parts(node: Any) -> Iterator[_Node]:
    """Iterate over a schema and all schemas in it."""
    if _is_schema(node):
        yield node
        for name, member in node.items():
            if name not in _NOT_SCHEMAS:
                yield from _parts(member)
    elif type(node) in _CONTAINERS:
        for element in node.values() if type(node) is dict else node:
            yield from _parts(element)


def _is_schema(node: Any) -> bool:
    # A dict of a model's fields is not a schema. If it has a field named `type`, its value is a dict and not a string.
    return type(node) is dict and type(node.get("type")) is str


def _differs(node: _Node) -> bool:
    if node.get("type") in _FIELDS and (node.get("computed_fields") or any(map(_is_renamed, _fields(node)))):
        return True
    return _made_by_function(node) is not None


def _fields(node: _Node) -> list[tuple[str, _Node]]:
    fields = node["fields"]
    return list(fields.items()) if isinstance(fields, dict) else [(field["name"], field) for field in fields]


def _is_renamed(named: tuple[str, _Node]) -> bool:
    name, field = named
    validated = field.get("validation_alias", name)
    return bool(field.get("serialization_exclude")) or validated != field.get("serialization_alias", name)


def _made_by_function(node: _Node) -> _Node | None:
    """Return the schema for the return annotation of a type's serializer function. Return None if there is no such
    annotation, because the published schema is then the schema of the type itself.
    """
    by = node.get("serialization") or {}
    made: _Node | None = by.get("return_schema")
    if by.get("type") not in {"function-plain", "function-wrap"} or made is None or made["type"] == "any":
        return None
    is_optional = by.get("when_used", "always").endswith("unless-none")
    return dict(core_schema.nullable_schema(made)) if is_optional else made


def _serialized(node: Any) -> Any:
    if type(node) in {list, tuple}:
        return type(node)(map(_serialized, node))
    if not _is_schema(node):
        return {name: _serialized(member) for name, member in node.items()} if type(node) is dict else node
    kind = node["type"]
    ref = {"ref": node["ref"]} if "ref" in node else {}
    made = _made_by_function(node)
    if made is not None:
        return {**_serialized(made), **ref}
    if kind in {"model", "dataclass"} or (kind in _FUNCTIONS and "serialization" not in node):
        extra = (node.get("config") or {}).get("extra_fields_behavior")
        inner = _serialized(node["schema"])
        if extra is not None and inner.get("type") == "model-fields":
            inner = {"extra_behavior": extra, **inner}
        return {**inner, **ref}
    if kind in _FIELDS:
        return {**_members(node), **ref}
    if kind == "tagged-union":  # The discriminator may have another name in the serialized form.
        return {"type": "union", "choices": [*map(_serialized, node["choices"].values())], **ref}
    return {name: member if name in _NOT_SCHEMAS else _serialized(member) for name, member in node.items()}


def _members(node: _Node) -> _Node:
    fields: dict[str, Any] = {}
    for name, field in _fields(node):
        if not field.get("serialization_exclude"):
            required = field.get("required", node.get("total", True))
            schema = _serialized(field["schema"])
            if not required and schema["type"] != "default":
                schema = core_schema.with_default_schema(schema, default=None)
            fields[field.get("serialization_alias", name)] = core_schema.model_field(schema)
    for computed in node.get("computed_fields", ()):
        name = computed.get("alias", computed["property_name"])
        fields[name] = core_schema.model_field(_serialized(computed["return_schema"]))
    extra = {"extra_behavior": node["extra_behavior"]} if "extra_behavior" in node else {}
    extras = {"extras_schema": _serialized(node["extras_schema"])} if "extras_schema" in node else {}
    return {"type": "model-fields", "fields": fields, **extra, **extras}
