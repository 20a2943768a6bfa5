"""What a diff does to a job's state as a state: which of its parts it touches, and whether it leaves it whole.

The models of a state stand in `messages`; the ops of a diff, whatever value they change, in `ops` and `fold`.
"""

from typing import Any

from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.document import Document
from tidewire.protocol.messages import ENDED, MessageError


def _ops(diff: JsonValue) -> Any:
    """The ops of a diff that was applied; a bare string has none that could touch more than a text."""
    if type(diff) is str:
        return ()
    return diff["ops"] if type(diff) is dict else diff


def changes_value(diff: JsonValue) -> bool:
    """Whether a diff that was applied touched an item's value."""
    return type(diff) is str or any(op[0] == "r" or _below_value(op[1]) for op in _ops(diff))


def _below_value(path: str) -> bool:
    """Whether a path is at, above or below an item's value."""
    tokens = path.split("/", 4)
    return (len(tokens) < 4 and tokens[1:2] in ([], ["items"])) or tokens[3:4] == ["value"]


def check_shape(document: Document, diff: JsonValue) -> None:
    """Refuse what a diff has made of the state where that is no state any more, or an end that only `done` may set.

    What lies below an item's value is its endpoint's own, so the diffs of a growing value cost nothing here.

    Raises:
        MessageError: Says what the state lacks.
    """
    if not all(_keeps_shape(op) for op in _ops(diff)):
        state = messages.check_state(document.value(), what="the state after a diff")
        if state.status in ENDED:
            raise MessageError("a diff ends the job: only done may")


def _keeps_shape(op: Any) -> bool:
    """Whether an op that was applied cannot have harmed the state: the common ones, told without reading the state."""
    if op[0] == "r":
        return True
    _, *tokens = op[1].split("/", 4)
    if tokens[:1] == ["items"] and tokens[2:3] == ["value"]:
        return True
    if op[0] != "s":
        return False
    if tokens == ["status"]:
        return op[2] in ("queued", "running")
    return len(tokens) == 3 and tokens[::2] == ["items", "status"] and str(op[2]) in messages.ITEM_STATUSES
