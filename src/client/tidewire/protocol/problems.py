"""Problem details (RFC 9457) and the registry of problem codes.

All errors of the protocol are problem details objects. They occur in the bodies of HTTP error responses, in `problem`
events, as the `error` of an item, and as the `error` of a `done` event.
"""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta, field

from tidewire.protocol.wire_model import Count, WireModel, build_models, members_of

MEDIA_TYPE = "application/problem+json"


class Problem(WireModel, frozen=True, kw_only=True):
    """A problem details object. Members that this model does not define are kept in `model_extra`."""

    code: str
    """Machine-readable kind of the problem. It is a key of `REGISTRY`, a name that contains a dot, or an absolute URI."""
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    type: str | None = None
    """URI reference for the kind of problem. None means `about:blank`, because `code` already identifies the kind."""
    detail: str | None = None
    """Explanation for a human reader, which says what went wrong, where, and what to do."""
    instance: str | None = None
    pointer: str | None = None
    """JSON Pointer to the invalid member of the request's body."""
    retryable: bool = False
    retry_after_ms: Count | None = None
    model_extra: dict[str, Any] = field(default_factory=dict)
    """Members that this model does not define, such as `limit`."""


build_models(globals())


class Kind(NamedTuple):
    """Entry of the registry for one problem code. `retry_after_ms` is the default wait before a retry, or None."""

    status: int
    retryable: bool
    retry_after_ms: int | None
    title: str


# `wait` is the default of `retry_after_ms`. The server sends another value if it has computed a more accurate one. Every
# response with the status 409, 429 or 503 contains `retry_after_ms`, and the same time in the Retry-After header, in
# seconds, rounded up.
REGISTRY: MappingProxyType[str, Kind] = MappingProxyType(
    {
        # code                          status retryable wait    title
        "malformed_body":           Kind(400, False, None,  "The body is not valid JSON for this protocol"),
        "bad_cursor":               Kind(400, False, None,  "The cursor is not an event id"),
        "bad_parameter":            Kind(400, False, None,  "A query parameter or a header is invalid"),
        "unauthorized":             Kind(401, False, None,  "The credentials are missing or invalid"),
        "forbidden":                Kind(403, False, None,  "The credentials do not permit this request"),
        "not_found":                Kind(404, False, None,  "No resource at this URL"),
        "job_not_found":            Kind(404, False, None,  "The job does not exist"),
        "endpoint_not_found":       Kind(404, False, None,  "The endpoint does not exist"),
        "method_not_allowed":       Kind(405, False, None,  "This resource does not support the request method"),
        "not_acceptable":           Kind(406, False, None,  "No accepted media type is available"),
        "idempotency_in_flight":    Kind(409, True,  1000,  "A request with this idempotency key is still in progress"),
        "job_expired":              Kind(410, False, None,  "The job was purged or has expired"),
        "body_too_large":           Kind(413, False, None,  "The body exceeds the server's size limit"),
        "unsupported_media_type":   Kind(415, False, None,  "The media type or content coding of the body is not supported"),
        "invalid_input":            Kind(422, False, None,  "The input does not match the endpoint's schema"),
        "input_too_long":           Kind(422, False, None,  "The input exceeds the endpoint's length limit"),
        "batch_too_large":          Kind(422, False, None,  "The job has more inputs than the server allows"),
        "top_logprobs_too_large":   Kind(422, False, None,  "`top_logprobs` exceeds the endpoint's limit"),
        "idempotency_key_reused":   Kind(422, False, None,  "The idempotency key was used with another body"),
        "item_refused":             Kind(422, False, None,  "The endpoint rejected this item"),
        "queue_full":               Kind(429, True,  2000,  "The queue of this endpoint is full"),
        "rate_limited":             Kind(429, True,  1000,  "Too many requests"),
        "too_many_streams":         Kind(429, True,  5000,  "Too many open streams"),
        "too_many_jobs":            Kind(429, True,  5000,  "Too many unfinished jobs"),
        "internal":                 Kind(500, False, None,  "Internal server error"),
        "invalid_value":            Kind(500, False, None,  "The endpoint returned a value that does not match its schema"),
        "state_too_large":          Kind(500, False, None,  "The job's state exceeds the server's size limit"),
        "worker_lost":              Kind(500, True,  None,  "The worker that ran the job was lost"),
        "unavailable":              Kind(503, True,  1000,  "The server is temporarily unavailable"),
        "deadline_exceeded":        Kind(504, False, None,  "The job did not end before its deadline"),
    }
)  # fmt: skip


def problem(code: str, detail: str | None = None, **members: Any) -> Problem:
    """Create a problem with the status, title and defaults that the registry lists for its code.

    Args:
        code: A key of `REGISTRY`.
        detail: Explanation of this occurrence of the problem, and what the user can do.
        members: Further members of the problem: `pointer`, `instance`, `retry_after_ms`, or additional members such as a
            limit.

    Raises:
        KeyError: The code is not in the registry.
    """
    kind = REGISTRY[code]
    fields: dict[str, Any] = {
        "code": code,
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "retryable": kind.retryable,
        "retry_after_ms": kind.retry_after_ms,
    }
    return Problem.model_validate(fields | members)


def to_json(value: Problem) -> dict[str, Any]:
    """Return the problem as a JSON object, without the members that are None."""
    return members_of(value, exclude_none=True)


_MAX_NAME: Final = 80
"""Maximum length of an endpoint's name in an error message, in characters."""


def no_such_endpoint(name: str, known: Iterable[str]) -> str:
    """Return the error message for the name of an endpoint that does not exist. It suggests a similar name."""
    names, shown = list(known), name[:_MAX_NAME]
    return f"endpoint {shown!r} does not exist; {did_you_mean(shown, names)}this server has: {', '.join(names) or 'none'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'NAME'? ` with the most similar known name and a trailing space, or an empty string."""
    import difflib  # noqa: PLC0415 - seldom needed

    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]!r}? " if near else ""
