"""Implementation of `tidewire conformance --profile sse URL`: request the stream, run the checks and grade the result."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from tidewire_conformance.event_streams.stream_checks import STREAM_CHECKS, StreamCheck, StreamRecording
from tidewire_conformance.judging.grade import GradedRun, Report, grade
from tidewire_conformance.judging.verdict import Outcome, SkipReason, Verdict
from tidewire_conformance.parse_option_values import EventStreamOptions, select
from tidewire_conformance.registry import is_named
from tidewire_conformance.runner import settle
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Wire

READ_SECONDS: Final = 10.0
"""Time, in seconds, for which the suite reads a stream that does not end. `--patience` multiplies it."""
MAX_EVENTS: Final = 200
"""Number of events after which the suite stops reading a stream."""
MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = {301: False, 302: False, 307: True, 308: True}
"""Status codes of redirects, and whether the redirected request keeps the method POST and its body."""
_REQUEST_HEADER: Final = {
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
    "Cache-Control": "no-store",
}


class StreamUnreachableError(Exception):
    """Raised if no response arrives from the URL."""


def choose_stream_checks(only: Sequence[str], skip: Sequence[str]) -> list[StreamCheck]:
    """Return the checks that the options `--only` and `--skip` select.

    Raises:
        EmptySelectionError: A pattern matches no check.
    """

    def is_named_by(check: StreamCheck, patterns: Sequence[str]) -> bool:
        return is_named(check.name, check.requirements, patterns)

    return select([*STREAM_CHECKS.values()], is_named_by, only, skip, "check")


def judge_stream_server(
    plan: EventStreamOptions,
    checks: Sequence[StreamCheck],
    known: dict[str, str] | None = None,
    part: str = "",
) -> Report:
    """Request an event stream, run the checks on the responses, and grade the result.

    Raises:
        StreamUnreachableError: No response arrived.
    """
    wire = Wire(plan.url, header=plan.header, patience=plan.patience)
    try:
        recording = asyncio.run(record_stream(wire, plan))
    except IncompleteResponseError as error:
        raise StreamUnreachableError(str(error)) from None
    verdicts = [_verdict(check, recording) for check in checks]
    subject = {"url": plan.url, "server": recording.first.response_header("server")}
    run = GradedRun(plan, subject, ["sse"], verdicts, len(wire.record), wire.now(), "")
    return grade(run, known, part)


async def record_stream(wire: Wire, plan: EventStreamOptions) -> StreamRecording:
    """Read the stream once and, if it has ids and was requested with GET, again from an id in its middle.

    Raises:
        IncompleteResponseError: The connection failed before a response arrived.
    """
    first = await _read(wire, plan, {})
    ids = [*dict.fromkeys(block.id for block in first.blocks if block.id)]
    if not ids or plan.body is not None:
        return StreamRecording(first)
    # Use the id in the middle, so that the stream has events before and after the cursor if it has three or more.
    place = len(ids) // 2 if len(ids) > 1 else 0
    cursor = ids[place - 1] if len(ids) == 2 else ids[place]
    after = ids.index(cursor) + 1
    earlier, later = frozenset(ids[:after]), tuple(ids[after:])
    value = cursor.encode().decode("latin-1")
    with contextlib.suppress(IncompleteResponseError):
        resumed = await _read(wire, plan, {"Last-Event-ID": value})
        return StreamRecording(first, resumed, cursor, earlier, later)
    return StreamRecording(first)


async def _read(wire: Wire, plan: EventStreamOptions, more: dict[str, str]) -> RecordedExchange:
    """Request the stream, follow redirects as a client does (TW-SSE-017), and read the last response."""
    url, body = plan.url, plan.body
    for _ in range(MAX_REDIRECTS + 1):
        header = {**_REQUEST_HEADER, **more}
        if body is not None:
            header["Content-Type"] = "application/json"
        # The header of the user may contain credentials, which another origin must not receive.
        header |= dict(plan.header) if urlsplit(url)[:2] == urlsplit(plan.url)[:2] else {}
        async with wire.open("GET" if body is None else "POST", url, header=header, body=body) as stream:
            await stream.until(lambda seen: seen.ended or len(seen.events) >= MAX_EVENTS, READ_SECONDS)
            answer = stream.exchange
        location = answer.response_header("location")
        if answer.status not in _REDIRECTS or not location:
            break
        url = resolve(answer, location)
        body = body if _REDIRECTS[answer.status] else None
    return answer


def _verdict(check: StreamCheck, recording: StreamRecording) -> Verdict:
    verdict = Verdict(check.name, check.requirements, check.about)
    began = time.monotonic()
    if not recording.first.is_stream and check.name != "sse.status_and_media_type":
        verdict.outcome, verdict.why = Outcome.SKIPPED, SkipReason.BLOCKED
        verdict.note = "the response is not an event stream"
        return verdict
    verdict.assertions = [*check.judge(recording)]
    verdict.seconds = time.monotonic() - began
    if not verdict.assertions:
        verdict.outcome, verdict.why = Outcome.SKIPPED, SkipReason.NO_OCCASION
        verdict.note = _reason_without_occasion(recording.first)
        return verdict
    settle(verdict)
    return verdict


def _reason_without_occasion(first: RecordedExchange) -> str:
    if first.blocks:
        return "the responses had nothing to which this check applies"
    received = len(first.reader.unfinished)
    ending = (
        "ended" if first.is_whole else "did not end while the suite read it (--patience reads for longer)"
    )
    return f"the stream had no event: {received} bytes without an empty line, and the response {ending}"
