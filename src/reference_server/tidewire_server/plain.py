"""What functions write, as JSON's own Python types.

A NaN passes here as itself and is refused by the document, which says where it stands. A model by itself would make
null of it; as an element of a list, which has a configuration, it does not.
"""

from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from tidewire_server.errors import InvalidValueError

PLAIN: Final = frozenset({str, int, float, bool, type(None)})
"""Types that are JSON already, and cannot change."""

_MAX_MODELS: Final = 256
"""Models whose serializers are kept."""


def plain(value: Any) -> Any:
    """JSON's own Python types of a value: models, dataclasses, tuples, dates, and arrays of numpy or torch.

    Raises:
        InvalidValueError: There is no JSON for it.
    """
    if type(value) in PLAIN:
        return value
    try:
        if isinstance(value, BaseModel):
            return _of_model(type(value)).dump_python([value], mode="json", by_alias=True, warnings=False)[0]
        if isinstance(value, list | tuple) and any(isinstance(element, BaseModel) for element in value):
            return [plain(element) for element in value]
        return to_jsonable_python(value, inf_nan_mode="constants", fallback=_from_array)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidValueError(f"this is no JSON: {error}") from None


def rows_of(given: Any) -> TypeAdapter[list[Any]]:
    """What makes JSON of a list of values of a type."""
    return TypeAdapter(list[given], config=ConfigDict(ser_json_inf_nan="constants"))


_of_model = lru_cache(_MAX_MODELS)(rows_of)


def _from_array(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise InvalidValueError(f"{type(value).__name__} has no JSON form")
