"""Groups the inputs of a `map` into parts, each of which is submitted as one job, and builds the requests that submit
them. Also finds the input that an error response of the server refers to.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tidewire.errors import NOWHERE, InvalidInputError, ItemFailedError, RequestError, Where
from tidewire.inputs.submit_members import encoded, jsonable
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.map.resume_file import ReceivedValue, Submission
from tidewire.jobs.update_iterator import UpdateIterator
from tidewire.protocol.resources import EndpointDescription, Limits
from tidewire.protocol.strict_json import JsonValue, loads
from tidewire.result_type import ResultType

_BODY_OVERHEAD: Final = 1024
"""Number of bytes in a request body that are reserved for everything except the inputs."""
_OF_INPUT: Final = re.compile(r"/inputs/(\d+)\b(/[^\s:]*)?(: )?")
"""Pattern of a JSON Pointer to an input in the request, such as `/inputs/3/prompt`. In an error response of the server,
this is the member `pointer` or the start of the message.
"""


@dataclass(slots=True, eq=False)
class Part:
    """The inputs of one job. The number of an input is its index among all inputs of the `map`."""

    recorded: Submission | None = None
    """Submission in the resume file that this part continues. None for a new job."""
    pending: dict[int, str] = field(default_factory=dict)
    """Inputs without an outcome: number → digest. Without a resume file, the digests are empty."""
    inputs: dict[int, bytes] = field(default_factory=dict)
    """JSON of the inputs in `pending`, by number. The inputs of a job of an earlier run are added when they are
    consumed."""
    size: int = 0
    """Total size of the inputs in bytes."""
    submit: int | None = None
    """Number of the submit in the resume file, if the file contains it."""
    used_keys: int = 0
    """Number of idempotency keys that were used for these inputs before, and whose jobs the server no longer has."""
    losses: int = 0
    """Number of times in a row that the server no longer had the job of these inputs. An outcome resets the number."""

    def add(self, number: int, content: bytes, digest: str) -> None:
        self.inputs[number] = content
        self.pending[number] = digest
        self.size += len(content) + 1

    def remove(self, number: int) -> str:
        """Remove an input that has an outcome, or that need not run, and return its digest."""
        content = self.inputs.pop(number, None)
        if content is not None:
            self.size -= len(content) + 1
        return self.pending.pop(number)


@dataclass(slots=True, eq=False)
class RunningPart:
    """A submitted part with its job. `items` contains the numbers of the inputs in the order of the job's items."""

    part: Part
    job: AsyncBatchJob[Any]
    items: Sequence[int]
    reading: UpdateIterator[tuple[int, Any]]
    left_at: float | None = None
    """Time at which the client stopped reading the job, or None if it has not begun."""


class NotValidated(ResultType[ReceivedValue]):
    """Result type of all jobs of a `map`. It keeps the value as JSON, which the resume file needs. The map validates a
    value when it yields the value.
    """

    def validate(self, value: JsonValue, *, where: Where = NOWHERE, running: bool = False) -> ReceivedValue:
        return ReceivedValue(value, where)


class PartRequests:
    """Builds the requests that submit the parts of one `map`.

    Attributes:
        batch_size: Maximum number of inputs in one part. `limit` may lower it.
    """

    def __init__(self, shared: Mapping[str, Any], options: Mapping[str, Any], batch_size: int) -> None:
        """Create the request builder. `limit` adds the limits of the server later.

        Args:
            shared: Members that are added to every input that does not already have them.
            options: Members of every request in addition to the inputs.
            batch_size: Maximum number of inputs in one part.

        Raises:
            InvalidInputError: A shared member is not valid JSON.
        """
        self.batch_size: int = batch_size
        self._shared: Any = jsonable(shared, "/shared")
        self._shared_json = encoded(self._shared)
        self._options = options
        self._batches = True
        self._max_body = 0

    def limit(self, limits: Limits, description: EndpointDescription) -> None:
        """Apply the limits of the server and of the endpoint."""
        batch = description.capabilities.batch
        self._batches = batch is not None
        most = 1 if batch is None else min(limits.max_inputs, batch.max_items)
        self.batch_size = min(self.batch_size, most)
        self._max_body = limits.max_body_bytes - len(self._shared_json) - _BODY_OVERHEAD

    def is_full(self, part: Part) -> bool:
        """Whether a part has enough inputs for one request. `limit` must be called first."""
        return len(part.inputs) >= self.batch_size or part.size > self._max_body

    def allow_half_of(self, part: Part) -> None:
        """Limit all later parts to half of the size of a part that was too large."""
        self._max_body = part.size // 2

    def cut(self, part: Part) -> Part:
        """Move the first inputs of a part to a new part, as many as one request may have."""
        made = Part(used_keys=part.used_keys, losses=part.losses)
        for number, content in [*part.inputs.items()]:
            if made.inputs and (self.is_full(made) or made.size + len(content) + 1 > self._max_body):
                break
            made.add(number, content, part.remove(number))
        return made

    def merged(self, value: Any) -> Any:
        """Return an input with the shared members."""
        return {**self._shared, **value} if self._shared and isinstance(value, dict) else value

    def body(self, part: Part) -> bytes:
        """Return the request's body.

        Raises:
            InvalidInputError: The shared members cannot be added to the input.
        """
        if self._batches:
            members = {"inputs": [*map(msgspec.Raw, part.inputs.values())], **self._options}
            if self._shared:
                members["shared"] = msgspec.Raw(self._shared_json)
            return msgspec.json.encode(members)
        (content,) = part.inputs.values()
        if self._shared:
            value = loads(content)
            if not isinstance(value, dict):
                raise InvalidInputError("shared members require inputs that are JSON objects")
            content = encoded(self.merged(value))
        return msgspec.json.encode({"input": msgspec.Raw(content), **self._options})


def refused_input(number: int, error: Exception) -> ItemFailedError:
    """Create the error of an item whose input was refused, or cannot be converted to JSON."""
    if not isinstance(error, RequestError):
        why = str(error).removeprefix(f"inputs[{number}]").lstrip(".: ") or type(error).__name__
        failed = ItemFailedError(f"input {number} was refused: {why}")
        failed.index, failed.__cause__ = number, error
        return failed
    # The server's message contains the index of the input within its job, once for each fault of the input. Replace it
    # by the index among all inputs of the `map`.
    why = without_item_index(error.what)
    what = f"input {number} was refused: {why}"
    refused = type(error)(what, where=error.where, problem=error.problem, advice=error.advice)
    failed = ItemFailedError(what, where=error.where, problem=error.problem)
    failed.index = number
    failed.__cause__ = refused
    return failed


def refused_number(part: Part, error: RequestError) -> int | None:
    """Return the number of the input of a part that the server refused. None if the error does not name an input."""
    pointer = "" if error.problem is None else error.problem.pointer or ""
    place = _OF_INPUT.match(pointer)
    if place is not None and int(place[1]) < len(part.inputs):
        return [*part.inputs][int(place[1])]
    only = len(part.inputs) == 1 and not pointer.startswith("/shared")
    return next(iter(part.inputs)) if only and isinstance(error, InvalidInputError) else None


def is_too_large(error: RequestError) -> bool:
    """Whether the server, or a gateway in front of it, refused a request because of its size."""
    return error.status_code == 413 or error.code == "batch_too_large"


def without_item_index(text: str) -> str:
    """Replace the locations in a message of the server, such as `/inputs/3/prompt`, by locations within the input."""
    return _OF_INPUT.sub(_within_input, text)


def _within_input(place: re.Match[str]) -> str:
    """Convert a match of `_OF_INPUT` to a location within the input, without the index of the input in its job."""
    _, pointer, colon = place.groups()
    if colon:
        return f"{pointer}: " if pointer else ""
    return f"the input at {pointer}" if pointer else "the input"
