"""Converts values of jobs to the type that the caller passes as `returns`."""

import json
from typing import TYPE_CHECKING, Any, Generic, Union

from tidewire.errors import NOWHERE, InvalidValueError, Where
from tidewire.protocol.strict_json import JsonValue

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from typing_extensions import TypeVar

    # With this default, a call without `returns` has values of the type Any.
    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")  # Python 3.11 and 3.12 have no defaults of type variables

Returns = Union[type[T], "TypeAdapter[T]"]
"""Type of the argument `returns`. It is a class, or a pydantic TypeAdapter for other types such as unions."""


class ResultType(Generic[T]):
    """Validator for the values of a job, created from the argument `returns`.

    Without this argument, all JSON values are valid.
    """

    def __init__(self, returns: Any = None) -> None:
        self._adapter: TypeAdapter[T] | None = None if returns is None else _adapter_of(returns)
        # Use `__name__` only for plain classes, because `list[int].__name__` is "list".
        self._name = returns.__name__ if isinstance(returns, type) else repr(returns)

    def validate(self, value: JsonValue, *, where: Where = NOWHERE, running: bool = False) -> T:
        """Validate a JSON value with pydantic, which also converts it to the type.

        For example, strings are converted to dates.

        Args:
            value: The value to validate.
            where: The job and the event to which the value belongs, for the error message.
            running: Whether the job is still running. The error message then says that the value may be incomplete.

        Raises:
            InvalidValueError: The value does not match the type.
        """
        if self._adapter is None:
            return value  # type: ignore[return-value]
        # Import these late, because importing pydantic is slow.
        from pydantic import ValidationError  # noqa: PLC0415
        from pydantic_core import to_json  # noqa: PLC0415

        # To save memory, delete the value after it was serialized, and avoid a further copy of a text.
        written = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else to_json(value)
        del value
        try:
            return self._adapter.validate_json(written)
        except ValidationError as error:
            from tidewire.protocol.jsonable import describe  # noqa: PLC0415

            what = f"the value is not a valid {self._name}: {describe(error)}"
            if running:
                what = f"at this point {what}"
                advice = "The job is still running, so its value may be incomplete. Use update.value, or wait for result()."
            else:
                advice = "Pass a `returns` type that matches the endpoint's schema: client.describe(name).value_schema."
            raise InvalidValueError(what, where=where, advice=advice) from error


def _adapter_of(returns: Any) -> "TypeAdapter[Any]":
    # Import pydantic late, so that a program without `returns` does not have to wait for this slow import.
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter  # noqa: PLC0415

    if isinstance(returns, TypeAdapter):
        return returns
    if isinstance(returns, str):
        raise TypeError(f"returns must be a type, not the name of a type: {returns!r}")
    try:
        return TypeAdapter(returns)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        what = f"returns must be a type that pydantic can validate, or a TypeAdapter, not {returns!r}"
        raise TypeError(f"{what}: {str(error).partition(chr(10))[0]}") from error
