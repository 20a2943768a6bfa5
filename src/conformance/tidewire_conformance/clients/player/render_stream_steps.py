"""What a server says in an event stream: bytes, and what it waits for between them."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidewire_conformance.clients.player.scenario import Members

LINE_ENDS = {"lf": b"\n", "cr": b"\r", "crlf": b"\r\n"}

DEFAULT_RETRY = 5
"""Milliseconds that a hello names, where its step says nothing else."""


@dataclass(frozen=True)
class Pause:
    """Say nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class UntilSaw:
    """Say nothing until the client has handed over this value."""

    value: Any


@dataclass(frozen=True)
class UntilAsked:
    """Say nothing until a request of this lane has come."""

    lane: str


@dataclass(frozen=True)
class Lap:
    """Take the time from here, under this name."""

    name: str


@dataclass(frozen=True)
class Flood:
    """So many bytes without the end of an event."""

    size: int
    line: int = 0
    """Bytes of each line, a data field; 0: no line ends."""


Step = bytes | Pause | UntilSaw | UntilAsked | Lap | Flood


def cursor_key(cursor: str) -> tuple[int, int]:
    """What ids are ordered by."""
    epoch, _, seq = cursor.partition("-")
    return int(epoch), int(seq)


def compact(value: Any) -> str:
    """JSON as it goes over the wire: characters as themselves, so that one can be cut."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def render(
    steps: Iterable[Members],
    fill: Callable[[str], str],
    *,
    line_end: str = "lf",
    log: Sequence[Members] = (),
    cursor: str | None = None,
) -> Iterator[Step]:
    """Turn the steps of a scenario into what is done on the wire.

    Args:
        steps: As they are written.
        fill: Puts in what {job} and its like stand for.
        line_end: A name of `LINE_ENDS`; bytes that are given as such stay as they are.
        log: What the step `log` stands for…
        cursor: …after this id.
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
                yield UntilSaw(value)
            case {"until_asked": lane}:
                yield UntilAsked(lane)
            case {"lap": name}:
                yield Lap(name)
            case {"log": _}:
                mine = (0, 0) if cursor is None else cursor_key(cursor)
                later = [event for event in log if cursor_key(event["id"]) > mine]
                yield from render(later, fill, line_end=line_end)
            case _:
                text = fill("".join(_events(step)))
                yield text.encode().replace(b"\n", LINE_ENDS[line_end])


def _events(step: Members) -> Iterator[str]:
    if "hello" in step:
        yield _event(None, "hello", step.get("retry", DEFAULT_RETRY), compact(hello_data(step["hello"])))
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
    """The data of a hello, but for what `members` say."""
    return {
        "protocol": "tidewire/1",
        "job": "{job}",
        "events": "/v1/jobs/{job}/events",
        "head": "1-1",
        "heartbeat_ms": 15_000,
        **members,
    }


# ---- in which pieces the bytes go ------------------------------------------------------------------------------


def cut(steps: Sequence[Step], after: int) -> Iterator[Step]:
    """The steps as far as byte `after` of their bytes, counted from their end where it is negative."""
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
    """The same bytes in other pieces: each step by itself, all that no wait parts, or so many bytes."""
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
