"""What functions write, as JSON's own Python types."""

from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from tidewire_server.errors import InvalidValueError

PLAIN: Final = frozenset({str, int, float, bool, type(None)})
"""Types that are JSON already, and cannot change."""


def plain(value: Any) -> Any:
    """JSON's own Python types of a value: models, dataclasses, tuples, dates, and arrays of numpy or torch.

    Raises:
        InvalidValueError: There is no JSON for it.
    """
    if type(value) in PLAIN:
        return value
    try:
        # NaN passes here as itself and is refused by the document, which says where it stands.
        return to_jsonable_python(value, inf_nan_mode="constants", fallback=_from_array)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidValueError(f"this is no JSON: {error}") from None


def _from_array(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise InvalidValueError(f"{type(value).__name__} has no JSON form")
