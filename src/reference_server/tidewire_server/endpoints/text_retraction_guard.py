"""Check that a change retracts text only if the endpoint declares `rollback`, and that it keeps stable prefixes."""

from collections.abc import Sequence
from typing import Any, Final

from tidewire.protocol.diff import Op
from tidewire.protocol.document.json_pointer import escape, parse
from tidewire_server.job_log.limited_state import LimitedState

NO_ROLLBACK: Final = (
    "this endpoint declares that it never retracts text; to add to a text, yield Append(piece) or the whole text so far; "
    "to allow retractions, pass capabilities={'rollback': True} to @server.endpoint"
)


class TextGuard:
    """Decides whether changes may retract text of one item, and records which prefixes are stable.

    Attributes:
        columns: Paths of the item's columns.
        stable: Lengths of the stable prefixes, by the path of the text within the value.
    """

    __slots__ = ("_index", "_rollback", "_state", "columns", "stable")

    def __init__(self, state: LimitedState, index: int, *, rollback: bool) -> None:
        self._state = state
        self._index = index
        self._rollback = rollback
        self.columns: Sequence[str] = ()
        self.stable: dict[str, int] = {}

    def check_ops(self, ops: Sequence[Op]) -> None:
        """Call `check` for each op. Raise its error if an op would retract text."""
        for op in ops:
            if op[0] == "t" or op[0] == "s":
                self.check(str(op[1]), op[2] if op[0] == "s" else None)

    def check(self, path: str, value: Any = None) -> None:
        """Raise an error if a change would retract text of a column, although the endpoint does not declare `rollback`.

        Args:
            path: Path of the changed value.
            value: The value that is set. None if the change is a truncation.

        Raises:
            ValueError: The change would retract text.
        """
        if self._rollback:
            return
        for column in self.columns:
            if (column == path or column.startswith(f"{path}/")) and self._state.is_text(column):
                old, new = self._state.value(column), _at(value, column[len(path) :])
                if old and not (isinstance(new, str) and new.startswith(str(old))):
                    raise ValueError(NO_ROLLBACK)

    def stable_length(self, path: str, n_first: int | None) -> int:
        """Return the number of code points of a text that a function declares as stable.

        Args:
            path: Path of the text.
            n_first: The argument of `Stream.stable`. None means the whole text.

        Raises:
            ValueError: The value at this path is not a text, or it has fewer code points.
        """
        try:
            length = self._state.text_length(path)
        except LookupError as error:
            raise ValueError(f"only a text can be stable: {error}") from None
        n = length if n_first is None else n_first
        if type(n) is not int or not 0 <= n <= length:
            raise ValueError(f"{n!r} code points of {length} cannot be stable")
        return n

    def stable_ops(self, pointer: str, n_first: int) -> list[Op]:
        """Return the op that declares a prefix as stable, or an empty list if the declared prefix is already as long. The
        caller must update `stable` when it writes the op.
        """
        if n_first <= self.stable.get(pointer, -1):
            return []
        place = f"/items/{self._index}/stable"
        return [
            ["s", f"{place}/{escape(pointer)}", n_first] if self.stable else ["s", place, {pointer: n_first}]
        ]


def _at(value: Any, pointer: str) -> Any:
    """Return the member of a value at a JSON Pointer, or None if there is no such member."""
    for token in parse(pointer):
        value = value.get(token) if isinstance(value, dict) else None
    return value
