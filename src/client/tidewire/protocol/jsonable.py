"""Convert Python values to JSON types with pydantic, without losing data silently.

pydantic's JSON mode loses data in two cases. A NaN in a model nested inside a container becomes null. Two members whose
names are the same text in JSON (`{1: 2, "1": 3}`) become one member. This module therefore compares the output of
JSON mode with the output of Python mode. It restores lost numbers and names, which `strict_json` then rejects with
their location, and it raises an error for merged members.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import to_jsonable_python

from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.strict_json import StrictJsonError


def rows_of(given: Any) -> TypeAdapter[list[Any]]:
    """Return an adapter that serializes a list of values of a type.

    The adapter takes a list because pydantic does not accept `config` for a bare model class.
    """
    return TypeAdapter(list[given], config=ConfigDict(ser_json_inf_nan="constants"))


def converted(rows: TypeAdapter[list[Any]], value: Any, fallback: Callable[[Any], Any] | None = None) -> Any:
    """Convert a value to dicts, lists and scalars. NaN, infinities and lone surrogates are kept as they are.

    Args:
        rows: An adapter from `rows_of`.
        value: A value that pydantic can serialize, or one that `fallback` can convert.
        fallback: Converts an object that pydantic cannot serialize to one that it can.

    Raises:
        StrictJsonError: Two members of one object have the same name in JSON.
        ValueError: pydantic cannot serialize the value. The message is pydantic's.
        TypeError: pydantic cannot serialize the value. The message is pydantic's.
    """
    made = rows.dump_python([value], mode="json", by_alias=True, warnings=False, fallback=fallback)[0]
    if made is not None and type(made) is not list and type(made) is not dict:
        return made  # JSON mode loses nothing in a scalar
    kept = rows.dump_python([value], by_alias=True, warnings=False)[0]
    return _restore_losses(kept, made, "")


_Rows: Final = list | tuple | set | frozenset | deque


def _restore_losses(kept: Any, made: Any, pointer: str) -> Any:
    """Return `made` (JSON mode) with lost numbers and names taken from `kept` (Python mode)."""
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
    """Member name to use: the original if it holds a lone surrogate (JSON mode replaces those), else the converted one."""
    try:
        known.encode()
    except UnicodeEncodeError:
        return str(known)
    except Exception:  # noqa: BLE001 - the original name is not a string
        return name
    return name


def _refuse_merged(kept: dict[Any, Any], pointer: str) -> None:
    """Raise `StrictJsonError` if two keys have the same name in JSON.

    If all names differ, a model excluded members on purpose, which is allowed.
    """
    named: dict[str, Any] = {}
    for known in kept:
        (name,) = to_jsonable_python({known: None})
        if name in named:
            raise StrictJsonError(
                f"at {pointer!r}: the keys {named[name]!r} and {known!r} both become the JSON member {name!r}"
            )
        named[name] = known
