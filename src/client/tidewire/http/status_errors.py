"""Converts HTTP responses with an unsuccessful status to the client's errors."""

import re
from http import HTTPStatus
from typing import Final

import msgspec

from tidewire.errors import NotATidewireServerError, TidewireError, Where, class_of, refusal
from tidewire.following.http_status_actions import is_event_stream
from tidewire.http.response import Response
from tidewire.protocol.problems import Problem

OF_GATEWAYS: Final = frozenset({401, 403, 407, 408, 413, 429})
"""Statuses below 500 that a gateway may send without forwarding the request to the server."""


def problem_in(response: Response) -> Problem | None:
    """Parse the problem details in the body of a response; None if the body has no problem details."""
    try:
        return Problem.model_validate(msgspec.json.decode(response.body))
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


def refused(response: Response, problem: Problem | None, where: Where) -> TidewireError:
    """Create the error for a refused request.

    Args:
        response: Response with an unsuccessful status or an unusable body.
        problem: Problem details of the response; None if it has no problem details.
        where: Context for the error message.
    """
    if problem is not None:
        return refusal(problem, where)
    kind = class_of(response.status)
    what = f"the request was refused with {_kind(response)}"
    advice = _PROXY_LOGIN if response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED else None
    return kind(what, where=where, advice=advice, retryable=response.status >= 500)


def may_be_from_gateway(response: Response) -> bool:
    """Whether this response may come from a gateway in front of the server, and not from the server."""
    # The status 501 comes from a server that does not implement the method, and not from a gateway.
    return (response.status >= 500 and response.status != 501) or response.status in OF_GATEWAYS


def not_tidewire(base: str, response: Response, fault: str = "") -> NotATidewireServerError:
    """Create the error for a response that no Tidewire server sends.

    Args:
        base: URL of the server.
        response: The response.
        fault: Why its body is not valid. The message contains the fault of a JSON body, because the server may be a faulty
            Tidewire server.
    """
    why = f" ({fault})" if fault and _media_type(response) == "application/json" else ""
    return NotATidewireServerError(
        f"the server at {base} is not a Tidewire server: it sent {_kind(response)}{why}",
        where=response.where(),
    )


_PROXY_LOGIN: Final = (
    "An HTTP proxy requires a user and a password: set HTTP_PROXY to a URL like http://user:password@proxy.example:3128, or pass it "
    "as proxy=…."
)
_TITLE: Final = re.compile(r"<title[^>]*>([^<]*[^<\s])", re.IGNORECASE)
"""Title of a page. A page often begins with a long document type, which does not help."""


def _media_type(response: Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip()


def _kind(response: Response) -> str:
    """Summarize a response for an error message: status, content type, and the title of a page or the start of the body."""
    media = _media_type(response)
    coding = response.headers.get("content-encoding", "identity")
    if is_event_stream(media) and coding != "identity":
        return f"{response.status} {media} with the content coding {coding}, which the client did not request"
    body = response.body[:4096].decode("utf-8", "replace")
    title = _TITLE.search(body) if media == "text/html" else None
    text = " ".join((title[1] if title else body[:200]).split())[:80]
    if media:
        return f"{response.status} {media}: {text!r}" if text else f"{response.status} {media} without a body"
    if text:
        return f"{response.status} without a content type: {text!r}"
    return f"{response.status} without a content type and without a body"
