"""Base class and field types of the pydantic models for events and HTTP bodies.

- Models ignore unknown members, so that a minor version of the protocol can add members.
- Numbers and booleans are strict: `"3"`, `true` and `3.0` are not valid integers.
- An optional member may be null, which means the same as omitting it.
"""

from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import VERSION, BaseModel, ConfigDict, Field, model_validator

# Set strictness for each field, because a model with `strict=True` would reject JSON objects as the values of nested
# models.
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]


DEFERRED: Final = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)
"""Whether pydantic builds a model's validator on first use. Building all of them at import takes a twentieth of the CPU
time up to the first response (`bench/start.py`). Before pydantic 2.14, two threads could build the same model at once,
and one of the threads could then validate with the validator of the base class."""


class WireModel(BaseModel):
    """Base class for the JSON objects of the protocol. Models are immutable and ignore unknown members, and a member
    that is null counts as absent.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERRED)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, members: Any) -> Any:
        if type(members) is not dict or None not in members.values():
            return members
        optional = _optional(cls)
        return {name: value for name, value in members.items() if value is not None or name not in optional}


@cache
def _optional(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of a model's optional members, as they appear in JSON."""
    members = model.model_fields.items()
    return frozenset(field.alias or name for name, field in members if not field.is_required())
