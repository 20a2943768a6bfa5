"""`Options`: what can be set per client and per call, in addition to the input.

The text below each field is its documentation: `src/client/generate_signatures.py` copies the fields into the signatures
and docstrings of the clients.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from tidewire.protocol.backoff import RetryPolicy
from tidewire.protocol.document.state_size import MAX_STATE_BYTES

OnDisconnect = Literal["continue", "cancel"]

CONNECT_TIMEOUT: Final = 10.0
"""Seconds for a connection to be made, by default."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110 §5.6.2."""
_OWN: Final = MappingProxyType(
    dict.fromkeys(
        ("accept", "accept-encoding", "connection", "content-length", "content-type", "transfer-encoding"), ""
    )
    | {
        "idempotency-key": ": use submit(…, idempotency_key=…)",
        "last-event-id": ": use client.job(checkpoint=…)",
    }
)
"""Headers that say how the client speaks, and what to use instead, where there is something."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that a client's calls share; `with_options` makes changed copies."""

    timeout: float | None = None
    """Seconds that one call may take in all: a request with its repetitions, a `result()`, a loop over a job. The job
    continues on the server when they pass. None: no bound."""
    connect_timeout: float = CONNECT_TIMEOUT
    """Seconds for a connection to be made."""
    queue_timeout: float | None = None
    """Seconds that one call waits while the job is in the server's queue. The job stays there when they pass. None: no
    bound."""
    on_disconnect: OnDisconnect = "continue"
    """Whether the job continues (`"continue"`) or is cancelled (`"cancel"`) when nobody has read its stream for `grace`
    seconds."""
    grace: float | None = None
    """Seconds without a reader before `on_disconnect` applies; at least 60. None: the server's default."""
    deadline: float | None = None
    """Seconds from the submit after which the server ends the job as failed. None: no deadline."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How often and how patiently failed requests and broken streams are repeated."""
    max_state_bytes: int = MAX_STATE_BYTES
    """How large the state of a job may become as JSON. A job that passes it, by a sixteenth at most, ends in a
    StateTooLargeError here; it continues on the server."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Sent with every request, to this server's origin only: credentials, for example. `with_options` adds to those that
    are set already."""

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "queue_timeout", "grace", "deadline"):
            check_seconds(name, getattr(self, name))
        if self.on_disconnect not in {"continue", "cancel"}:
            raise ValueError(f"on_disconnect is 'continue' or 'cancel', not {self.on_disconnect!r}")
        if not isinstance(self.retry, RetryPolicy):
            raise TypeError(f"retry is a RetryPolicy, not {self.retry!r}")
        if type(self.max_state_bytes) is not int:
            raise TypeError(f"max_state_bytes is a whole number of bytes, not {self.max_state_bytes!r}")
        if self.max_state_bytes < 1:
            raise ValueError(f"max_state_bytes must be at least 1, not {self.max_state_bytes}")
        check_headers("headers", self.headers)

    def changed(self, **members: Any) -> Self:
        """A copy with some members changed. Headers are added to those that are there."""
        if "headers" in members:
            check_headers("headers", members["headers"])
            members["headers"] = MappingProxyType(overlaid(self.headers, members["headers"]))
        return replace(self, **members)


def check_headers(what: str, headers: Any) -> None:
    """Refuse what cannot be sent.

    Raises:
        TypeError: It is no mapping.
        ValueError: A name or a value is none, or the client's own to send. Values are not repeated: they may be secret.
    """
    if not isinstance(headers, Mapping):
        kind = type(headers).__name__
        raise TypeError(f"{what}: {{'Authorization': 'Bearer …'}} and the like are expected, not {kind}")
    for name, value in headers.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(f"{what}: {name!r} is no name of a header")
        if not (
            isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip()
        ):
            rule = "printable ASCII text, on one line, without spaces around it"
            raise ValueError(f"{what}: the value of {name!r} must be {rule}")
        if name.lower() in _OWN:
            raise ValueError(f"{what}: {name!r} is sent by the client itself{_OWN[name.lower()]}")


def overlaid(*layers: Mapping[str, str]) -> dict[str, str]:
    """Headers of which later ones replace earlier ones, whatever the case of their names."""
    headers: dict[str, tuple[str, str]] = {}
    for layer in layers:
        headers.update({name.lower(): (name, value) for name, value in layer.items()})
    return dict(headers.values())


def check_key(key: Any) -> None:
    """Refuse an idempotency key that the protocol does not allow.

    Raises:
        ValueError: It is not 1 to 255 visible ASCII characters.
    """
    if key is not None and not (
        isinstance(key, str)
        and 0 < len(key) <= 255
        and key.isascii()
        and key.isprintable()
        and " " not in key
    ):
        raise ValueError(f"idempotency_key must be 1 to 255 visible ASCII characters, not {key!r:.80}")


def check_seconds(name: str, seconds: Any) -> None:
    """Refuse a time that is not a number of seconds above 0; None is allowed where it means no bound.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not above 0, or infinite where it is sent to the server.
    """
    if seconds is None and name != "connect_timeout":
        return
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
    if not seconds > 0:
        raise ValueError(f"{name} is in seconds and must be above 0, not {seconds!r}")
    if name in {"grace", "deadline"} and math.isinf(seconds):
        raise ValueError(f"{name} goes to the server as a number: for no bound, leave it out")
