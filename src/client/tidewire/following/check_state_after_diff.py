"""Check that a job's state is still valid after a diff, and determine whether the diff changed an item's value.

The check is necessary because the package `document` applies diffs to any JSON value, and does not know which members a
valid state has. The module `messages` defines these members.
"""

from typing import Any

from tidewire.protocol import messages
from tidewire.protocol.document import Document
from tidewire.protocol.document.apply_ops import ARRAYS
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, materialize
from tidewire.protocol.messages import ENDED, BatchPlace, Note
from tidewire.protocol.problems import Problem
from tidewire.protocol.strict_json import JsonValue
from tidewire.protocol.wire_model import MessageError, WireModel


def _ops(diff: JsonValue) -> Any:
    """Return the ops of an applied diff. A diff that is only a string has no ops, because it only appends to a text."""
    if type(diff) is str:
        return ()
    return diff["ops"] if type(diff) is dict else diff


def changes_value(diff: JsonValue) -> bool:
    """Whether an applied diff changed the value of an item."""
    if type(diff) is str:
        return True
    for op in _ops(diff):  # noqa: SIM110 - `any` with a generator takes twice as long
        if op[0] == "r" or _touches_value(op[1]):
            return True
    return False


def _touches_value(path: str) -> bool:
    """Whether a path refers to an item's value, to a part of the value, or to an object or array that contains the value."""
    tokens = path.split("/", 4)
    return (len(tokens) < 4 and tokens[1:2] in ([], ["items"])) or tokens[3:4] == ["value"]


def check_shape(document: Document, diff: JsonValue) -> None:
    """Check that an applied diff left the job's state valid, and did not set a final status, which only `done` may set.

    The values of items are not checked, because the endpoint defines them. For the most common ops, only the value in the op
    is checked, so that the cost does not depend on the length of the job or the number of its items.

    Raises:
        MessageError: The state is invalid. The message names the invalid member.
    """
    for op in _ops(diff):
        if not _keeps_shape(op):
            state = messages.check_state(_without_values(document), what="the state after a diff")
            if state.status in ENDED:
                raise MessageError("a diff sets a final job status, which only a done event may do")
            return


def _keeps_shape(op: Any) -> bool:
    """Whether a valid state certainly stays valid after this op, so that it need not be checked again.

    This is true for the most common kinds of ops.
    """
    if op[0] == "r":
        return True
    letter, path, *arguments = op
    _, *tokens = path.split("/", 4)
    match tokens:
        case ["items", _, "value", *_] | ["usage", _, *_]:
            return True
        case ["items", _, "stable", _]:
            # When the diff was applied, `check_stable_prefix` has already validated this number.
            return bool(letter == "s")
        case ["notes"]:
            return letter == "a" and all(_is(Note, note) for note in arguments[0])
    if letter != "s":
        return False
    match tokens:
        case ["status"]:
            return arguments[0] in ("queued", "running")
        case ["items", _, "status"]:
            return str(arguments[0]) in messages.ITEM_STATUSES
        case ["items", _, "stable"]:
            return type(arguments[0]) is dict
        case ["items", _, "error"]:
            return _is(Problem, arguments[0])
        case ["items", _, "batch"]:
            return _is(BatchPlace, arguments[0])
    return False


def _is(model: type[WireModel], value: Any) -> bool:
    try:
        model.model_validate(value)
    except MessageError:
        return False
    return True


def _without_values(document: Document) -> JsonValue:
    """Return a copy of the state without the values of its items, because these can be large and are not validated."""
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
