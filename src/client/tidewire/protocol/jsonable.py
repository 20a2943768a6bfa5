"""From Python values to JSON's own types by pydantic, without a loss that nobody hears of.

Where a model stands deep inside a container, pydantic makes null of a NaN in it; and of two members whose names are the
same text in JSON (`{1: 2, "1": 3}`) it makes one. So what it makes is compared with what it keeps in Python. A number
or name that was lost is put back, as what it was: `strict_json` then refuses it, and says where it stands.
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
    """What makes JSON of a list of values of a type. A model by itself would not take this configuration."""
    return TypeAdapter(list[given], config=ConfigDict(ser_json_inf_nan="constants"))


def converted(rows: TypeAdapter[list[Any]], value: Any, fallback: Callable[[Any], Any] | None = None) -> Any:
    """JSON's own Python types of a value, and what is no JSON as it was given.

    Args:
        rows: From `rows_of`.
        value: Anything that pydantic can write; an array (of numpy, of torch) as its list.
        fallback: Makes something that pydantic knows of what it does not.

    Raises:
        StrictJsonError: Two members of one object have the same name.
        ValueError: There is no JSON for it, in pydantic's words.
        TypeError: Likewise.
    """
    made = rows.dump_python([value], mode="json", by_alias=True, warnings=False, fallback=fallback)[0]
    if made is not None and type(made) is not list and type(made) is not dict:
        return made  # nothing is lost of a text or a number
    kept = rows.dump_python([value], by_alias=True, warnings=False)[0]
    return _with_what_was_lost(kept, made, "")


_Rows: Final = list | tuple | set | frozenset | deque


def _with_what_was_lost(kept: Any, made: Any, pointer: str) -> Any:
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
                _with_what_was_lost(one, other, f"{pointer}/{index}")
                for index, (one, other) in enumerate(zip(kept, made, strict=True))
            ]
    elif isinstance(kept, dict):
        if len(made) < len(kept):
            _refuse_merged(kept, pointer)
        if len(made) == len(kept):
            return {
                _name(known, name): _with_what_was_lost(kept[known], member, f"{pointer}/{escape(name)}")
                for known, (name, member) in zip(kept, made.items(), strict=True)
            }
    return made


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - an array compares in its own way; the exact look tells
        return False


def _name(known: Any, name: str) -> str:
    """The name that was made, unless it replaces a lone surrogate."""
    try:
        known.encode()
    except UnicodeEncodeError:
        return str(known)
    except Exception:  # noqa: BLE001 - it was no text
        return name
    return name


def _refuse_merged(kept: dict[Any, Any], pointer: str) -> None:
    """Raise `StrictJsonError` if members of an object have the same name; else a model left some out on purpose."""
    named: dict[str, Any] = {}
    for known in kept:
        (name,) = to_jsonable_python({known: None})
        if name in named:
            raise StrictJsonError(
                f"at {pointer!r}: {named[name]!r} and {known!r} are both the member {name!r}"
            )
        named[name] = known
