"""The three shapes of a diff, their validation, and the errors for a diff that cannot be applied.

A diff is an array of ops, an object with the member `ops` and optional members, or a string. A column is a text or an array
in the job's state to which the job appends. If a diff is only a string, the string is appended to the job's column. Such a
diff is valid only if the job has exactly one column.

  op                  | meaning
  --------------------+--------------------------------------------------------------------------------------------
  ["r", x1, …, xn]    | row: append the string x_i to the text in column i, or the element x_i to the array in column i
  ["a", path, x]      | append a string to a text, or the elements of an array to an array
  ["t", path, n]      | drop the last n code points or elements
  ["s", path, value]  | set; the parent must exist; an index equal to the length appends; the path "" is the root
  ["i", path, value]  | insert an element before the index at the end of the path (0…length)
  ["d", path]         | delete a member or an element

The module `apply_ops` implements the effect of each op on a value.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tidewire.protocol.strict_json import JsonValue

Op: TypeAlias = list[JsonValue]

ARITY: Final = {"a": 3, "t": 3, "s": 3, "i": 3, "d": 2}
"""Length of each kind of op that has a path. A row has no path. Its length is the number of columns plus one."""


class DiffError(ValueError):
    """The diff is malformed, or it cannot be applied to the value. None of its ops were applied."""

    reason: str
    op: int | None
    """Index of the failed op, or None if the error does not concern a single op."""
    path: str | None
    """Path of the failed op, or None if the op has no path."""

    def __init__(self, reason: str, *, op: int | None = None, path: str | None = None) -> None:
        where = "" if op is None else f"op {op}: "
        if path is not None:
            where += f"at {path[:200]!r}: "
        super().__init__(where + reason)
        self.reason = reason
        self.op = op
        self.path = path


class UnknownOpError(DiffError):
    """The diff has a shape, or contains an op, that this version of the protocol does not define."""


class StableError(DiffError):
    """The diff changes text that was declared as stable, or decreases or removes the length of a stable prefix."""


class DiffShape(NamedTuple):
    """A diff in normal form, with a list of ops and a list of checks.

    Diffs of all three shapes are converted to this form.
    """

    ops: list[Any]
    check: list[Any]


def read(diff: JsonValue, columns: Sequence[str]) -> DiffShape:
    """Normalize a diff of any shape to `DiffShape`. The individual ops are not validated.

    Raises:
        UnknownOpError: The diff has none of the three shapes.
        DiffError: A member of the diff has the wrong type, or the diff is a string although the job does not have exactly
            one column.
    """
    if isinstance(diff, list):
        return DiffShape(diff, [])
    if isinstance(diff, str):
        if len(columns) != 1:
            raise DiffError(
                f"a diff that is a string requires exactly one column, but there are {len(columns)}"
            )
        return DiffShape([["a", columns[0], diff]], [])
    if not isinstance(diff, dict) or "ops" not in diff:
        raise UnknownOpError(
            f"a diff must be a string, an array, or an object with 'ops', but this is a {type(diff).__name__}"
        )
    ops, on, check = diff["ops"], diff.get("on", 0), diff.get("check", [])
    if not isinstance(ops, list):
        raise DiffError("'ops' is not an array")
    if not is_count(on):
        raise DiffError("'on' is not an integer ≥ 0")
    if not isinstance(check, list):
        raise DiffError("'check' is not an array")
    return DiffShape(ops, check)


def is_count(number: object) -> bool:
    """Whether a value is an integer ≥ 0. `True` and `1.0` do not count as integers."""
    return type(number) is int and number >= 0


def check_form(op: object) -> None:
    """Check that an op has a known letter and the right length, and that its path is a string.

    Raises:
        UnknownOpError: The protocol defines no op with this letter.
        DiffError: The value is not an op, or it has the wrong length, or its path is not a string.
    """
    if not isinstance(op, list) or not op or type(op[0]) is not str:
        raise DiffError("an op must be an array that begins with a letter")
    letter = op[0]
    if letter == "r":
        return
    if letter not in ARITY:
        raise UnknownOpError(f"unknown op {letter[:40]!r}")
    if len(op) != ARITY[letter]:
        raise DiffError(f"op {letter!r} must have {ARITY[letter]} members, but has {len(op)}")
    if not isinstance(op[1], str):
        raise DiffError(f"the path of op {letter!r} is not a string")
