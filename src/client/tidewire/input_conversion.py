"""Converts the input of a job to plain JSON with pydantic. The module `submit_members` uses it for all inputs that are not
plain JSON already.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, PlainSerializer, WrapSerializer
from pydantic_core import PydanticSerializationError

from tidewire.errors import InvalidInputError
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH
from tidewire.protocol.jsonable import (
    converted,
    from_array,
    is_plain_dataclass,
    place_of,
    rows_of,
    rows_of_dataclass,
)
from tidewire.protocol.strict_json import JsonValue


def convert_input(value: Any, pointer: str) -> JsonValue:
    """Convert a value to plain JSON. The arguments and errors are those of `submit_members.jsonable`.

    Raises:
        InvalidInputError: The value cannot be serialized.
        TypeError: The value contains an object that pydantic would convert to something else without an error, such as
            an open file or bytes.
    """
    _, argument, *number = pointer.split("/")
    path = "".join([argument, *(f"[{each}]" for each in number)])
    has_dataclass = _refuse_lossy(value, path, MAX_VALUE_DEPTH)
    try:
        plain: JsonValue = _plain(value) if has_dataclass else converted(_ANYTHING, value, from_array)
    except (PydanticSerializationError, ValueError) as error:
        place = pointer + place_of(value, _plain)
        is_binary = "invalid utf-8" in str(error)
        advice = "Annotate bytes with tidewire.Binary." if is_binary else "Convert it to a JSON type first."
        raise InvalidInputError(
            f"the input at {place!r} cannot be serialized as JSON: {error}", advice=advice
        ) from None
    return plain


def _plain(value: Any) -> Any:
    return converted(_ANYTHING, _with_typed_dataclasses(value, MAX_VALUE_DEPTH), from_array)


def _with_typed_dataclasses(value: Any, depth_left: int) -> Any:
    """Replace the dataclasses in a value by JSON. Otherwise pydantic would ignore the annotations of their fields, such
    as `Binary`, because it does not know the types of the values in a dict or a list.
    """
    if type(value) in _SAFE or not depth_left:
        return value
    if is_plain_dataclass(value):
        return converted(rows_of_dataclass(value), value, from_array)
    if isinstance(value, Mapping) and not _SAFE.issuperset(map(type, value.values())):
        return {name: _with_typed_dataclasses(member, depth_left - 1) for name, member in value.items()}
    if isinstance(value, list | tuple | deque) and not _SAFE.issuperset(map(type, value)):
        return [_with_typed_dataclasses(element, depth_left - 1) for element in value]
    return value


_BYTES: Final = (
    "bytes; pass them in a model or a dataclass whose field has the type tidewire.Binary, which sends them as base64, or "
    "pass base64.b64encode(data).decode()"
)


_ANYTHING: Final = rows_of(Any)

_SAFE: Final = frozenset({str, int, float, bool, type(None)})
"""Types that need no check in `_refuse_lossy`."""


def _refuse_lossy(value: Any, path: str, depth_left: int) -> bool:
    """Raise an error for a value that pydantic would serialize without an error, but not as the caller intends.

    Return whether the value is or contains a dataclass.

    Args:
        value: The value to check.
        path: Location of the value, for the error message, such as `input.image`.
        depth_left: Number of nesting levels to check. The conversion to JSON refuses values that are nested deeper.

    Raises:
        TypeError: The value is or contains an open file, bytes, a set, a complex number, or a dict with a tuple as a key.
    """
    if type(value) in _SAFE or not depth_left:
        return False
    if isinstance(value, Mapping):
        if any(isinstance(key, tuple) for key in value):
            raise TypeError(
                f"{path}: an object with a tuple as a key; pass strings as keys, or a list of pairs"
            )
        members: Iterable[tuple[str, Any]] = ((f"{path}.{name}", member) for name, member in value.items())
        elements: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | deque):
        members = ((f"{path}[{at}]", element) for at, element in enumerate(value))
        elements = value
    elif isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        for name, member in _unserialized_fields(value):
            if _is_file(member):
                raise TypeError(f"{path}.{name}: {_FILE}")
        return not isinstance(value, BaseModel)
    elif isinstance(value, set | frozenset):
        raise TypeError(f"{path}: a set, which has no order; pass a list, such as sorted(…)")
    elif isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{path}: {_BYTES}")
    elif isinstance(value, complex):
        raise TypeError(f"{path}: a complex number; pass [z.real, z.imag]")
    elif _is_file(value):
        raise TypeError(f"{path}: {_FILE}")
    else:
        return False
    # Long lists of numbers or strings are frequent. This comparison is about ten times as fast as a loop over them.
    if _SAFE.issuperset(map(type, elements)):
        return False
    # `any` with a generator would stop at the first dataclass and leave the other members unchecked.
    found = [_refuse_lossy(member, at, depth_left - 1) for at, member in members]
    return any(found)


_FILE: Final = (
    "an open file; pass its bytes as base64, base64.b64encode(file.read()).decode(), or its text, file.read()"
)


def _is_file(value: Any) -> bool:
    return callable(getattr(value, "read", None)) and not isinstance(value, type | BaseModel)


def _unserialized_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the fields of a model or dataclass that have no serializer of their own and are not excluded."""
    if not isinstance(value, BaseModel):
        yield from vars(value).items() if hasattr(value, "__dict__") else ()
        return
    decorators = type(value).__pydantic_decorators__
    if decorators.field_serializers or decorators.model_serializers:
        return
    for name, field in type(value).model_fields.items():
        if not field.exclude and not any(
            isinstance(each, PlainSerializer | WrapSerializer) for each in field.metadata
        ):
            yield name, getattr(value, name, None)
