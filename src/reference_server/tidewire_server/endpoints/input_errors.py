"""What is wrong with an input that does not fit its schema, in the words of whoever sent it: in a few of them, however
much is wrong.
"""

import difflib
import itertools
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue, ValidationError

from tidewire.protocol.document.json_pointer import build
from tidewire_server.errors import ProblemError, refuse

_MAX_FAULTS: Final = 1000
"""Places of one input that do not fit which are looked at one by one: pydantic makes an object for each of millions."""

_MAX_NAME: Final = 200
"""Characters of a member's name that are told."""


def refused_input(
    error: ValidationError, value: JsonValue, pointer: str, known: Sequence[str]
) -> ProblemError:
    """What is wrong with an input, to be raised: the first place that does not fit, and how many more there are.

    Args:
        error: Of pydantic.
        value: The input as it came, shared members included.
        pointer: Where it stands in the request's body.
        known: The members that it may have.
    """
    if error.error_count() > _MAX_FAULTS:
        detail = f"{pointer}: {error.error_count()} places do not fit the endpoint's schema"
        return refuse("invalid_input", detail, pointer=pointer)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    # A misspelt member is missing under its name, too: how it was written tells more.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    place, name = _locate(value, first["loc"])
    message = first["msg"]
    if first["type"] == "missing":
        # What is wrong is the object that lacks the member.
        place, message = place[:-1], f"the member {name!r} is missing"
    if first["type"] == "extra_forbidden":
        shown = str(name)[:_MAX_NAME]
        message = f"there is no member {shown!r}"
        if len(place) == 1:
            close = difflib.get_close_matches(shown, known, n=1)
            message += (
                f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known) or 'none'}"
            )
    rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    # Of a name as long as the body may be the answer tells where it stands, and not all of it.
    where = pointer + build(tuple(itertools.takewhile(lambda token: len(str(token)) <= _MAX_NAME, place)))
    return refuse("invalid_input", f"{where}: {message}{rest}", pointer=where)


def _locate(value: JsonValue, loc: tuple[int | str, ...]) -> tuple[list[int | str], int | str]:
    """Follow an error's location into the input. A union's location names its branches too, which are no members."""
    place: list[int | str] = []
    for position, token in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(value, dict) and (token in value or last):
            place.append(token)
            value = value.get(str(token))
        elif isinstance(value, list) and isinstance(token, int) and (token < len(value) or last):
            place.append(token)
            value = value[token] if token < len(value) else None
    return place, place[-1] if place else ""
