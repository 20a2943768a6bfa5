"""Function that applies a diff to a state (chapter 5), independent of the client and the server.

A diff that does not apply raises `InvalidDiffError` with the id of the requirement that it violates. States are
immutable. A new state shares all unchanged parts with the old one, so a history of all states needs little memory.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import rfc8785

from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.wire.json_violations import MAX_INTEGER

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
    sound = isinstance(path, str) and path[:1] in {"", "/"} and not re.search("~(?![01])", path)
    _require(sound, "TW-DIF-073", "{} is not a JSON Pointer", path)
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


class _Draft:
    """Copy of a state, which the operations of one diff change.

    An object or array of the old state is copied before its first change, and then changes in place. A diff can have
    thousands of operations for the same array, and a copy for each of them would take seconds.
    """

    def __init__(self, state: State) -> None:
        self._root = {"": state.value}
        self._columns = state.columns
        self._copies: dict[int, Any] = {}
        """Objects and arrays copied for this diff, by their `id()`. The references keep Python from reusing an `id()`."""

    @property
    def value(self) -> Any:
        return self._root[""]

    def _parent(self, path: str) -> tuple[Any, str]:
        """Return the object or array that contains a path, ready to be changed, and the last token of the path.

        The parent of the path `""` is an object with the whole state as its member `""`.
        """
        *way, last = "", *tokens(path)
        parent: Any = self._root
        for token in way:
            key = _key(parent, token)
            _require(key is not None, "TW-DIF-073", "the parent of {} does not exist", path)
            parent[key] = self._own(parent[key], path)
            parent = parent[key]
        return parent, last

    def _target(self, path: str) -> tuple[Any, Any]:
        """Return the object or array that contains a path, ready to be changed, and the member name or array index."""
        container, token = self._parent(path)
        key = _key(container, token)
        _require(key is not None, "TW-DIF-073", "the path {} does not exist", path)
        return container, key

    def _own(self, container: Any, path: str) -> Any:
        _require(
            isinstance(container, dict | list), "TW-DIF-073", "the path {} passes through a scalar", path
        )
        if id(container) not in self._copies:
            container = container.copy()
            self._copies[id(container)] = container
        return container

    def put(self, path: str, new: Any) -> None:
        container, token = self._parent(path)
        if isinstance(container, dict):
            container[token] = new
            return
        at = _index(token)
        _require(at <= len(container), "TW-DIF-073", "the index in {} is past the end of the array", path)
        container[at : at + 1] = [new]

    def insert(self, path: str, new: Any) -> None:
        container, token = self._parent(path)
        _require(isinstance(container, list), "TW-DIF-073", "{} is not an element of an array", path)
        at = _index(token)
        _require(at <= len(container), "TW-DIF-073", "the index in {} is past the end of the array", path)
        container.insert(at, new)

    def delete(self, path: str) -> None:
        _require(tokens(path), "TW-DIF-073", "the root of the state cannot be deleted")
        container, key = self._target(path)
        del container[key]

    def append(self, path: str, more: Any) -> None:
        _require(isinstance(more, str | list), "TW-DIF-073", "{} is neither a string nor an array", more)
        container, key = self._target(path)
        old = container[key]
        same = type(old) is type(more)
        _require(same, "TW-DIF-073", "cannot append {} to {}: the types differ", more, path)
        if isinstance(old, list):
            container[key] = self._own(old, path)
        container[key] += more

    def truncate(self, path: str, n: Any) -> None:
        container, key = self._target(path)
        old = container[key]
        _require(isinstance(old, str | list), "TW-DIF-073", "{} is neither a text nor an array", path)
        _require(
            type(n) is int and 0 <= n <= len(old),
            "TW-DIF-073",
            "cannot truncate {} by {}: its length is {}",
            path,
            n,
            len(old),
        )
        container[key] = old[: len(old) - n]

    def row(self, *row: Any) -> None:
        _require(
            len(row) == len(self._columns),
            "TW-DIF-073",
            "the row has {} elements, but the state has {} columns",
            len(row),
            len(self._columns),
        )
        for column, each in zip(self._columns, row, strict=True):
            old = find(self.value, column)
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
            self.append(column, each if isinstance(old, str) else [each])


def _key(container: Any, token: str) -> Any:
    """Return the member name or the array index for a token, or None if the container has no such member or element."""
    if isinstance(container, dict):
        return token if token in container else None
    at = _index(token)
    return at if at < len(container) else None


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

    The next operation changes the yielded value in place. The original state and the last value never change.

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
    draft = _Draft(state)
    for op in ops:
        _apply_op(draft, op)
        yield draft.value


def _apply_op(draft: _Draft, op: Any) -> None:
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
            draft.row(*rest)
        case "a":
            draft.append(*rest)
        case "t":
            draft.truncate(*rest)
        case "s":
            draft.put(*rest)
        case "i":
            draft.insert(*rest)
        case _:
            draft.delete(*rest)


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
        return hashlib.sha256(_canonical(items)).hexdigest()[:16]
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise InvalidDiffError("TW-DIF-055", f"the items have no digest: {error}") from None


def _canonical(value: Any) -> bytes:
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        # The library refuses the integers ±2^53, which are valid (TW-OVR-003), but writes the equal floats.
        return rfc8785.dumps(_with_floats(value))


def _with_floats(value: Any) -> Any:
    """Return a value with floats in place of the integers ±2^53."""
    if isinstance(value, list):
        return [_with_floats(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_floats(each) for name, each in value.items()}
    return float(value) if type(value) is int and abs(value) == MAX_INTEGER else value


def end_of(items: Sequence[str]) -> str:
    """Return the final status of a job, derived from its items, or an empty string if an item has not ended."""
    if not set(items) <= ITEM_ENDS:
        return ""
    if "succeeded" in items:
        return "succeeded" if set(items) == {"succeeded"} else "partially_failed"
    return "failed" if "failed" in items else "cancelled"
