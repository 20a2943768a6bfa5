"""Conversion of inputs, values and exceptions for the way between the server and an actor."""

import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from tidewire_server.endpoints.batch_signature import BatchShapes
from tidewire_server.endpoints.invocation import exit_replacement
from tidewire_server.endpoints.yieldables import UNSET, Append, Last


def dump_inputs(values: Sequence[Any]) -> list[Any]:
    """Convert inputs to objects that can be pickled. The class of a model that is a whole input is created at run time, so
    another process cannot import it.
    """
    return [value.__getstate__() if isinstance(value, BaseModel) else value for value in values]


def load_inputs(dumped: Sequence[Any], shapes: BatchShapes) -> list[Any]:
    """Restore the inputs of an endpoint."""
    if shapes.input.whole is None:
        return list(dumped)
    values = [shapes.input.model.__new__(shapes.input.model) for _ in dumped]
    for value, state in zip(values, dumped, strict=True):
        value.__setstate__(state)
    return values


def dump_result(value: Any, to_json: Callable[[Any], Any]) -> Any:
    """Convert the result of a row to JSON, so that the server needs neither its class nor the GPU of its tensors."""
    match value:
        case BaseException():
            return dump_error(value)
        case Append():
            return Append(value.x if isinstance(value.x, str) else to_json(value.x), value.at)
        case Last():
            return value if value.value is UNSET else Last(dump_result(value.value, to_json))
    return to_json(value)


def load_result(value: Any) -> Any:
    """Restore the result of a row, which may be an exception."""
    return load_error(value) if isinstance(value, DumpedError) else value


class DumpedError(NamedTuple):
    """An exception of user code. It can be pickled, even if the exception cannot."""

    pickled: bytes
    """The exception. Empty if it cannot be pickled and restored."""
    summary: str
    """Type and message."""
    traceback: str


class RemoteTracebackError(Exception):
    """Traceback of an exception in an actor. It is the cause of the exception, so that the server's log contains it."""


def dump_error(error: BaseException) -> DumpedError:
    """Convert an exception to an object that can be pickled."""
    from ray import cloudpickle  # noqa: PLC0415 - pickles also classes that the server has sent by value

    text = "".join(traceback.format_exception(error)).rstrip()
    if not isinstance(error, Exception):
        error = exit_replacement(error)
    try:
        pickled: bytes = cloudpickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - the exception of this process
    except Exception:  # noqa: BLE001 - the methods of an exception can raise any error
        pickled = b""
    return DumpedError(pickled, f"{type(error).__name__}: {error}", text)


def load_error(dumped: DumpedError) -> Exception:
    """Restore an exception, with the actor's traceback as its cause. If this process cannot import the class, a RuntimeError
    contains its name and the message.
    """
    try:
        error: Exception = pickle.loads(dumped.pickled)  # noqa: S301 - from an actor, which runs the server's own code
    except Exception:  # noqa: BLE001 - see `dump_error`
        error = RuntimeError(dumped.summary)
    error.__cause__ = RemoteTracebackError(f"\n{dumped.traceback}")
    return error
