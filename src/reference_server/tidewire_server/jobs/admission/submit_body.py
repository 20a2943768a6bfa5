"""Parse and validate the body of a request to submit a job, and the inputs in the body.

Parsing and validation run on the event loop, and their time depends on the number of JSON values more than on the number
of bytes. The values are therefore counted before the body is parsed.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from pydantic import BaseModel, JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.resources import SubmitBody
from tidewire.protocol.wire_model import MessageError, WireModel
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse

MAX_SHARED_BYTES: Final = 128 * 2**20
"""Maximum total size in bytes of all copies of the shared members. Each input of a job gets its own copy."""

_MAX_ADMIT_SECONDS: Final = 0.005
"""Time for which inputs are validated before other tasks of the event loop run."""

_NESTING_BYTES: Final = 2**16
"""Number of bytes whose nesting is checked if a body has too many values. Checking the whole body would take long."""

_NEVER_NULL: Final = frozenset({*SubmitBody.__struct_fields__} - {"input"})


class Submission(NamedTuple):
    """Parsed body of a request to submit a job. The inputs are not validated yet."""

    inputs: list[JsonValue]
    batch: bool
    shared: dict[str, JsonValue]
    grace: float | None
    """Requested number of seconds without a reader after which the job is cancelled, or None. See `grace_of_job`."""
    deadline: float | None
    """Number of seconds after which unfinished items fail, counted from the submission.

    None if there is no deadline.
    """
    size: int
    """Size of the body in bytes, with one copy of the shared members for each input."""

    def grace_of_job(self, min_grace: float) -> float | None:
        """Return the number of seconds without a reader after which the job is cancelled, or None if it is not cancelled
        [TW-JOB-085].

        Args:
            min_grace: The server's setting.
        """
        return None if self.grace is None else max(self.grace, min_grace)


def read_json(body: bytes, *, max_values: int) -> dict[str, JsonValue]:
    """Parse a request body that must be a JSON object.

    Raises:
        ProblemError: The body has too many values, is not strict JSON, or is not an object.
    """
    # Each value has at least one byte, so most bodies need not be counted.
    if len(body) > max_values:
        _refuse_too_many_values(body, max_values)
    try:
        value = strict_json.loads(body)
    except strict_json.StrictJsonError as error:
        raise refuse("malformed_body", str(error)) from None
    if not isinstance(value, dict):
        raise refuse("invalid_input", "the body must be a JSON object", pointer="")
    return value


def _refuse_too_many_values(body: bytes, max_values: int) -> None:
    # First count without recognizing strings. This is fast, and the result can only be too high.
    if _count_marks(body) > max_values and _count_values(body, 2 * max_values + 2) > max_values:
        if strict_json.nests_deeper_than(
            strict_json.MAX_DEPTH, body[:_NESTING_BYTES].decode(errors="replace")
        ):
            raise refuse("malformed_body", f"nested deeper than {strict_json.MAX_DEPTH} levels")
        raise refuse(
            "body_too_large",
            f"the request body has more than {max_values} JSON values, including member names; send fewer "
            "values per request, or many numbers as one base64 text, or raise the setting max_body_values of the server "
            "(TIDEWIRE_MAX_BODY_VALUES)",
            limit=max_values,
        )


def _count_values(text: bytes, max_quotes: int = -1) -> int:
    """Count the values and member names in a JSON text without parsing it. An empty array or object counts as two.

    If the text is not valid JSON, the result includes the values before the first error.

    Args:
        text: The text.
        max_quotes: Number of quotation marks after which strings are not recognized, to limit the memory. -1 for no limit. The
            contents of later strings are counted as well. Such a text has at least `max_quotes / 2` values and names anyway.
    """
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    return _count_marks(b"".join(unescaped.split(b'"', max_quotes)[::2]))


def _count_marks(text: bytes) -> int:
    return 1 + len(text) - len(text.translate(None, b",:[{"))  # several times faster than `count`


def read_submit(body: bytes, *, max_inputs: int, max_values: int) -> Submission:
    """Parse the body of a request to submit a job.

    Args:
        body: The body.
        max_inputs: Maximum number of inputs.
        max_values: Maximum number of JSON values and member names in the body, with one copy of the shared members for
            each input.

    Raises:
        ProblemError: The body is not valid. The problem's pointer refers to the invalid member.
    """
    members = read_json(body, max_values=max_values)
    if ("input" in members) == ("inputs" in members):
        raise refuse("invalid_input", "the body must contain exactly one of 'input' and 'inputs'", pointer="")
    for name, value in members.items():
        if value is None and name in _NEVER_NULL:  # A member without a value must be omitted [TW-JOB-087].
            raise refuse("invalid_input", f"/{name} is null; omit the member instead", pointer=f"/{name}")
    try:
        submit = SubmitBody.model_validate(members)
    except MessageError as error:
        raise refuse("invalid_input", str(error), pointer=error.pointer) from None
    inputs = [submit.input] if submit.inputs is None else submit.inputs
    if len(inputs) > max_inputs:
        detail = (
            f"the job has {len(inputs)} inputs, but this endpoint accepts at most {max_inputs} "
            "(settings max_inputs and max_queue_size)"
        )
        raise refuse("batch_too_large", detail, pointer="/inputs", limit=max_inputs)
    encoded = orjson.dumps(submit.shared) if submit.shared else b""
    _refuse_too_many_copies(encoded, len(inputs), max_values)
    return _submission(submit, inputs, submit.shared, len(body) + len(encoded) * (len(inputs) - 1))


class _StoredBody(WireModel, frozen=True, kw_only=True):
    """Body of a submit request whose inputs are not parsed."""

    inputs: list[msgspec.Raw] | None = None
    shared: msgspec.Raw = msgspec.Raw()
    on_disconnect: str = SubmitBody().on_disconnect
    grace_ms: int = SubmitBody().grace_ms
    deadline_ms: int | None = None


def read_stored(body: bytes) -> Submission:
    """Read the body of a request that was accepted earlier, without its inputs and shared members. This is much faster than
    `read_submit`, and calls no code of the endpoint.

    Returns:
        The submission, with empty `inputs` and `shared`.

    Raises:
        ValueError: The body is damaged.
    """
    stored = msgspec.json.decode(body, type=_StoredBody)
    copies = 0 if stored.inputs is None else len(stored.inputs) - 1
    return _submission(stored, [], {}, len(body) + len(bytes(stored.shared)) * copies)


def _submission(
    body: SubmitBody | _StoredBody, inputs: list[JsonValue], shared: dict[str, JsonValue], size: int
) -> Submission:
    grace = body.grace_ms / 1000 if body.on_disconnect == "cancel" else None
    deadline = None if body.deadline_ms is None else body.deadline_ms / 1000
    return Submission(inputs, body.inputs is not None, shared, grace, deadline, size)


def _refuse_too_many_copies(shared: bytes, inputs: int, max_values: int) -> None:
    """Limit the size of all copies of the shared members, because each input of a job gets its own copy."""
    if len(shared) * inputs > MAX_SHARED_BYTES:
        detail = (
            f"/shared has {len(shared)} bytes, and each of the {inputs} inputs gets a copy; "
            f"all copies together may have at most {MAX_SHARED_BYTES} bytes, so send fewer inputs per job"
        )
        limit = MAX_SHARED_BYTES // len(shared)
        raise refuse("batch_too_large", detail, pointer="/shared", limit=limit)
    if len(shared) * inputs > max_values and (values := _count_values(shared)) * inputs > max_values:
        detail = (
            f"/shared has {values} JSON values, and each of the {inputs} inputs gets a copy; all copies together may "
            f"have at most {max_values} values (max_body_values), so send fewer inputs per job"
        )
        raise refuse("batch_too_large", detail, pointer="/shared", limit=max_values // values)


async def admit_inputs(endpoint: Endpoint, submission: Submission) -> list[BaseModel]:
    """Add the shared members to each input that does not override them, and validate all inputs.

    Returns:
        The input of each item of the job. Only an input that asks for several samples makes several items.

    Raises:
        ProblemError: An input is not valid. The problem contains a pointer to the invalid member in the body.
    """
    admitted: list[BaseModel] = []
    loop = asyncio.get_running_loop()
    started = loop.time()
    for index in range(len(submission.inputs)):
        if loop.time() - started > _MAX_ADMIT_SECONDS:
            await asyncio.sleep(0)
            started = loop.time()
        admitted.extend(await admit_input(endpoint, submission, index))
    return admitted


async def admit_input(endpoint: Endpoint, submission: Submission, index: int) -> Sequence[BaseModel]:
    """Add the shared members to one input, and validate the input. See `admit_inputs`."""
    own = submission.inputs[index]
    pointer = f"/inputs/{index}" if submission.batch else "/input"
    merged: JsonValue = own
    if submission.shared:
        if not isinstance(own, dict):
            raise refuse(
                "invalid_input",
                f"{pointer}: every input must be an object if the body contains 'shared'",
                pointer=pointer,
            )
        merged = submission.shared | own
    try:
        value = await endpoint.admit(merged, pointer)
        return endpoint.items_of(value, pointer, batch=submission.batch)
    except ProblemError as error:
        raise _pointing_at_shared(error, own, submission.shared, pointer) from None


def _pointing_at_shared(
    error: ProblemError, own: Any, shared: dict[str, JsonValue], pointer: str
) -> ProblemError:
    """Return the error with a pointer into `/shared` if the invalid member comes from the shared members."""
    found = error.problem
    below = (found.pointer or "").removeprefix(pointer)
    member = below[1:].split("/")[0].replace("~1", "/").replace("~0", "~")
    if not below or member in own or member not in shared:
        return error
    detail = (found.detail or "").replace(f"{pointer}{below}", f"/shared{below}", 1)
    return ProblemError(
        found.model_copy(update={"pointer": f"/shared{below}", "detail": detail}), error.headers
    )
