"""Differences between the successive values that a generator yields (`YieldedValue`)."""

from collections.abc import Callable
from typing import Any

from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.diff import Op
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH
from tidewire_server.endpoints.value_errors import said_of_value
from tidewire_server.errors import InvalidValueError
from tidewire_server.job_log.value_differ import NotPlainError, ShadowCopy


class YieldedValue:
    """Computes the ops that change each yielded value of a function to the next one."""

    __slots__ = ("_converts", "_current", "_place", "_shadow", "_to_json")

    def __init__(self, place: str, current: Callable[[], JsonValue], to_json: Callable[[Any], Any]) -> None:
        """Create the object for one item, before the function yields its first value.

        Args:
            place: Path of the value in the state.
            current: Function that returns a copy of the value in the state.
            to_json: Function that converts a value to plain JSON types.
        """
        self._place = place
        self._current = current
        self._to_json = to_json
        self._shadow: ShadowCopy | None = None
        """A copy of the value that was yielded last. None if the value was changed since then, for example by an `Append`."""
        self._converts = False
        """Whether a yielded value contained a type that must be converted to JSON. Later values are then converted too."""

    def forget(self) -> None:
        """Drop the copy of the last yielded value, because the value is changed without a yield. The next yielded value is then
        compared with the value in the state.
        """
        self._shadow = None

    def ops(self, value: Any) -> list[Op]:
        """Compare a yielded value with the value before it, and return the ops for the differences.

        Raises:
            ValueError: The value is not JSON. Pass the error to `invalid`.
        """
        shadow = self._shadow or self._new_shadow()
        if not self._converts:
            try:
                return shadow.step(value)
            except NotPlainError:
                self._converts, shadow = True, self._new_shadow()
        return shadow.step(self._to_json(value))

    def invalid(self, value: Any, error: ValueError) -> InvalidValueError:
        """Create the error for a value that `ops` or the document rejected. Paths in the message are relative to the value, not
        to the state.
        """
        self.forget()
        if isinstance(error, InvalidValueError):
            return error
        # The error contains the path of an op, which may not exist in the value. Check the value itself to find the path of
        # its invalid part.
        try:
            strict_json.check(self._to_json(value), max_depth=MAX_VALUE_DEPTH)
        except ValueError as found:
            error = found
        return InvalidValueError(said_of_value(error, self._place))

    def _new_shadow(self) -> ShadowCopy:
        self._shadow = shadow = ShadowCopy(self._current(), self._place)
        return shadow
