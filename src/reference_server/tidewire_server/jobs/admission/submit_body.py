"""Parse and validate the body of a request to submit a job, and the inputs in the body."""

from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import BaseModel, JsonValue, ValidationError

from tidewire.protocol import strict_json
from tidewire.protocol.document.json_pointer import build
from tidewire.protocol.resources import SubmitBody
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse

MAX_SHARED_BYTES: Final = 128 * 2**20
"""Maximum total size in bytes of all copies of the shared members. Each input of a job gets its own copy."""

_NEVER_NULL: Final = frozenset(SubmitBody.model_fields.keys() - {"input"})


@dataclass(frozen=True, slots=True)
class Submission:
    """Parsed body of a request to submit a job. The inputs are not validated yet."""

    inputs: list[JsonValue]
    batch: bool
    shared: dict[str, JsonValue]
    cancel_on_disconnect: bool
    grace: float
    """Number of seconds without a reader after which the job is cancelled.

    Used only if `cancel_on_disconnect` is true.
    """
    deadline: float | None
    """Number of seconds after which unfinished items fail, counted from the submission.

    None if there is no deadline.
    """
    shared_size: int
    """Size of the shared members as JSON, in bytes."""
    size: int
    """Size of the body in bytes, with one copy of the shared members for each input."""


def read_json(body: bytes) -> dict[str, JsonValue]:
    """Parse a request body that must be a JSON object.

    Raises:
        ProblemError: The body is not strict JSON, or is not an object.
    """
    try:
        value = strict_json.loads(body)
    except strict_json.StrictJsonError as error:
        raise refuse("malformed_body", str(error)) from None
    if not isinstance(value, dict):
        raise refuse("invalid_input", "the body must be a JSON object", pointer="")
    return value


def read_submit(body: bytes, *, max_inputs: int) -> Submission:
    """Parse the body of a request to submit a job.

    Raises:
        ProblemError: The body is not valid. The problem's pointer refers to the invalid member.
    """
    members = read_json(body)
    if ("input" in members) == ("inputs" in members):
        raise refuse("invalid_input", "the body must contain exactly one of 'input' and 'inputs'", pointer="")
    for name, value in members.items():
        if value is None and name in _NEVER_NULL:  # A member without a value must be omitted [TW-JOB-079].
            raise refuse("invalid_input", f"/{name} is null; omit the member instead", pointer=f"/{name}")
    if isinstance(inputs := members.get("inputs"), list):
        _refuse_too_many(inputs, max_inputs)  # Check this first, because validating many inputs is slow.
    try:
        submit = SubmitBody.model_validate(members, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        pointer = build(first["loc"])
        raise refuse("invalid_input", f"{pointer}: {first['msg']}", pointer=pointer) from None
    batch = submit.inputs is not None
    inputs = submit.inputs if submit.inputs is not None else [submit.input]
    shared_size = len(orjson.dumps(submit.shared)) if submit.shared else 0
    return Submission(
        inputs,
        batch,
        submit.shared,
        submit.on_disconnect == "cancel",
        submit.grace_ms / 1000,
        None if submit.deadline_ms is None else submit.deadline_ms / 1000,
        shared_size,
        len(body) + shared_size * (len(inputs) - 1),
    )


def _refuse_too_many(inputs: list[JsonValue], max_inputs: int) -> None:
    if len(inputs) > max_inputs:
        detail = (
            f"the job has {len(inputs)} inputs, but this endpoint accepts at most {max_inputs} "
            "(settings max_inputs and max_queue_size)"
        )
        raise refuse("batch_too_large", detail, pointer="/inputs", limit=max_inputs)


async def admit_inputs(endpoint: Endpoint, submission: Submission) -> list[BaseModel]:
    """Add the shared members to each input that does not override them, and validate all inputs.

    Raises:
        ProblemError: An input is not valid. The problem contains a pointer to the invalid member in the body.
    """
    total_size = submission.shared_size * len(submission.inputs)
    if total_size > MAX_SHARED_BYTES:
        detail = (
            f"/shared has {submission.shared_size} bytes, and each of the {len(submission.inputs)} inputs gets a copy; "
            f"all copies together may have at most {MAX_SHARED_BYTES} bytes, so send fewer inputs per job"
        )
        limit = MAX_SHARED_BYTES // submission.shared_size
        raise refuse("batch_too_large", detail, pointer="/shared", limit=limit)
    admitted = []
    for index, own in enumerate(submission.inputs):
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
            admitted.append(await endpoint.admit(merged, pointer))
        except ProblemError as error:
            raise _pointing_at_shared(error, own, submission.shared, pointer) from None
    return admitted


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
