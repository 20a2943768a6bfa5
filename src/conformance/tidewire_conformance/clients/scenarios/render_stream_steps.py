"""Conversion of a scenario's stream into bytes to send and steps to wait for."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tidewire_conformance.clients.scenarios.scenario import Members

LINE_ENDS = {"lf": b"\n", "cr": b"\r", "crlf": b"\r\n"}

DEFAULT_RETRY_MS = 5
"""Default value, in milliseconds, of the field `retry` in a `hello` event."""


Step = bytes | Members
"""Bytes to send, or a step of the scenario file that waits, starts a timed part of the stream, or sends an endless event."""


def cursor_key(cursor: str) -> tuple[int, int]:
    """Return a sort key for an event id: its epoch and its sequence number."""
    epoch, _, seq = cursor.partition("-")
    return int(epoch), int(seq)


def compact(value: Any) -> str:
    """Encode a value as JSON without white space.

    Non-ASCII characters are not escaped, so a scenario can cut a stream within a character.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def render(
    steps: Iterable[Members],
    fill: Callable[[str], str],
    *,
    line_end: str = "lf",
    log: Sequence[Members] = (),
    cursor: str | None = None,
) -> Iterator[Step]:
    """Convert the steps of a scenario to bytes. Steps that cannot be converted are yielded unchanged.

    Args:
        steps: Steps in the notation of the scenario file.
        fill: Function that replaces placeholders such as {job}.
        line_end: Key of `LINE_ENDS`. It does not apply to the steps `bytes` and `base64`.
        log: Events that the step `log` sends.
        cursor: Id after which the step `log` sends events. If it is None, the step sends all events.
    """
    for step in steps:
        match step:
            case {"bytes": text}:
                yield fill(text).encode()
            case {"base64": text}:
                yield base64.b64decode(text)
            case {"log": _}:
                position = (0, 0) if cursor is None else cursor_key(cursor)
                later = [event for event in log if cursor_key(event["id"]) > position]
                yield from render(later, fill, line_end=line_end)
            case {"data": _} | {"text": _} | {"hello": _}:
                text = fill("".join(_events(step)))
                yield text.encode().replace(b"\n", LINE_ENDS[line_end])
            case _:
                yield step


def _events(step: Members) -> Iterator[str]:
    if "hello" in step:
        yield event_text(
            None, "hello", step.get("retry", DEFAULT_RETRY_MS), compact(hello_data(step["hello"]))
        )
        return
    data: str = step["text"] if "text" in step else compact(step["data"])
    data = data.replace("{pad}", "x" * step.get("pad", 0))
    name = step.get("id")
    for _ in range(step.get("many", 1)):
        yield event_text(name, step.get("event"), step.get("retry"), data)
        if "many" in step and name is not None:
            epoch, seq = cursor_key(name)
            name = f"{epoch}-{seq + 1}"


def event_text(name: str | None, kind: str | None, retry: int | None, data: str, separator: str = ":") -> str:
    """Return the text of an event, without the fields that are None."""
    fields = {"id": name, "event": kind, "retry": retry, "data": data}
    lines = [f"{field}{separator}{value}" for field, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n\n"


def hello_data(members: Members) -> dict[str, Any]:
    """Build the data of a `hello` event. Members in the argument replace the defaults."""
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
    """Truncate the steps after a total of `after` bytes. If `after` is negative, it is counted from the end."""
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
    """Regroup the bytes of the steps into the pieces that the server sends separately.

    Args:
        steps: Bytes to send, and steps that wait.
        chunk: How to form the pieces. "step" sends each step alone, "all" joins the steps between two waits, and a
            number sends pieces of at most that many bytes.
    """
    together = b""
    for step in steps:
        if isinstance(step, bytes) and chunk == "all":
            together += step
            continue
        if together:
            yield together
            together = b""
        if isinstance(step, bytes) and isinstance(chunk, int):
            yield from (step[at : at + chunk] for at in range(0, len(step), chunk))
        else:
            yield step
    if together:
        yield together
