"""Convert Python values to JSON types with pydantic, without losing data silently.

When pydantic serializes a value in JSON mode, it loses data in two cases. A NaN in a model inside of a list or dict becomes
null. Two members with the same name in JSON, as in `{1: 2, "1": 3}`, become one member. This module therefore compares the
output of JSON mode with the output of Python mode. It restores numbers and names that were lost, so that `strict_json`
rejects them with an error that gives their path. It raises an error if two members were merged.

The module also describes pydantic's validation errors, in one line.
"""

import base64
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, to_jsonable_python

from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.strict_json import MAX_DEPTH, StrictJsonError, is_number_array
from tidewire.protocol.wire_model import shown


def rows_of(given: Any) -> TypeAdapter[list[Any]]:
    """Return a pydantic adapter that serializes a list of values of one type.

    The adapter is for a list, because pydantic does not accept the argument `config` for the adapter of a model class.
    """
    return TypeAdapter(list[given], config=ConfigDict(ser_json_inf_nan="constants"))


def converted(rows: TypeAdapter[list[Any]], value: Any, *, exclude_unset: bool = False) -> Any:
    """Convert a value to dicts, lists, strings, numbers, booleans and None.

    NaN, infinities and lone surrogates are kept.

    Args:
        rows: An adapter from `rows_of`.
        value: A value that pydantic can serialize, or that contains arrays of NumPy or tensors of PyTorch.
        exclude_unset: Whether to omit the fields of models that were not set.

    Raises:
        StrictJsonError: Two members of one object have the same name in JSON.
        ValueError: pydantic cannot serialize the value. The message comes from pydantic.
        TypeError: pydantic cannot serialize the value. The message comes from pydantic.
    """
    made = rows.dump_python(
        [value],
        mode="json",
        by_alias=True,
        exclude_unset=exclude_unset,
        warnings=False,
        fallback=_from_array,
    )[0]
    if made is not None and type(made) is not list and type(made) is not dict:
        return made  # JSON mode loses nothing if the value is a string, a number or a boolean
    if type(made) is list and is_number_array(made):
        return made  # JSON mode would have replaced NaN by None
    kept = rows.dump_python([value], by_alias=True, exclude_unset=exclude_unset, warnings=False)[0]
    return _restore_losses(kept, made, "")


_Rows: Final = list | tuple | set | frozenset | deque


def _restore_losses(kept: Any, made: Any, pointer: str) -> Any:
    """Restore the numbers and names that the conversion to JSON has changed.

    Args:
        kept: pydantic's output in Python mode, which has the original numbers and names.
        made: pydantic's output in JSON mode.
        pointer: JSON Pointer of the value, for error messages.

    Returns:
        `made` with the original numbers and names.
    """
    kind = type(made)
    if made is not None and kind is not list and kind is not dict:
        return made
    if hasattr(kept, "tolist"):
        kept = kept.tolist()
    if made is None:
        return float(kept) if isinstance(kept, float) and not math.isfinite(kept) else None
    if type(kept) is kind and _equal(kept, made):
        return made
    if kind is list:
        if isinstance(kept, _Rows) and len(kept) == len(made):
            return [
                _restore_losses(one, other, f"{pointer}/{index}")
                for index, (one, other) in enumerate(zip(kept, made, strict=True))
            ]
    elif isinstance(kept, dict):
        if len(made) < len(kept):
            _refuse_merged(kept, pointer)
        if len(made) == len(kept):
            return {
                _name(known, name): _restore_losses(kept[known], member, f"{pointer}/{escape(name)}")
                for known, (name, member) in zip(kept, made.items(), strict=True)
            }
    return made


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - numpy arrays raise here; the element-wise comparison decides
        return False


def _name(known: Any, name: str) -> str:
    """Return the name of a member in the result.

    If the original name contains a lone surrogate, the member keeps this name, because JSON mode would replace the
    surrogate. Otherwise the member has the name from the output of JSON mode.
    """
    try:
        known.encode()
    except UnicodeEncodeError:
        return str(known)
    except Exception:  # noqa: BLE001 - the original name is not a string
        return name
    return name


def _refuse_merged(kept: dict[Any, Any], pointer: str) -> None:
    """Raise an error if two keys have the same name in JSON.

    A dict with two such keys loses a member when it is converted to JSON. To find this, it is not enough to count the
    members, because a model may exclude members on purpose.

    Raises:
        StrictJsonError: Two keys have the same name in JSON.
    """
    named: dict[str, Any] = {}
    for known in kept:
        (name,) = to_jsonable_python({known: None})
        if name in named:
            raise StrictJsonError(
                f"at {pointer!r}: the keys {named[name]!r} and {known!r} both become the JSON member {name!r}"
            )
        named[name] = known


# ---- errors --------------------------------------------------------------------------------------------------------

_MAX_ERRORS: Final = 3
"""Maximum number of errors that `describe` shows."""


def describe(error: ValidationError) -> str:
    """Summarize a validation error of pydantic in one line: the paths and messages of the first errors, with the
    received values, and the number of other errors.
    """
    found = error.errors(include_url=False, include_context=False)
    first = [
        f"{'/' + '/'.join(map(str, each['loc'])) if each['loc'] else 'the whole value'}: {message_of(each)}"
        for each in found[:_MAX_ERRORS]
    ]
    rest = f" (and {len(found) - len(first)} more)" if len(found) > len(first) else ""
    return f"{'; '.join(first)}{rest}"


_WITHOUT_VALUE: Final = frozenset(
    {"missing", "extra_forbidden", "unexpected_keyword_argument", "json_invalid"}
)
"""Types of errors that are reported without the received value, because there is none or it would not help."""


def message_of(error: ErrorDetails) -> str:
    """Return the message of one validation error, with the beginning of the value that was received."""
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] in _WITHOUT_VALUE or "input" not in error:
        return message
    return f"{message}; received {shown(error['input'])}"


# ---- arrays --------------------------------------------------------------------------------------------------------


def _from_array(value: Any) -> Any:
    """Convert an array or a scalar of NumPy, or a tensor of PyTorch, to lists and numbers. This is a `fallback` for
    `converted`.

    Raises:
        ValueError: The object has another type, or contains complex numbers.
    """
    if not hasattr(value, "tolist"):
        kind = type(value)
        advice = (
            "; encode it, for example as PNG, for a field of the type tidewire.Binary"
            if _is_image(kind)
            else ""
        )
        raise ValueError(f"{kind.__name__} has no JSON form{advice}")
    plain = first = value.tolist()
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, complex):
        raise ValueError("complex numbers have no JSON form; pass their real and imaginary parts")  # noqa: TRY004
    return plain


def _is_image(kind: type) -> bool:
    """Whether a type is Pillow's `Image` or one of its subclasses, which represent file formats."""
    return any(each.__module__ == "PIL.Image" for each in kind.__mro__)


def place_of(value: Any, convert: Callable[[Any], Any], depth: int = 0) -> str:
    """Return the JSON Pointer of the innermost part of a value that `convert` cannot convert to JSON.

    Args:
        value: The value.
        convert: Function that converts a part of the value, and raises an error if the part has no JSON form.
        depth: Depth of the value.
    """
    if depth < MAX_DEPTH:
        for name, member in _parts(value):
            try:
                convert(member)
            except Exception:  # noqa: BLE001 - any error means that this part has no JSON form
                return f"/{escape(str(name))}{place_of(member, convert, depth + 1)}"
    return ""


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple | deque):
        return enumerate(value)
    if is_plain_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return vars(value).items() if isinstance(value, BaseModel) else ()


# ---- bytes ---------------------------------------------------------------------------------------------------------


def _decode(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError("must be base64, such as base64.b64encode(data).decode()") from None


def _encode(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray | memoryview) else value


Binary = Annotated[
    bytes,
    BeforeValidator(_decode),
    PlainSerializer(_encode, when_used="json"),
    WithJsonSchema({"type": "string", "format": "base64"}),
]
"""Type of bytes that are sent as base64 text.

In Python the value is always `bytes`. The bytes are encoded when they are converted to JSON, and a base64 text is
decoded when it is validated. (`pydantic.Base64Bytes` also decodes the bytes that a program passes to a model.)"""


def is_plain_dataclass(value: Any) -> bool:
    """Whether a value is an instance of a dataclass of the standard library."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@lru_cache(256)
def rows_of_dataclass(kind: Any) -> TypeAdapter[list[Any]]:
    """Return the adapter for a dataclass, which serializes fields such as `Binary` by their annotation. If pydantic
    cannot create this adapter, return the adapter for any value.
    """
    try:
        rows = rows_of(kind)
        # Otherwise an adapter with an unknown name in a type would raise its error when it is used.
        rows.rebuild()
    except (PydanticUserError, NameError):
        return rows_of(Any)
    return rows
