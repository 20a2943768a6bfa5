"""Function that applies a diff to a state (chapter 5), independent of the client and the server.

A diff that does not apply raises `InvalidDiffError` with the id of the requirement that it violates. States are
immutable. A new state shares all unchanged parts with the old one, so a history of all states needs little memory.
"""

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import rfc8785

from tidewire_conformance.schema_violations import json_text

ITEM_ENDS: Final = frozenset({"succeeded", "failed", "cancelled"})
JOB_ENDS: Final = frozenset({"succeeded", "partially_failed", "failed", "cancelled"})

_INDEX = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_SIZES = {"r": None, "a": 3, "t": 3, "s": 3, "i": 3, "d": 2}
"""Number of elements in each diff operation. The number is None for a row (`r`), because it depends on the columns."""


class InvalidDiffError(Exception):
    """Raised if a diff, a check or a digest violates a requirement."""

    def __init__(self, requirement: str, why: str) -> None:
        super().__init__(why)
        self.requirement = requirement
        """Id of the violated requirement."""


@dataclass(frozen=True)
class State:
    """A job's state, and the paths in it to which the operation `r` appends a row of values (`columns`)."""

    value: Any
    columns: tuple[str, ...]


def _require(holds: object, requirement: str, why: str, *values: Any) -> None:
    """Raise an error unless a condition holds. Its text is `why` with the values as JSON in place of each `{}`."""
    if not holds:
        raise InvalidDiffError(requirement, why.format(*map(json_text, values)))


def tokens(path: Any) -> tuple[str, ...]:
    """Split a JSON Pointer into its reference tokens.

    Raises:
        InvalidDiffError: The path is not a JSON Pointer.
    """
    found = _tokens(path) if isinstance(path, str) else None
    if found is None:
        raise InvalidDiffError("TW-DIF-073", f"{json_text(path)} is not a JSON Pointer")
    return found


@lru_cache(4096)
def _tokens(path: str) -> tuple[str, ...] | None:
    if (path and path[0] != "/") or re.search("~(?![01])", path):
        return None
    return tuple([token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:]])


def _index(token: str) -> int:
    _require(_INDEX.fullmatch(token), "TW-DIF-073", "{} is not an array index", token)
    return int(token)


def get(value: Any, path: str) -> Any:
    """Return the value at a path in a JSON value.

    Raises:
        InvalidDiffError: The path does not exist.
    """
    for token in tokens(path):
        if isinstance(value, dict):
            _require(token in value, "TW-DIF-073", "the path {} does not exist", path)
            value = value[token]
        else:
            _require(isinstance(value, list), "TW-DIF-073", "the path {} passes through a scalar", path)
            at = _index(token)
            _require(at < len(value), "TW-DIF-073", "the path {} does not exist", path)
            value = value[at]
    return value


def find(value: Any, path: str) -> Any:
    """Return the value at a path in a JSON value, or None if the path does not exist."""
    try:
        return get(value, path)
    except InvalidDiffError:
        return None


def _changed(value: Any, way: Sequence[str], change: Callable[[Any, str], Any], path: str) -> Any:
    """Copy all objects and arrays along a path, and apply `change` to the innermost copy."""
    if len(way) == 1:
        _require(
            isinstance(value, dict | list),
            "TW-DIF-073",
            "the parent of {} is neither an object nor an array",
            path,
        )
        return change(value, way[0])
    _require(isinstance(value, dict | list), "TW-DIF-073", "the path {} passes through a scalar", path)
    key = _key(value, way[0])
    _require(key is not None, "TW-DIF-073", "the parent of {} does not exist", path)
    copy = value.copy()
    copy[key] = _changed(value[key], way[1:], change, path)
    return copy


def _key(container: Any, token: str) -> Any:
    """Return the member name or the array index for a token, or None if the container has no such member or element."""
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
            _require(at <= len(copy), "TW-DIF-073", "the index in {} is past the end of the array", path)
            copy[at : at + 1] = [new]
        return copy

    way = tokens(path)
    return _changed(root, way, change, path) if way else new


def _insert(root: Any, path: str, new: Any) -> Any:
    def change(container: Any, token: str) -> Any:
        _require(isinstance(container, list), "TW-DIF-073", "{} is not an element of an array", path)
        at = _index(token)
        _require(at <= len(container), "TW-DIF-073", "the index in {} is past the end of the array", path)
        return [*container[:at], new, *container[at:]]

    way = tokens(path)
    _require(way, "TW-DIF-073", "the root of the state is not an element of an array")
    return _changed(root, way, change, path)


def _delete(root: Any, path: str) -> Any:
    def change(container: Any, token: str) -> Any:
        key = _key(container, token)
        _require(key is not None, "TW-DIF-073", "cannot delete {}: the path does not exist", path)
        copy = container.copy()
        del copy[key]
        return copy

    way = tokens(path)
    _require(way, "TW-DIF-073", "the root of the state cannot be deleted")
    return _changed(root, way, change, path)


def _append(root: Any, path: str, more: Any) -> Any:
    _require(isinstance(more, str | list), "TW-DIF-073", "{} is neither a string nor an array", more)
    old = get(root, path)
    _require(
        type(old) is type(more),
        "TW-DIF-073",
        "cannot append {} to {}: the types differ",
        more,
        path,
    )
    return _put(root, path, old + more)


def _truncate(root: Any, path: str, n: Any) -> Any:
    old = get(root, path)
    _require(isinstance(old, str | list), "TW-DIF-073", "{} is neither a text nor an array", path)
    _require(
        type(n) is int and 0 <= n <= len(old),
        "TW-DIF-073",
        "cannot truncate {} by {}: its length is {}",
        path,
        n,
        len(old),
    )
    return _put(root, path, old[: len(old) - n])


def _row(root: Any, columns: Sequence[str], row: Sequence[Any]) -> Any:
    _require(
        len(row) == len(columns),
        "TW-DIF-073",
        "the row has {} elements, but the state has {} columns",
        len(row),
        len(columns),
    )
    for column, each in zip(columns, row, strict=True):
        old = find(root, column)
        _require(
            isinstance(old, str | list),
            "TW-DIF-073",
            "the column {} is neither a text nor an array",
            column,
        )
        _require(
            isinstance(each, str) or isinstance(old, list),
            "TW-DIF-073",
            "the row contains {} for the text at {}",
            each,
            column,
        )
        root = _append(root, column, each if isinstance(old, str) else [each])
    return root


def apply(state: State, data: Any) -> State:
    """Apply a diff to a state and verify the checks in the diff.

    Raises:
        InvalidDiffError: The diff does not apply, or one of its checks fails.
    """
    *_, value = [state.value, *values_after_ops(state, data)]
    after = State(value, state.columns)
    verify(after, data.get("check", []) if isinstance(data, dict) else [], "TW-DIF-048")
    return after


def values_after_ops(state: State, data: Any) -> Iterator[Any]:
    """Apply a diff to a state, and yield the value of the state after each operation.

    Raises:
        InvalidDiffError: The diff does not apply.
    """
    ops = data
    if isinstance(data, str):
        alone = len(state.columns) == 1 and isinstance(find(state.value, state.columns[0]), str)
        _require(
            alone,
            "TW-DIF-073",
            "the diff is a string, so the state must have exactly one column, and that column must be a text",
        )
        ops = [["a", state.columns[0], data]]
    elif isinstance(data, dict):
        _require("ops" in data, "TW-DIF-074", "the diff is an object without `ops`")
        ops, checks, on = data["ops"], data.get("check", []), data.get("on", 0)
        sound = isinstance(ops, list) and isinstance(checks, list) and type(on) is int and on >= 0
        _require(sound, "TW-DIF-073", "`ops` or `check` is not an array, or `on` is not an integer")
    _require(
        isinstance(ops, list),
        "TW-DIF-074",
        "the diff is neither a string nor an array of operations nor an object with `ops`",
    )
    value = state.value
    for op in ops:
        value = _applied(value, op, state.columns)
        yield value


def _applied(value: Any, op: Any, columns: Sequence[str]) -> Any:
    _require(isinstance(op, list) and op and isinstance(op[0], str), "TW-DIF-073", "{} is not an op", op)
    name, *rest = op
    _require(name in _SIZES, "TW-DIF-074", "the op {} is unknown", name)
    _require(
        _SIZES[name] in {None, len(op)},
        "TW-DIF-073",
        "the op {} has {} elements, not {}",
        op,
        len(op),
        _SIZES[name],
    )
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


def verify(state: State, checks: Any, requirement: str) -> None:
    """Verify the checks in a diff or in a `done` event.

    Args:
        state: State against which to verify the checks.
        checks: Checks in the form in which a diff or a `done` event contains them.
        requirement: Id of the requirement that a malformed check violates.

    Raises:
        InvalidDiffError: A check is malformed or does not hold.
    """
    _require(isinstance(checks, list), requirement, "{} is not an array of checks", checks)
    for check in checks:
        _require(
            isinstance(check, list) and len(check) in {2, 3},
            requirement,
            "{} is not a check",
            check,
        )
        path, n, *crc = check
        found = find(state.value, path)
        _require(
            isinstance(found, str if crc else list),
            "TW-DIF-050",
            "the check {} does not fit the value {}",
            check,
            found,
        )
        _require(
            type(n) is int and len(found) == n,
            "TW-DIF-046",
            "the check {} does not hold: {} has the length {}",
            check,
            path,
            len(found),
        )
        if crc:
            true = zlib.crc32(found.encode("utf-8", "surrogatepass"))
            _require(
                crc[0] == true,
                "TW-DIF-047",
                "the check {} does not hold: the CRC-32 of the text is {}",
                check,
                true,
            )


def digest(items: Any) -> str:
    """Return the digest of the items of a job (section 5.7).

    Raises:
        InvalidDiffError: The items contain a number or a text that has no digest, such as NaN.
    """
    try:
        return hashlib.sha256(rfc8785.dumps(items)).hexdigest()[:16]
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise InvalidDiffError("TW-DIF-055", f"the items have no digest: {error}") from None


def end_of(items: Sequence[str]) -> str:
    """Return the final status of a job, derived from its items, or an empty string if an item has not ended."""
    if not set(items) <= ITEM_ENDS:
        return ""
    if "succeeded" in items:
        return "succeeded" if set(items) == {"succeeded"} else "partially_failed"
    return "failed" if "failed" in items else "cancelled"
