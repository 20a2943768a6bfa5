"""Error messages for inputs that do not match their schema. Paths in the messages are relative to the request's body."""

import difflib
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue, ValidationError
from pydantic_core import ErrorDetails

from tidewire.protocol.document.json_pointer import build
from tidewire.protocol.jsonable import message_of
from tidewire_server.errors import ProblemError, refuse

_MAX_FAULTS: Final = 1000
"""Number of validation errors above which the message contains only this number. pydantic creates an object for each error
that the server examines, and an input could have millions of errors."""

_MAX_SHOWN: Final = 3
"""Maximum number of errors that a message describes."""

_MAX_NAME: Final = 200
"""Maximum length of a member's name in an error message, in characters."""


def refused_input(
    error: ValidationError,
    value: JsonValue,
    pointer: str,
    known: Sequence[str],
    unsupported: Mapping[str, str],
) -> ProblemError:
    """Convert a validation error to an `invalid_input` problem.

    If an input has several errors, the message describes the most helpful ones, and contains the number of other errors.

    Args:
        error: The error that pydantic raised.
        value: The input, including the members that all inputs of the request share.
        pointer: JSON Pointer of the input in the request's body.
        known: Names of the members that the input may have.
        unsupported: Error messages for members that similar endpoints accept, but this endpoint does not.
    """
    if error.error_count() > _MAX_FAULTS:
        detail = f"{pointer}: the input has {error.error_count()} violations of the endpoint's schema"
        return refuse("invalid_input", detail, pointer=pointer)
    found = error.errors(include_url=False, include_context=False)
    # If a member's name is misspelled, pydantic reports an unknown and a missing member. Begin with the unknown member,
    # because its message shows the misspelled name.
    found.sort(key=lambda each: each["type"] != "extra_forbidden")
    shown = [_message(each, value, pointer, known, unsupported) for each in found[:_MAX_SHOWN]]
    where = shown[0][0]
    first, *others = dict.fromkeys(f"{place}: {text}" for place, text in shown)
    detail = first
    for other in others:
        detail += f"{'' if detail.endswith('?') else '.'} Also {other}"
    rest = f" (and {len(found) - len(shown)} more)" if len(found) > len(shown) else ""
    return refuse("invalid_input", f"{detail}{rest}", pointer=where)


def _message(
    error: ErrorDetails, value: JsonValue, pointer: str, known: Sequence[str], unsupported: Mapping[str, str]
) -> tuple[str, str]:
    """Return the JSON Pointer and the message of one error."""
    place, name = _locate(value, error["loc"])
    message = message_of(error)
    if not (place or isinstance(value, dict)) and known:
        message += f'; pass an object with the members of the input, such as {{"{known[0]}": …}}'
    if error["type"] == "missing":
        # Use the path of the containing object, because the missing member itself does not exist.
        place, message = place[:-1], f"the member {name!r} is missing"
    if error["type"] == "extra_forbidden":
        shown = str(name)[:_MAX_NAME]
        message = f"unknown member {shown!r}"
        if len(place) == 1 and name in unsupported:
            message = unsupported[str(name)]
        elif len(place) == 1:
            close = difflib.get_close_matches(shown, known, n=1)
            message += (
                f"; did you mean {close[0]!r}?" if close else f"; known members: {', '.join(known) or 'none'}"
            )
    # A member's name can be as long as the whole body. End the pointer before the first long name.
    where = pointer + build(tuple(itertools.takewhile(lambda token: len(str(token)) <= _MAX_NAME, place)))
    return where, message


def _locate(value: JsonValue, loc: tuple[int | str, ...]) -> tuple[list[int | str], int | str]:
    """Translate the location of a pydantic error to a path in the input. Return the path and the location's last element.

    A pydantic location also contains the names of union members, which this function skips.
    """
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
