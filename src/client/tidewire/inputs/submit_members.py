"""Builds the JSON body of a request that submits a job, from the caller's inputs and options."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal

from tidewire.errors import InvalidInputError
from tidewire.options import Options
from tidewire.protocol import strict_json
from tidewire.protocol.strict_json import JsonValue


class Unset(Enum):
    """Type of the sentinel `UNSET`, which marks an argument that was not passed."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Literal[Unset.UNSET]] = Unset.UNSET
"""Sentinel for an argument that was not passed. None cannot serve as the sentinel, because None is a valid JSON
value."""


def one_input(whole: Any, members: Mapping[str, Any]) -> JsonValue:
    """Return the input of a job as JSON. The caller passes either the whole input as one value, or the members of the
    input as keyword arguments.

    Raises:
        TypeError: The caller passed both a whole value and keyword arguments.
    """
    if whole is UNSET:
        return jsonable(dict(members), "/input")
    if members:
        raise TypeError("pass the input as one value or as keyword arguments, not both")
    return jsonable(whole, "/input")


def many_members(inputs: Iterable[Any], shared: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the members `inputs` and `shared` of a request that submits many inputs.

    Raises:
        InvalidInputError: There are no inputs, or one of the values is not valid JSON.
    """
    found: list[JsonValue] = [jsonable(one, f"/inputs/{at}") for at, one in enumerate(many_inputs(inputs))]
    if not found:
        raise InvalidInputError("the batch has no inputs", advice="Pass at least one input.")
    return {"inputs": found} | ({"shared": jsonable(shared, "/shared")} if shared else {})


def shared_members(shared: Mapping[str, Any] | None, members: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the members that all inputs share. The caller may pass them in the argument `shared` and as keyword
    arguments.

    Raises:
        TypeError: `shared` is not a mapping, or a member is both in `shared` and among the keyword arguments.
    """
    if shared is None:
        return dict(members)
    if not isinstance(shared, Mapping):
        raise TypeError(f"shared must be a mapping from member names to values, not {shared!r:.80}")
    if twice := [name for name in members if name in shared]:
        raise TypeError(f"members passed both in shared and by keyword: {', '.join(twice)}")
    return {**shared, **members}


def many_inputs(argument: Any) -> Iterable[Any]:
    """Check that an `inputs` argument is an iterable of inputs.

    Raises:
        TypeError: The argument is a single value. Strings and mappings also count as single values, because iterating
            over their characters or keys is hardly what the caller intended.
    """
    kind = type(argument)
    # Use `iter` instead of a check for `__iter__`, because `iter` also accepts the many data set classes that define
    # only `__getitem__`.
    many = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    if isinstance(argument, str | bytes | bytearray | Mapping) or not many:
        raise TypeError(f"inputs must be a list or another iterable of inputs, not {kind.__name__}")
    inputs: Iterable[Any] = argument
    return inputs


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_OTHER: Final = object()


def jsonable(value: Any, pointer: str) -> JsonValue:
    """Convert a value to plain JSON with pydantic's serialization rules, and return the result, which shares no
    containers with the value.

    Args:
        value: The value.
        pointer: JSON Pointer of the value in the request body, for the error message.

    Raises:
        InvalidInputError: The value cannot be serialized.
        TypeError: The value contains an object that pydantic would convert to something else without an error, such as
            an open file or bytes.
    """
    copied: Any = _copied(value, _PLAIN_DEPTH)
    if copied is not _OTHER:
        return copied  # type: ignore[no-any-return]
    # Import pydantic late, so that a program with plain inputs does not have to wait for this slow import.
    from tidewire.inputs.input_conversion import convert_input  # noqa: PLC0415

    return convert_input(value, pointer)


_PLAIN_DEPTH: Final = 8
"""Depth of nesting up to which `_copied` copies values. Deeper values are left to pydantic, which also detects values that
contain themselves."""


def _copied(value: Any, depth_left: int) -> Any:
    """Return a copy of a value that consists of dicts with string keys, lists and scalars. Return `_OTHER` for any other value,
    and for instances of subclasses.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if not depth_left:
        return _OTHER
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return _OTHER
        if _SCALARS.issuperset(map(type, value.values())):
            return dict(value)
        members = {name: _copied(member, depth_left - 1) for name, member in value.items()}
        return _OTHER if any(member is _OTHER for member in members.values()) else members
    if kind is list:
        if _SCALARS.issuperset(map(type, value)):
            return [*value]
        elements = [_copied(element, depth_left - 1) for element in value]
        return _OTHER if any(element is _OTHER for element in elements) else elements
    return _OTHER


_TEXT: Final = frozenset({str})


def encoded(value: JsonValue) -> bytes:
    """Serialize a value as JSON text, encoded in UTF-8.

    Raises:
        InvalidInputError: The value violates a rule of the protocol for JSON, such as the limits for numbers or for the
            depth of nesting.
    """
    try:
        return strict_json.dumps(value).encode()
    except strict_json.StrictJsonError as error:
        raise InvalidInputError(f"the input is not valid JSON under the protocol's rules: {error}") from None


def options_on_the_wire(options: Options) -> dict[str, Any]:
    """Return the options that the body of a submit request contains, under their names in the protocol."""
    body: dict[str, Any] = {}
    if options.on_disconnect != "continue":
        body["on_disconnect"] = options.on_disconnect
    if options.grace is not None:
        body["grace_ms"] = round(options.grace * 1000)
    if options.deadline is not None:
        body["deadline_ms"] = max(1, round(options.deadline * 1000))
    return body
