"""The members of a submit's body: inputs as JSON, and options under the wire's names."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError

from tidewire.errors import InvalidInputError
from tidewire.options import Options
from tidewire.protocol import strict_json
from tidewire.protocol.jsonable import converted, rows_of
from tidewire.types import UNSET


def one_input(whole: Any, members: Mapping[str, Any]) -> JsonValue:
    """The input that was given as one value or by its members."""
    if whole is UNSET:
        return jsonable(dict(members), "/input")
    if members:
        raise TypeError("give the input as one value or by its members, not both")
    return jsonable(whole, "/input")


def shared_members(shared: Mapping[str, Any] | None, members: Mapping[str, Any]) -> dict[str, Any]:
    """The members that all inputs share: those of `shared=` and those passed by keyword.

    Raises:
        TypeError: `shared` is not a mapping, or a member is in both.
    """
    if shared is None:
        return dict(members)
    if not isinstance(shared, Mapping):
        raise TypeError(f"shared is a mapping from names of members to values, not {shared!r:.80}")
    if twice := [name for name in members if name in shared]:
        raise TypeError(f"passed both in shared and by keyword: {', '.join(twice)}")
    return {**shared, **members}


def many_inputs(given: Any) -> Iterable[Any]:
    """Inputs that were given as many.

    Raises:
        TypeError: They are one value: its characters or its members are hardly what was meant.
    """
    kind = type(given)
    # What has items alone can be looped over, too: many a data set is of that kind.
    many = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    if isinstance(given, str | bytes | bytearray | Mapping) or not many:
        raise TypeError(f"inputs are a list, or another iterable, of values, not {kind.__name__}")
    inputs: Iterable[Any] = given
    return inputs


def jsonable(value: Any, pointer: str) -> JsonValue:
    """A value as JSON: what pydantic can write is given as its JSON form.

    Raises:
        InvalidInputError: It cannot be written.
    """
    try:
        plain: JsonValue = converted(_ANYTHING, value)
    except (PydanticSerializationError, ValueError) as error:
        advice = "Give what JSON has words for: of an array, its tolist(); of bytes, a text (base64, say)."
        raise InvalidInputError(
            f"the input at {pointer!r} cannot be written as JSON: {error}", advice=advice
        ) from None
    return plain


_ANYTHING: Final = rows_of(Any)


def encoded(value: JsonValue) -> bytes:
    """A value as JSON text.

    Raises:
        InvalidInputError: It is not JSON as the protocol takes it.
    """
    try:
        return strict_json.dumps(value).encode()
    except strict_json.StrictJsonError as error:
        raise InvalidInputError(f"the input is not JSON as the protocol takes it: {error}") from None


def options_on_the_wire(options: Options) -> dict[str, Any]:
    """The members of a submit that are not its inputs."""
    body: dict[str, Any] = {}
    if options.on_disconnect != "continue":
        body["on_disconnect"] = options.on_disconnect
    if options.grace is not None:
        body["grace_ms"] = round(options.grace * 1000)
    if options.deadline is not None:
        body["deadline_ms"] = max(1, round(options.deadline * 1000))
    return body
