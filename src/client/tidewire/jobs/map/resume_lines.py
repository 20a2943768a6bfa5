"""Format of a resume file. It is JSON Lines in UTF-8, and the client only appends lines.

  line                                                          | appended
  --------------------------------------------------------------+-------------------------------------------------------
  {"tidewire_map":1,"key":K,"endpoint":E}                       | first, before any request that submits a job
  {"line":"submit","number":N,"inputs":[[0,255]],"sha256":[S…]} | before the request that submits a job
  {"line":"job","id":J,"inputs":[[0,255]]}                      | after the response to this request
  {"line":"value","index":I,"sha256":S,"value":V}               | when an outcome arrives, before it is yielded; outcomes
  {"line":"failure","index":I,"sha256":S,"error":{…}}           |   are in the order of their arrival

- `inputs` contains ranges of indices, first and last. A job's items have the order of these indices.
- S identifies an input, together with its index: it is the SHA-256 of the canonical JSON (RFC 8785) of the endpoint's
  name, followed by the canonical JSON of the input with its shared members. Equal inputs at two indices are two inputs.
- The idempotency key of a submit is derived from K, N and the request's body. If the process is killed between the
  lines `submit` and `job`, the next run sends the same request again, and the server returns the job that it has
  perhaps started. Each further submit has another N, and therefore another key.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from tidewire.errors import InvalidInputError, ItemFailedError, RequestError, Where, class_of
from tidewire.protocol.document.digests import canonical
from tidewire.protocol.problems import Problem, to_json
from tidewire.protocol.strict_json import JsonValue

VERSION: Final = 1
"""Version of the format, in the first line."""

HEADER_START: Final = b'{"tidewire_map":'
"""Bytes with which the first line begins."""

Index = Annotated[int, msgspec.Meta(ge=0)]


class Header(msgspec.Struct, frozen=True):
    """The first line."""

    tidewire_map: int
    key: str
    endpoint: str


class SubmitLine(msgspec.Struct, frozen=True, tag_field="line", tag="submit"):
    """Line that is written before a request that submits a job."""

    number: Index
    inputs: list[tuple[Index, Index]]
    sha256: list[str]


class JobLine(msgspec.Struct, frozen=True, tag_field="line", tag="job"):
    """Line that is written after the response to a submit."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    inputs: list[tuple[Index, Index]]


class ValueLine(msgspec.Struct, frozen=True, tag_field="line", tag="value"):
    """Value of an input."""

    index: Index
    sha256: str
    value: msgspec.Raw


class ErrorMembers(msgspec.Struct, frozen=True, omit_defaults=True):
    """Members of an `ItemFailedError`, from which `item_error` creates the error again."""

    what: str
    advice: str = ""
    status: str = "failed"
    problem: dict[str, Any] | None = None
    where: dict[str, Any] = {}
    value: Any = None
    refused: bool = False
    """Whether the server refused the input, so that the cause of the error is a RequestError."""


class FailureLine(msgspec.Struct, frozen=True, tag_field="line", tag="failure"):
    """Error of an input."""

    index: Index
    sha256: str
    error: ErrorMembers


Line = SubmitLine | JobLine | ValueLine | FailureLine

read_line: Final = msgspec.json.Decoder(Line).decode
parse_header: Final = msgspec.json.Decoder(Header).decode
encode: Final = msgspec.json.Encoder().encode


def input_digest(endpoint: str, merged: JsonValue) -> str:
    """Return the SHA-256 that identifies an input, as described at the top of this module.

    Args:
        endpoint: The endpoint's name.
        merged: The input with its shared members.
    """
    found = sha256(canonical(endpoint))
    found.update(canonical(merged))
    return found.hexdigest()


def ranges_of(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Convert indices to ranges of consecutive indices."""
    found: list[tuple[int, int]] = []
    for index in indices:
        if found and index == found[-1][1] + 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return found


def indices_of(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Convert ranges to indices."""
    return chain.from_iterable(range(first, last + 1) for first, last in ranges)


def error_members(error: ItemFailedError) -> ErrorMembers:
    """Return the members of an error, from which `item_error` creates it again."""
    refused = error.__cause__ if isinstance(error.__cause__, RequestError) else None
    return ErrorMembers(
        what=error.what,
        advice=error.advice if refused is None else refused.advice,
        status=error.status,
        problem=None if error.problem is None else to_json(error.problem),
        where={name: value for name, value in error.where._asdict().items() if value is not None},
        value=error.value,
        refused=refused is not None,
    )


def item_error(index: int, members: ErrorMembers) -> ItemFailedError:
    """Create the error of an input from its members in the file."""
    problem = None if members.problem is None else Problem.model_validate(members.problem)
    details: dict[str, Any] = {"where": Where(**members.where), "problem": problem}
    kind = InvalidInputError if problem is None else class_of(problem.status, problem.code)
    refused = kind(members.what, advice=members.advice, **details) if members.refused else None
    failed = ItemFailedError(members.what, advice="" if refused else members.advice, **details)
    failed.index, failed.status, failed.value = index, members.status, members.value
    failed.__cause__ = refused
    return failed
