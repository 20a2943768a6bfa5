"""Options of a client, such as timeouts, retries, limits and headers, and the functions that check their values.

The docstring below each field of `Options` is copied into the signatures and docstrings of the clients by
`src/client/generate_signatures.py`.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, Literal, ParamSpec, Self, TypeVar

from tidewire.following.retry_policy import RetryPolicy
from tidewire.protocol.document.state_size import MAX_STATE_BYTES

P = ParamSpec("P")
X = TypeVar("X")

OnDisconnect = Literal["continue", "cancel"]

CONNECT_TIMEOUT: Final = 10.0
"""Default `connect_timeout` in seconds."""
ANSWER_TIMEOUT: Final = 30.0
"""Default `answer_timeout` in seconds."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Pattern of a valid header name, which is a token as defined in RFC 9110 §5.6.2."""
_OWN: Final = MappingProxyType(
    dict.fromkeys(
        ("accept", "accept-encoding", "connection", "content-length", "content-type", "transfer-encoding"), ""
    )
    | {
        "idempotency-key": ": use submit(…, idempotency_key=…)",
        "last-event-id": ": use client.job(checkpoint=…)",
    }
)
"""Names of headers that users may not set, because the client itself sets them. Each value ends the error message and
names the argument to use instead. It is empty if there is no such argument."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that apply to all calls of a client. To change them, the client's method `with_options` returns a new
    client.
    """

    timeout: float | None = None
    """Seconds that one call may take in total: a request including its retries, a `result()`, a whole loop over a job.
    After this time, the call raises TotalTimeoutError, and the job continues on the server. None: no limit."""
    connect_timeout: float = CONNECT_TIMEOUT
    """Seconds that opening a connection may take."""
    answer_timeout: float = ANSWER_TIMEOUT
    """Seconds that one attempt of a request may wait for the response, or for its next byte. After this time, the
    client retries within `retry`. An open stream has another time limit, which depends on the server's heartbeat."""
    queue_timeout: float | None = None
    """Seconds that one call waits while the job is in the server's queue. After this time, the call raises
    QueueTimeoutError, and the job stays in the queue. None: no limit."""
    on_disconnect: OnDisconnect = "continue"
    """What the server does with a job whose stream has had no reader for `grace` seconds: run it to its end
    (`"continue"`) or cancel it (`"cancel"`)."""
    grace: float | None = None
    """Seconds for which a job's stream must have had no reader before `on_disconnect` applies. With less than 60, the
    server may cancel a job before the client has reconnected, which can take half a minute. A server raises values below
    its minimum, `discover().limits.min_grace_ms`, which is 5 seconds by default. None: 60."""
    deadline: float | None = None
    """Seconds that a job may take, counted from its submission. After this time, the server ends an unfinished job as
    failed. None: no deadline."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """Limits for the retries of failed requests and the reconnects of lost streams. They limit the time without
    progress, the waits, and the number of failures in a row. By default, the client gives up after 300 seconds without
    progress; `RetryPolicy` documents all limits and their defaults."""
    max_state_bytes: int = MAX_STATE_BYTES
    """Maximum size of a job's state as JSON, in bytes. Reading a job with a larger state raises StateTooLargeError. The
    client may detect a larger state late, but at the latest when the state exceeds the limit by a sixteenth. The job
    continues on the server."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Extra headers for every request, such as credentials. The client sends them to the server's origin only. Headers
    passed to `with_options` are added to the headers of the client, and replace headers of the same name."""

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "answer_timeout", "queue_timeout", "grace", "deadline"):
            check_seconds(name, getattr(self, name))
        if self.on_disconnect not in {"continue", "cancel"}:
            raise ValueError(f"on_disconnect must be 'continue' or 'cancel', not {self.on_disconnect!r}")
        if not isinstance(self.retry, RetryPolicy):
            raise TypeError(f"retry must be a RetryPolicy, not {self.retry!r}")
        if type(self.max_state_bytes) is not int:
            raise TypeError(
                f"max_state_bytes must be an integer number of bytes, not {self.max_state_bytes!r}"
            )
        if self.max_state_bytes < 1:
            raise ValueError(f"max_state_bytes must be at least 1, not {self.max_state_bytes}")
        check_headers("headers", self.headers)

    def changed(self, **members: Any) -> Self:
        """Return a copy of the options with some fields changed. New headers are merged into the existing headers."""
        if "headers" in members:
            check_headers("headers", members["headers"])
            members["headers"] = MappingProxyType(overlaid(self.headers, members["headers"]))
        return replace(self, **members)


def check_headers(what: str, headers: Any) -> None:
    """Check that request headers can be sent. Error messages never contain the values of headers, because a value may
    be secret.

    Args:
        what: The argument's name, for error messages.
        headers: The argument's value.

    Raises:
        TypeError: `headers` is not a mapping.
        ValueError: A name or value is not valid in HTTP, or the client itself sets the header.
    """
    if not isinstance(headers, Mapping):
        kind = type(headers).__name__
        raise TypeError(f"{what} must be a mapping such as {{'Authorization': 'Bearer …'}}, not {kind}")
    for name, value in headers.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(f"{what}: {name!r} is not a valid header name")
        if not (
            isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()
        ):
            rule = "one line of printable ASCII text without leading or trailing spaces"
            raise ValueError(f"{what}: the value of {name!r} must be {rule}")
        if name.lower() in _OWN:
            raise ValueError(f"{what}: {name!r} is set by the client itself{_OWN[name.lower()]}")


def overlaid(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge mappings of headers. Names are compared case-insensitively, and a header in a later mapping replaces a
    header of the same name in an earlier mapping.
    """
    headers: dict[str, tuple[str, str]] = {}
    for layer in layers:
        for name, value in layer.items():
            headers[name.lower()] = name, value
    return dict(headers.values())


def check_key(key: Any) -> None:
    """Check that an idempotency key follows the rules of the protocol. None is valid.

    Raises:
        ValueError: The key is not 1 to 255 visible ASCII characters.
    """
    if key is not None and not (
        isinstance(key, str)
        and 0 < len(key) <= 255
        and key.isascii()
        and key.isprintable()
        and " " not in key
    ):
        raise ValueError(f"idempotency_key must be 1 to 255 visible ASCII characters, not {key!r:.80}")


def without_key(method: Callable[P, X]) -> Callable[P, X]:
    """Decorate `with_options`, so that the error for the argument `idempotency_key` names the methods that accept this
    argument. The signature of `with_options` stays the same.
    """

    @wraps(method)
    def checked(*args: P.args, **options: P.kwargs) -> X:
        if "idempotency_key" in options:
            raise TypeError(
                f"{method.__qualname__}() got an unexpected keyword argument 'idempotency_key'. A key is for one call: "
                "pass idempotency_key=… to the call that starts the job, which is submit, run, submit_batch or map"
            )
        return method(*args, **options)

    return checked


def check_seconds(name: str, seconds: Any) -> None:
    """Check a timeout. None means no limit and is valid for every option except `connect_timeout` and `answer_timeout`.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is not greater than 0, or it is an infinite `grace` or `deadline`. The client sends these
            two options as JSON, which cannot express infinity. An infinite `answer_timeout` is not valid either, because
            the client must limit this time. [TW-CLI-047]
    """
    if seconds is None and name not in {"connect_timeout", "answer_timeout"}:
        return
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{name} must be a number of seconds, not {seconds!r}")
    if not seconds > 0:
        raise ValueError(f"{name} must be more than 0 seconds, not {seconds!r}")
    if name in {"grace", "deadline"} and math.isinf(seconds):
        raise ValueError(f"{name} is sent to the server and must be finite: for no limit, leave it out")
    if name == "answer_timeout" and math.isinf(seconds):
        raise ValueError("answer_timeout must be finite, because a response may never come")
