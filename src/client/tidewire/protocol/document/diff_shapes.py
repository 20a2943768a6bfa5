"""The three shapes of a diff, and what is wrong with one that cannot be applied.

A diff is a string (appended to the one column), an array of ops, or an object with `ops` and extras.

  op                  | meaning
  --------------------+--------------------------------------------------------------------------------------------
  ["r", x1, …, xn]    | row: x_i goes to column i: a text grows by a string, an array by one element
  ["a", path, x]      | append a string to a text, or the elements of an array to an array
  ["t", path, n]      | drop the last n code points or elements
  ["s", path, value]  | set; the parent exists; an index equal to the length appends; "" is the root
  ["i", path, value]  | insert before the element that the path names (0…length)
  ["d", path]         | delete a member or an element

This file knows shapes. What an op does to a value stands in `apply_ops`.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic import JsonValue

Op: TypeAlias = list[JsonValue]

ARITY: Final = {"a": 3, "t": 3, "s": 3, "i": 3, "d": 2}
"""Members of each op that has a path, its letter included. A row has one more member than there are columns."""


class DiffError(ValueError):
    """A diff cannot be applied: it is malformed, or does not fit the value. Nothing of it was applied."""

    reason: str
    op: int | None
    """Index of the op at fault; None where the fault is in no single op."""
    path: str | None
    """The path of that op."""

    def __init__(self, reason: str, *, op: int | None = None, path: str | None = None) -> None:
        where = "" if op is None else f"op {op}: "
        if path is not None:
            where += f"at {path[:200]!r}: "
        super().__init__(where + reason)
        self.reason = reason
        self.op = op
        self.path = path


class UnknownOpError(DiffError):
    """An op or a shape of diff that this version of the protocol does not have."""


class StableError(DiffError):
    """A diff takes back text that its item declared `stable`, or takes back the declaration."""


class DiffShape(NamedTuple):
    """A diff of any of the three shapes, as one."""

    ops: list[Any]
    check: list[Any]


def read(diff: JsonValue, columns: Sequence[str]) -> DiffShape:
    """Bring a diff of any shape into one. The ops themselves are still to be judged.

    Raises:
        UnknownOpError: The diff has none of the three shapes.
        DiffError: It has one and breaks it.
    """
    kind = type(diff)
    if isinstance(diff, str):
        if len(columns) != 1:
            raise DiffError(f"a bare string needs exactly one column, here are {len(columns)}")
        return DiffShape([["a", columns[0], diff]], [])
    if isinstance(diff, list):
        return DiffShape(diff, [])
    if not isinstance(diff, dict) or "ops" not in diff:
        raise UnknownOpError(f"a diff is a string, an array, or an object with 'ops', not {kind.__name__}")
    ops, on, check = diff["ops"], diff.get("on", 0), diff.get("check", [])
    if not isinstance(ops, list):
        raise DiffError("'ops' is not an array")
    if not is_count(on):
        raise DiffError("'on' is not a whole number ≥ 0")
    if not isinstance(check, list):
        raise DiffError("'check' is not an array")
    return DiffShape(ops, check)


def is_count(number: object) -> bool:
    """Whether a number is an integer ≥ 0. `True` and `1.0` are none."""
    return type(number) is int and number >= 0


def judge(op: object) -> None:
    """Refuse an op whose letter, arity or path is wrong.

    Raises:
        UnknownOpError: No op has this letter.
        DiffError: It is no op, or breaks the form of the one that it names.
    """
    if not isinstance(op, list) or not op or not isinstance(op[0], str):
        raise DiffError("an op is an array that begins with a letter")
    letter = op[0]
    if letter == "r":
        return
    if letter not in ARITY:
        raise UnknownOpError(f"unknown op {letter[:40]!r}")
    if len(op) != ARITY[letter]:
        raise DiffError(f"op {letter!r} has {ARITY[letter]} members, not {len(op)}")
    if not isinstance(op[1], str):
        raise DiffError(f"the path of op {letter!r} is not a string")
