"""States and diffs by chapter 5, as the suite reads them: what a diff makes of a state, or which sentence it breaks.

A state is never changed: what an op leads to shares with the old one all that it did not touch, so that the states at
all ids of a history can be kept side by side.
"""

import hashlib
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import rfc8785

ITEM_ENDS: Final = frozenset({"succeeded", "failed", "cancelled"})
JOB_ENDS: Final = frozenset({"succeeded", "partially_failed", "failed", "cancelled"})

_INDEX = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_SIZES = {"r": None, "a": 3, "t": 3, "s": 3, "i": 3, "d": 2}
"""Ops and how many elements each has; a row has as many as there are columns."""


class Refused(Exception):  # noqa: N818 - it is the diff that is refused
    """A diff, a check or a digest that does not hold."""

    def __init__(self, sentence: str, why: str) -> None:
        super().__init__(why)
        self.sentence = sentence
        """What it breaks."""


@dataclass(frozen=True)
class State:
    """A state with the places that grow."""

    value: Any
    columns: tuple[str, ...]


def _demand(holds: object, sentence: str, why: str) -> None:
    if not holds:
        raise Refused(sentence, why)


def tokens(path: Any) -> list[str]:
    """The reference tokens of a JSON Pointer.

    Raises:
        Refused: It is none.
    """
    sound = isinstance(path, str) and (not path or path[0] == "/") and not re.search("~(?![01])", path)
    _demand(sound, "TW-DIF-018", f"{path!r} is no JSON Pointer")
    return [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:]]


def _index(token: str) -> int:
    _demand(_INDEX.fullmatch(token), "TW-DIF-019", f"{token!r} is no index")
    return int(token)


def get(value: Any, path: str) -> Any:
    """What stands at a place.

    Raises:
        Refused: There is nothing.
    """
    for token in tokens(path):
        if isinstance(value, dict):
            _demand(token in value, "TW-DIF-021", f"there is nothing at {path!r}")
            value = value[token]
        else:
            _demand(isinstance(value, list), "TW-DIF-021", f"{path!r} leads through a scalar")
            at = _index(token)
            _demand(at < len(value), "TW-DIF-021", f"there is nothing at {path!r}")
            value = value[at]
    return value


def find(value: Any, path: str) -> Any:
    """What stands at a place, or None."""
    try:
        return get(value, path)
    except Refused:
        return None


def _changed(value: Any, way: list[str], change: Callable[[Any, str], Any], path: str) -> Any:
    """A copy of the containers on the way, the last of them as `change` makes it."""
    if len(way) == 1:
        _demand(
            isinstance(value, dict | list),
            "TW-DIF-021",
            f"what contains {path!r} is neither object nor array",
        )
        return change(value, way[0])
    _demand(isinstance(value, dict | list), "TW-DIF-021", f"{path!r} leads through a scalar")
    key = _key(value, way[0])
    _demand(key is not None, "TW-DIF-021", f"what contains {path!r} does not exist")
    copy = value.copy()
    copy[key] = _changed(value[key], way[1:], change, path)
    return copy


def _key(container: Any, token: str) -> Any:
    """The member's name or the element's index that a token stands for; None where there is no such place."""
    if isinstance(container, dict):
        return token if token in container else None
    return _index(token) if _index(token) < len(container) else None


def _put(root: Any, path: str, new: Any) -> Any:
    def change(container: Any, token: str) -> Any:
        copy = container.copy()
        if isinstance(copy, dict):
            copy[token] = new
        else:
            at = _index(token)
            _demand(at <= len(copy), "TW-DIF-023", f"{path!r} is past the end")
            copy[at : at + 1] = [new]
        return copy

    way = tokens(path)
    return _changed(root, way, change, path) if way else new


def _insert(root: Any, path: str, new: Any) -> Any:
    def change(container: Any, token: str) -> Any:
        _demand(isinstance(container, list), "TW-DIF-026", f"{path!r} is no place of an array")
        at = _index(token)
        _demand(at <= len(container), "TW-DIF-026", f"{path!r} is past the end")
        return [*container[:at], new, *container[at:]]

    way = tokens(path)
    _demand(way, "TW-DIF-026", "the whole state is no place of an array")
    return _changed(root, way, change, path)


def _delete(root: Any, path: str) -> Any:
    def change(container: Any, token: str) -> Any:
        key = _key(container, token)
        _demand(key is not None, "TW-DIF-027", f"there is nothing at {path!r} to delete")
        copy = container.copy()
        del copy[key]
        return copy

    way = tokens(path)
    _demand(way, "TW-DIF-028", "the whole state cannot be deleted")
    return _changed(root, way, change, path)


def _append(root: Any, path: str, more: Any) -> Any:
    _demand(isinstance(more, str | list), "TW-DIF-029", f"{more!r} is no string and no array")
    old = get(root, path)
    _demand(type(old) is type(more), "TW-DIF-029", f"{path!r} cannot grow by {more!r}")
    return _put(root, path, old + more)


def _truncate(root: Any, path: str, n: Any) -> Any:
    old = get(root, path)
    _demand(isinstance(old, str | list), "TW-DIF-030", f"{path!r} is no text and no array")
    _demand(
        type(n) is int and 0 <= n <= len(old), "TW-DIF-030", f"{path!r} has {len(old)}, and {n!r} are dropped"
    )
    return _put(root, path, old[: len(old) - n])


def _row(root: Any, columns: Sequence[str], row: Sequence[Any]) -> Any:
    _demand(len(row) == len(columns), "TW-DIF-037", f"a row of {len(row)}, and {len(columns)} columns")
    for column, each in zip(columns, row, strict=True):
        old = find(root, column)
        _demand(isinstance(old, str | list), "TW-DIF-039", f"the column {column!r} is no text and no array")
        _demand(
            isinstance(each, str) or isinstance(old, list), "TW-DIF-038", f"{each!r} for the text {column!r}"
        )
        root = _append(root, column, each if isinstance(old, str) else [each])
    return root


def apply(state: State, data: Any) -> State:
    """What a diff leads to, its checks verified.

    Raises:
        Refused: It does not apply, and why.
    """
    ops, checks = data, []
    if isinstance(data, str):
        alone = len(state.columns) == 1 and isinstance(find(state.value, state.columns[0]), str)
        _demand(alone, "TW-DIF-036", "a bare string where there is not exactly one column, a text")
        ops = [["a", state.columns[0], data]]
    elif isinstance(data, dict):
        _demand("ops" in data, "TW-DIF-015", "an object without `ops`")
        ops, checks, on = data["ops"], data.get("check", []), data.get("on", 0)
        sound = isinstance(ops, list) and isinstance(checks, list) and type(on) is int and on >= 0
        _demand(sound, "TW-DIF-016", "`ops` or `check` is no array, or `on` no integer")
    _demand(isinstance(ops, list), "TW-DIF-015", "a diff of no known shape")
    value = state.value
    for op in ops:
        value = _applied(value, op, state.columns)
    after = State(value, state.columns)
    verify(after, checks, "TW-DIF-048")
    return after


def _applied(value: Any, op: Any, columns: Sequence[str]) -> Any:
    _demand(isinstance(op, list) and op and isinstance(op[0], str), "TW-DIF-013", f"{op!r} is no op")
    name, *rest = op
    _demand(name in _SIZES, "TW-DIF-014", f"the op {name!r}")
    _demand(_SIZES[name] in {None, len(op)}, "TW-DIF-013", f"{op!r} has {len(op)} elements")
    match name:
        case "r":
            return _row(value, columns, rest)
        case "a":
            return _append(value, *rest)
        case "t":
            return _truncate(value, *rest)
        case "s":
            return _put(value, *rest)
        case "i":
            return _insert(value, *rest)
        case _:
            return _delete(value, *rest)


def verify(state: State, checks: Any, sentence: str) -> None:
    """Verify checks.

    Args:
        state: What they are of.
        checks: As they stand in a diff or in `done`.
        sentence: What a check that does not hold breaks.

    Raises:
        Refused: One does not hold.
    """
    for check in checks:
        _demand(isinstance(check, list) and len(check) in {2, 3}, sentence, f"{check!r} is no check")
        path, n, *crc = check
        found = find(state.value, path)
        _demand(isinstance(found, str if crc else list), "TW-DIF-050", f"{check!r} of {found!r}")
        _demand(type(n) is int and len(found) == n, "TW-DIF-046", f"{check!r}: {path!r} has {len(found)}")
        if crc:
            true = zlib.crc32(found.encode("utf-8", "surrogatepass"))
            _demand(crc[0] == true, "TW-DIF-047", f"{check!r}: the CRC-32 of the text is {true}")


def digest(items: Any) -> str:
    """The digest of items (section 5.7)."""
    return hashlib.sha256(rfc8785.dumps(items)).hexdigest()[:16]


def end_of(items: Sequence[str]) -> str:
    """The status of a job that follows from those of its items; empty where some have not ended."""
    if not set(items) <= ITEM_ENDS:
        return ""
    if "succeeded" in items:
        return "succeeded" if set(items) == {"succeeded"} else "partially_failed"
    return "failed" if "failed" in items else "cancelled"
