"""What a diff does to a job's state as a state: which of its parts it touches, and whether it leaves it whole.

The models of a state stand in `messages`; the ops of a diff, whatever value they change, in `document`.
"""

from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from tidewire.protocol import messages
from tidewire.protocol.document import Document
from tidewire.protocol.document.apply_ops import ARRAYS
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, materialize
from tidewire.protocol.messages import ENDED, BatchPlace, MessageError, Note
from tidewire.protocol.problems import Problem


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

    What lies below an item's value is its endpoint's own: it is never looked at. Of the common ops only what they bring
    is judged, so that neither a long job nor one of many items makes them cost more.

    Raises:
        MessageError: Says what the state lacks.
    """
    if not all(_keeps_shape(op) for op in _ops(diff)):
        state = messages.check_state(_without_values(document), what="the state after a diff")
        if state.status in ENDED:
            raise MessageError("a diff ends the job: only done may")


def _keeps_shape(op: Any) -> bool:
    """Whether an op that was applied cannot have harmed the state: the common ones, told without reading the state."""
    if op[0] == "r":
        return True
    letter, path, *given = op
    _, *tokens = path.split("/", 4)
    match tokens:
        case ["items", _, "value", *_] | ["usage", _, *_]:
            return True
        case ["items", _, "stable", _]:
            # What is promised there was judged when the diff was applied: see `stable_prefix`.
            return bool(letter == "s")
        case ["notes"]:
            return letter == "a" and all(_is(Note, note) for note in given[0])
    if letter != "s":
        return False
    match tokens:
        case ["status"]:
            return given[0] in ("queued", "running")
        case ["items", _, "status"]:
            return str(given[0]) in messages.ITEM_STATUSES
        case ["items", _, "stable"]:
            return type(given[0]) is dict
        case ["items", _, "error"]:
            return _is(Problem, given[0])
        case ["items", _, "batch"]:
            return _is(BatchPlace, given[0])
    return False


def _is(model: type[BaseModel], value: Any) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


def _without_values(document: Document) -> JsonValue:
    """The state but for the values of its items, which may be anything and of any size."""
    view = document.view()
    root, items = view.node(()), view.node(("items",))
    if type(root) is not dict or type(items) not in ARRAYS:
        return document.value()
    state = {name: materialize(member, LATEST) for name, member in root.items() if name != "items"}
    state["items"] = [
        {name: materialize(member, LATEST) for name, member in item.items() if name != "value"}
        if type(item) is dict
        else None
        for item in (items if type(items) is list else items.items_at(LATEST))
    ]
    return state
