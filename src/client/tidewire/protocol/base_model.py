"""What the models of events and bodies have in common.

- Members that a reader does not know are ignored, so that a minor version can add some.
- An integer is written as one, and a boolean is true or false: `"3"`, `true` and `3.0` are no integers.
- A member that may be left out may be null as well, which says the same.
"""

from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import VERSION, BaseModel, ConfigDict, Field, model_validator

# Strict member by member: a model that is strict as a whole takes no JSON object for a model inside it.
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]


DEFERRED: Final = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)
"""Whether a model's validator is built when it is first used: to build all of them takes a twentieth of the CPU up to the
first response (`bench/start.py`). Before 2.14, pydantic let two threads build a model at once, and one of them could then
validate as the base class."""


class WireModel(BaseModel):
    """A JSON object of the protocol."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", defer_build=DEFERRED)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absence(cls, given: Any) -> Any:
        if type(given) is not dict or None not in given.values():
            return given
        optional = _optional(cls)
        return {name: value for name, value in given.items() if value is not None or name not in optional}


@cache
def _optional(model: type[BaseModel]) -> frozenset[str]:
    """The members of a model that may be left out, as JSON names them."""
    members = model.model_fields.items()
    return frozenset(field.alias or name for name, field in members if not field.is_required())
