"""What an answer means that is not what was asked for."""

from typing import Final

from pydantic import ValidationError

from tidewire.errors import NotATidewireServerError, TidewireError, Where, class_of, refusal
from tidewire.http.response import Response
from tidewire.protocol.problems import Problem

OF_GATEWAYS: Final = frozenset({401, 403, 407, 413, 429})
"""Statuses below 500 that a gateway answers in words of its own."""


def problem_in(answer: Response) -> Problem | None:
    """The problem that an answer carries, None where it carries none."""
    try:
        return Problem.model_validate_json(answer.body)
    except ValidationError:
        return None


def refused(answer: Response, problem: Problem | None, where: Where) -> TidewireError:
    """The error for a refusal.

    Args:
        answer: With a status that is no success, or a body that cannot be used.
        problem: What it carries.
        where: For the error.
    """
    if problem is not None:
        return refusal(problem, where)
    kind = class_of(answer.status)
    return kind(f"refused with {_kind(answer)}", where=where, retryable=answer.status >= 500)


def may_be_of_a_gateway(answer: Response) -> bool:
    """Whether what stands before a server may have answered this without it."""
    # 501 is a server that knows no such method.
    return (answer.status >= 500 and answer.status != 501) or answer.status in OF_GATEWAYS


def not_tidewire(base: str, answer: Response) -> NotATidewireServerError:
    """The error for an answer that no server of this protocol gives."""
    return NotATidewireServerError(
        f"what answers at {base} is no Tidewire server: it sent {_kind(answer)}", where=answer.where()
    )


def _kind(answer: Response) -> str:
    """What came, in a few words."""
    media = answer.headers.get("content-type", "").partition(";")[0].strip()
    start = answer.body[:200].decode("utf-8", "replace").split()
    text = " ".join(start)[:80]
    if media:
        return f"{answer.status} {media}: {text!r}" if text else f"{answer.status} {media} without a body"
    if text:
        return f"{answer.status} without a content type: {text!r}"
    return f"{answer.status} without a content type and without a body"
