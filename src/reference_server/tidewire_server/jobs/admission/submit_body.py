"""The body of a submit: what it must look like, and which inputs it means."""

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
"""Of the shared members, counted once for each input: each gets a copy of its own."""

_NEVER_NULL: Final = frozenset(SubmitBody.model_fields.keys() - {"input"})


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit that is well formed; its inputs are still to be validated."""

    inputs: list[JsonValue]
    batch: bool
    shared: dict[str, JsonValue]
    cancel_on_disconnect: bool
    grace: float
    """Seconds."""
    deadline: float | None
    """Seconds from the submit."""
    shared_size: int
    """Bytes of the shared members."""
    size: int
    """Bytes of the body, with a copy of the shared members for each input."""


def read_json(body: bytes) -> dict[str, JsonValue]:
    """Read a body that must be a JSON object.

    Raises:
        ProblemError: It is no JSON as the protocol takes it, or no object.
    """
    try:
        value = strict_json.loads(body)
    except strict_json.StrictJsonError as error:
        raise refuse("malformed_body", str(error)) from None
    if not isinstance(value, dict):
        raise refuse("invalid_input", "the body is a JSON object", pointer="")
    return value


def read_submit(body: bytes, *, max_inputs: int) -> Submission:
    """Read the body of a submit.

    Raises:
        ProblemError: It is not what a submit looks like; names the member.
    """
    members = read_json(body)
    if ("input" in members) == ("inputs" in members):
        raise refuse("invalid_input", "a submit has exactly one of 'input' and 'inputs'", pointer="")
    for name, value in members.items():
        if value is None and name in _NEVER_NULL:  # TW-JOB-079: what has no value is left out
            raise refuse("invalid_input", f"/{name} is null: leave it out", pointer=f"/{name}")
    if isinstance(given := members.get("inputs"), list):
        _refuse_too_many(given, max_inputs)  # before each of them is looked at
    try:
        submit = SubmitBody.model_validate(members, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        pointer = build(first["loc"])
        raise refuse("invalid_input", f"{pointer}: {first['msg']}", pointer=pointer) from None
    batch = submit.inputs is not None
    inputs = submit.inputs if submit.inputs is not None else [submit.input]
    copy = len(orjson.dumps(submit.shared)) if submit.shared else 0
    return Submission(
        inputs,
        batch,
        submit.shared,
        submit.on_disconnect == "cancel",
        submit.grace_ms / 1000,
        None if submit.deadline_ms is None else submit.deadline_ms / 1000,
        copy,
        len(body) + copy * (len(inputs) - 1),
    )


def _refuse_too_many(inputs: list[JsonValue], most: int) -> None:
    if len(inputs) > most:
        detail = f"{len(inputs)} inputs in one job, this endpoint takes at most {most} (max_inputs, max_queue_size)"
        raise refuse("batch_too_large", detail, pointer="/inputs", limit=most)


async def admit_inputs(endpoint: Endpoint, submission: Submission) -> list[BaseModel]:
    """Validate all inputs, with the shared members where they have none of their own.

    Raises:
        ProblemError: One is refused; names the member, where it stands in the body.
    """
    copies = submission.shared_size * len(submission.inputs)
    if copies > MAX_SHARED_BYTES:
        detail = (
            f"/shared has {submission.shared_size} bytes, and {len(submission.inputs)} inputs would get a copy each: all "
            f"together may have {MAX_SHARED_BYTES}; send fewer inputs in one job"
        )
        limit = MAX_SHARED_BYTES // submission.shared_size
        raise refuse("batch_too_large", detail, pointer="/shared", limit=limit)
    admitted = []
    for index, own in enumerate(submission.inputs):
        pointer = f"/inputs/{index}" if submission.batch else "/input"
        whole: JsonValue = own
        if submission.shared:
            if not isinstance(own, dict):
                raise refuse(
                    "invalid_input", f"{pointer}: 'shared' needs inputs that are objects", pointer=pointer
                )
            whole = submission.shared | own
        try:
            admitted.append(await endpoint.admit(whole, pointer))
        except ProblemError as error:
            raise _pointing_at_shared(error, own, submission.shared, pointer) from None
    return admitted


def _pointing_at_shared(
    error: ProblemError, own: Any, shared: dict[str, JsonValue], pointer: str
) -> ProblemError:
    """The member at fault may have come from `shared`: then that is where it stands."""
    found = error.problem
    below = (found.pointer or "").removeprefix(pointer)
    member = below[1:].split("/")[0].replace("~1", "/").replace("~0", "~")
    if not below or member in own or member not in shared:
        return error
    detail = (found.detail or "").replace(f"{pointer}{below}", f"/shared{below}", 1)
    return ProblemError(
        found.model_copy(update={"pointer": f"/shared{below}", "detail": detail}), error.headers
    )
