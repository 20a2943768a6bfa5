"""What the models of events and bodies have in common.

- Members that a reader does not know are ignored, so that a minor version can add some.
- An integer is written as one, and a boolean is true or false: `"3"`, `true` and `3.0` are no integers.
- A member that may be left out may be null as well, which says the same.
"""

import os
import threading
from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Strict member by member: a model that is strict as a whole takes no JSON object for a model inside it.
Count = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]


_BUILDING: Final = threading.RLock()
# A process that forks while a thread builds a model would leave its copy with a lock that nobody releases.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_BUILDING.acquire, after_in_parent=_BUILDING.release, after_in_child=_BUILDING.release
    )


class WireModel(BaseModel):
    """A JSON object of the protocol.

    The validator of a model is built when it is first used: to build all of them takes a tenth of the time in which a
    fresh process gets its first response.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:  # type: ignore[override]
        """Build the validator, one thread at a time.

        pydantic before 2.13 lets two threads build a model at once; then one of them may validate as the base class.
        """
        with _BUILDING:
            return super().model_rebuild(**options)

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
