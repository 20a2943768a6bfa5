"""Rendering of a scenario's stream into bytes to send and events to wait for."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidewire_conformance.clients.player.scenario import Members

LINE_ENDS = {"lf": b"\n", "cr": b"\r", "crlf": b"\r\n"}

DEFAULT_RETRY_MS = 5
"""Default of the field `retry` in a hello event, in milliseconds."""


@dataclass(frozen=True)
class Pause:
    """Send nothing for the given number of seconds."""

    seconds: float


@dataclass(frozen=True)
class WaitForDelivery:
    """Send nothing until the client has delivered this value to its user."""

    value: Any


@dataclass(frozen=True)
class WaitForRequest:
    """Send nothing until a request of this kind has arrived."""

    kind: str


@dataclass(frozen=True)
class StartTiming:
    """Start a timed part with this name."""

    name: str


@dataclass(frozen=True)
class Flood:
    """Send `size` bytes of an event that never ends."""

    size: int
    line: int = 0
    """Length of each data line in bytes; 0 for a single endless line."""


Step = bytes | Pause | WaitForDelivery | WaitForRequest | StartTiming | Flood


def cursor_key(cursor: str) -> tuple[int, int]:
    """Sort key of an event id: epoch, then sequence number."""
    epoch, _, seq = cursor.partition("-")
    return int(epoch), int(seq)


def compact(value: Any) -> str:
    """Encode JSON without white space. Non-ASCII characters are not escaped, so a stream can be cut inside one."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def render(
    steps: Iterable[Members],
    fill: Callable[[str], str],
    *,
    line_end: str = "lf",
    log: Sequence[Members] = (),
    cursor: str | None = None,
) -> Iterator[Step]:
    """Convert the steps of a scenario to bytes and waits.

    Args:
        steps: The steps in the scenario's notation.
        fill: Replaces placeholders such as {job}.
        line_end: A key of `LINE_ENDS`. Does not apply to the steps `bytes` and `base64`.
        log: Events for the step `log`.
        cursor: The step `log` sends only events after this id; None sends all.
    """
    for step in steps:
        match step:
            case {"bytes": text}:
                yield fill(text).encode()
            case {"base64": text}:
                yield base64.b64decode(text)
            case {"flood": size}:
                yield Flood(size, step.get("line", 0))
            case {"pause_ms": pause}:
                yield Pause(pause / 1000)
            case {"until_saw": value}:
                yield WaitForDelivery(value)
            case {"until_asked": kind}:
                yield WaitForRequest(kind)
            case {"lap": name}:
                yield StartTiming(name)
            case {"log": _}:
                position = (0, 0) if cursor is None else cursor_key(cursor)
                later = [event for event in log if cursor_key(event["id"]) > position]
                yield from render(later, fill, line_end=line_end)
            case _:
                text = fill("".join(_events(step)))
                yield text.encode().replace(b"\n", LINE_ENDS[line_end])


def _events(step: Members) -> Iterator[str]:
    if "hello" in step:
        yield _event(None, "hello", step.get("retry", DEFAULT_RETRY_MS), compact(hello_data(step["hello"])))
        return
    data: str = step["text"] if "text" in step else compact(step["data"])
    data = data.replace("{pad}", "x" * step.get("pad", 0))
    name = step.get("id")
    for _ in range(step.get("many", 1)):
        yield _event(name, step.get("event"), step.get("retry"), data)
        if "many" in step and name is not None:
            epoch, seq = cursor_key(name)
            name = f"{epoch}-{seq + 1}"


def _event(name: str | None, kind: str | None, retry: int | None, data: str) -> str:
    lines = []
    if name is not None:
        lines.append(f"id:{name}")
    if kind is not None:
        lines.append(f"event:{kind}")
    if retry is not None:
        lines.append(f"retry:{retry}")
    lines.append(f"data:{data}")
    return "\n".join(lines) + "\n\n"


def hello_data(members: Members) -> dict[str, Any]:
    """Build the data of a hello event; `members` override the defaults."""
    return {
        "protocol": "tidewire/1",
        "job": "{job}",
        "events": "/v1/jobs/{job}/events",
        "head": "1-1",
        "heartbeat_ms": 15_000,
        **members,
    }


# ---- splitting into pieces -------------------------------------------------------------------------------------


def cut(steps: Sequence[Step], after: int) -> Iterator[Step]:
    """Truncate the steps after a total of `after` bytes. A negative number counts from the end."""
    if after < 0:
        after += sum(len(step) for step in steps if isinstance(step, bytes))
    for step in steps:
        if not isinstance(step, bytes):
            yield step
            continue
        if len(step) >= after:
            yield step[:after]
            return
        after -= len(step)
        yield step


def regroup(steps: Iterable[Step], chunk: str | int) -> Iterator[Step]:
    """Regroup the bytes of the steps into pieces that are sent separately.

    Args:
        steps: Bytes and waits.
        chunk: "step" sends each step by itself, "all" joins steps without a wait between them, and a number sends
            pieces of at most that many bytes.
    """
    together = b""
    for step in steps:
        if not isinstance(step, bytes):
            if together:
                yield together
                together = b""
            yield step
        elif chunk == "all":
            together += step
        elif isinstance(chunk, int):
            yield from (step[at : at + chunk] for at in range(0, len(step), chunk))
        else:
            yield step
    if together:
        yield together
