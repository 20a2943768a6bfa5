"""Converts the input of a job to plain JSON with pydantic. The module `submit_members` uses it for all inputs that are not
plain JSON already.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from pydantic import BaseModel, PlainSerializer, RootModel, TypeAdapter, WrapSerializer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError

from tidewire.errors import InvalidInputError
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH
from tidewire.protocol.jsonable import converted, is_plain_dataclass, place_of, rows_of, rows_of_dataclass
from tidewire.protocol.strict_json import JsonValue


def convert_input(value: Any, pointer: str) -> JsonValue:
    """Convert a value to plain JSON. See `submit_members.jsonable` for the arguments.

    Sets, complex numbers and dicts with tuples as keys are converted only in a field of a model or dataclass. The annotation of
    the field must contain such a type, for example `set[int]`, or a serializer. Anywhere else they raise a TypeError.

    Raises:
        InvalidInputError: The value cannot be serialized.
        TypeError: The value contains an object that pydantic would convert to something else without an error, such as
            an open file or bytes.
    """
    path = _path_of(pointer)
    try:
        plain: JsonValue = _plain(value, path)
    except (PydanticSerializationError, ValueError) as error:
        place = pointer + place_of(value, _plain)
        if "invalid utf-8" in str(error):
            raise TypeError(f"{_path_of(place)}: {_BYTES}") from None
        raise InvalidInputError(
            f"{place}: the value cannot be serialized as JSON: {error}",
            advice="Convert it to a JSON type first.",
        ) from None
    _refuse_altered(value, plain, path, frozenset())
    return plain


def _path_of(pointer: str) -> str:
    """Convert a JSON Pointer in the request body, such as `/input/images/0`, to a path such as `input.images[0]`."""
    _, argument, *rest = pointer.split("/")
    return "".join([argument, *(f"[{each}]" if each.isdigit() else f".{each}" for each in rest)])


def _plain(value: Any, path: str = "") -> Any:
    return _converted(_ANYTHING, _checked(value, path, MAX_VALUE_DEPTH))


def _converted(rows: TypeAdapter[list[Any]], value: Any) -> Any:
    """Convert a value that `_checked` has accepted. An error of the conversion, for example for pandas' `NaT`, is raised as
    ValueError, because TypeError means that `_checked` refuses the value.
    """
    try:
        return converted(rows, value)
    except (TypeError, RuntimeError) as error:
        raise ValueError(str(error)) from None


_BYTES: Final = (
    "bytes cannot be sent as JSON; pass them in a model or a dataclass whose field has the type tidewire.Binary, which "
    "sends them as base64, or pass base64.b64encode(data).decode()"
)

_SET: Final = "a set has no order; pass a list, such as sorted(…)"
_COMPLEX: Final = "a complex number cannot be sent as JSON; pass [z.real, z.imag]"
_TUPLE_KEY: Final = "a tuple cannot be a key of a JSON object; pass strings as keys, or a list of pairs"


_ANYTHING: Final = rows_of(Any)

_SAFE: Final = frozenset({str, int, float, bool, type(None)})
"""Types that need no check in `_checked`."""


def _checked(value: Any, path: str, depth_left: int) -> Any:
    """Refuse open files and bytes. Pydantic would serialize them without an error, but not as the caller intends, and
    `_refuse_altered` cannot always recognize them afterwards.

    Return the value with its dataclasses converted to JSON. In a dict or a list, pydantic would ignore the annotations of a
    dataclass's fields, such as `Binary`.

    Args:
        value: The value to check.
        path: Location of the value, for the error message, such as `input.image`.
        depth_left: Number of nesting levels to check. The conversion to JSON refuses values that are nested deeper.

    Raises:
        TypeError: The value is or contains an open file, or bytes outside of models and dataclasses.
    """
    if type(value) in _SAFE or not depth_left:
        return value
    if isinstance(value, Mapping):
        if _SAFE.issuperset(map(type, value.values())):
            return value
        return {name: _checked(member, f"{path}.{name}", depth_left - 1) for name, member in value.items()}
    if isinstance(value, list | tuple | deque):
        # Long lists of numbers or strings are frequent. This comparison is about ten times as fast as a loop over them.
        if _SAFE.issuperset(map(type, value)):
            return value
        return [_checked(element, f"{path}[{at}]", depth_left - 1) for at, element in enumerate(value)]
    if isinstance(value, BaseModel) or is_plain_dataclass(value):
        for name, member in _unserialized_fields(value):
            if _is_file(member):
                raise TypeError(f"{path}.{name}: {_FILE}")
        if isinstance(value, BaseModel):
            return value
        kind: Any = type(value)
        return _converted(rows_of_dataclass(kind), value)
    if isinstance(value, bytes | bytearray | memoryview) or _is_array_of_bytes(value):
        raise TypeError(f"{path}: {_BYTES}")
    if _is_file(value):
        raise TypeError(f"{path}: {_FILE}")
    return value


_FILE: Final = (
    "an open file cannot be sent as JSON; pass file.read() if the file contains text, or "
    "base64.b64encode(file.read()).decode() if it contains bytes"
)


def _refuse_altered(value: Any, made: Any, path: str, asked: frozenset[Any]) -> None:
    """Raise an error if pydantic has converted a value to something else: bytes to text, a set to a list, a complex number
    to text, or tuples as keys to text. In a model or a dataclass, the type of the field may request this conversion.

    Args:
        value: The value.
        made: The value after the conversion to JSON.
        path: Location of the value, for the error message.
        asked: The conversions that the type of the field requests; see `_asked_by`.

    Raises:
        TypeError: pydantic has converted the value, or a part of it, in this way.
    """
    members: Iterable[tuple[str, Any, Any]]
    if isinstance(value, bytes | bytearray | memoryview):
        if bytes not in asked and value and _holds_bytes(made, bytes(value)):
            raise TypeError(f"{path}: {_BYTES}")
        return
    if isinstance(value, complex):
        if complex not in asked and isinstance(made, str):
            raise TypeError(f"{path}: {_COMPLEX}")
        return
    if isinstance(value, BaseModel) or is_plain_dataclass(value):
        _refuse_altered_fields(value, made, path, asked)
        return
    if isinstance(value, Mapping) and isinstance(made, dict):
        if Mapping not in asked and any(isinstance(key, tuple) for key in value):
            raise TypeError(f"{path}: {_TUPLE_KEY}")
        if _SAFE.issuperset(map(type, value.values())):
            return
        members = [(f".{name}", value[name], each) for name, each in zip(value, made.values(), strict=False)]
    elif isinstance(value, list | tuple | deque | set | frozenset) and isinstance(made, list):
        if AbstractSet not in asked and isinstance(value, set | frozenset):
            raise TypeError(f"{path}: {_SET}")
        if _SAFE.issuperset(map(type, value)):
            return
        members = [
            (f"[{at}]", member, each) for at, (member, each) in enumerate(zip(value, made, strict=False))
        ]
    else:
        return
    for step, member, each in members:
        if type(member) not in _SAFE:
            _refuse_altered(member, each, path + step, asked)


def _holds_bytes(made: Any, content: bytes) -> bool:
    """Return whether pydantic has converted bytes to this JSON value: their text in UTF-8 or, for a `memoryview`, the list of
    the bytes.
    """
    if isinstance(made, str):
        return made.encode(errors="surrogatepass") == content
    return isinstance(made, list) and made == [*content]


def _refuse_altered_fields(value: Any, made: Any, path: str, asked: frozenset[Any]) -> None:
    """Call `_refuse_altered` for the fields of a model or a dataclass."""
    config = getattr(value, "model_config", None) or getattr(value, "__pydantic_config__", None) or {}
    inherited = asked & {bytes}
    if "ser_json_bytes" in config:
        inherited |= {bytes}
    for kind in config.get("json_encoders") or ():
        inherited |= _asked_by(kind)
    of_value: Any = type(value)
    asked_by_field = _asked_by_fields(of_value)
    for name, member in _unserialized_fields(value):
        if type(member) in _SAFE:
            continue
        asked = inherited | asked_by_field.get(name, frozenset())
        if isinstance(value, RootModel):
            _refuse_altered(member, made, path, asked)
        elif isinstance(made, dict):
            field = _fields_of(value).get(name)
            each = made.get((field and field.serialization_alias) or name)
            _refuse_altered(member, each, f"{path}.{name}", asked)


_CONVERSIONS: Final = frozenset({AbstractSet, complex, Mapping})
"""The conversions that the type of a field can request: those of sets, of complex numbers, and of mappings with tuples
as keys."""


@lru_cache(256)
def _asked_by_fields(kind: type) -> dict[str, frozenset[Any]]:
    """Return, for each field of a model or dataclass, the conversions that its type requests."""
    fields: dict[str, FieldInfo] | None = getattr(kind, "__pydantic_fields__", None)
    if fields is not None:
        return {name: _asked_by(field.annotation) for name, field in fields.items()}
    hints = _hints(kind)
    if hints is None:
        return {field.name: _CONVERSIONS for field in dataclasses.fields(kind)}
    return {name: _asked_by(hint) for name, hint in hints.items()}


def _hints(kind: type) -> dict[str, Any] | None:
    """Return the types of the members of a class, or None if a type contains a name that cannot be found."""
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError):
        # Do not raise an error, and do not refuse sets, because one of the members may have the type `set[int]`.
        return None


def _asked_by(annotation: Any, seen: tuple[Any, ...] = ()) -> frozenset[Any]:
    """Return the conversions that a type requests.

    Args:
        annotation: The type, such as `list[set[int]] | None`.
        seen: The types that contain this type. A recursive type contains itself.

    Returns:
        All of `_CONVERSIONS` if the type contains a serializer, and otherwise a subset. The result also contains `tuple` if the
        type contains tuples.
    """
    if annotation in seen:
        return frozenset()
    seen = (*seen, annotation)
    kind = get_origin(annotation) or annotation
    parts = get_args(annotation)
    if kind is Annotated:
        if any(isinstance(each, PlainSerializer | WrapSerializer) for each in parts[1:]):
            return _CONVERSIONS
        parts = parts[:1]
    if hasattr(kind, "__value__"):
        parts = (*parts, kind.__value__)
    found: set[Any] = set()
    if isinstance(kind, type):
        if hasattr(kind, "__total__") or hasattr(kind, "_fields"):  # a TypedDict or a NamedTuple
            hints = _hints(kind)
            if hints is None:
                return _CONVERSIONS
            parts = (*parts, *hints.values())
        found.update(each for each in (AbstractSet, complex, tuple) if issubclass(kind, each))
        if issubclass(kind, Mapping) and parts and tuple in _asked_by(parts[0], seen):
            found.add(Mapping)
    return frozenset(found).union(*(_asked_by(each, seen) for each in parts))


def _is_array_of_bytes(value: Any) -> bool:
    """Whether the value is an array of NumPy whose elements are bytes."""
    dtype = getattr(value, "dtype", None)
    kind = getattr(dtype, "kind", None)
    return kind == "S" or (kind == "V" and getattr(dtype, "names", None) is None)


def _is_file(value: Any) -> bool:
    return callable(getattr(value, "read", None)) and not isinstance(value, type | BaseModel)


def _unserialized_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the members of a model or dataclass that have no serializer and are not excluded."""
    fields = _fields_of(value)
    decorators = getattr(value, "__pydantic_decorators__", None)
    serialized: set[str] = set()
    if decorators is not None:
        if decorators.model_serializers:
            return
        serialized.update(*(each.info.fields for each in decorators.field_serializers.values()))
    if "*" in serialized:
        return
    is_model = isinstance(value, BaseModel)
    for name in fields if fields or is_model else (each.name for each in dataclasses.fields(value)):
        field = fields.get(name)
        if field is None or not (
            field.exclude
            or name in serialized
            or any(isinstance(each, PlainSerializer | WrapSerializer) for each in field.metadata)
        ):
            yield name, getattr(value, name, None)
    if is_model:
        yield from (value.model_extra or {}).items()


def _fields_of(value: Any) -> dict[str, FieldInfo]:
    """Return pydantic's descriptions of the fields of a model or a pydantic dataclass."""
    fields: dict[str, FieldInfo] = getattr(type(value), "__pydantic_fields__", {})
    return fields
