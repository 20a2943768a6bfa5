"""Checks of servers for `tidewire conformance --profile sse`, which tests any URL that streams server-sent events.

The checks judge recorded responses. The decorator `stream_check` registers a function as the check `sse.NAME`. The function
yields an `Assertion` for each fact that it judges. If it yields none, the check had nothing to judge and is skipped.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from tidewire_conformance import specification
from tidewire_conformance.judging.verdict import Assertion
from tidewire_conformance.wire.event_stream_decoder import BYTE_ORDER_MARK, Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

HELD_SECONDS: Final = 0.1
"""Minimum delay, in seconds, of the empty line after an event for which the event counts as held back."""
FIELDS: Final = frozenset({"event", "data", "id", "retry"})
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_EMPTY_LINE: Final = re.compile(rb"(?:\r\n|\r|\n)\Z")


@dataclass
class StreamRecording:
    """Responses of a server to requests for one event stream."""

    first: RecordedExchange
    """Response to the request without `Last-Event-ID`."""
    resumed: RecordedExchange | None = None
    """Response to a request with the id `cursor`, or None if the stream has no ids."""
    cursor: str = ""
    earlier_ids: frozenset[str] = field(default=frozenset())
    """Ids of the first response up to `cursor`, which is one of them."""
    later_ids: tuple[str, ...] = ()
    """Ids of the first response after `cursor`, in their order."""

    @property
    def streams(self) -> list[RecordedExchange]:
        """Responses that are event streams."""
        return [each for each in (self.first, self.resumed) if each is not None and each.is_stream]

    def blocks(self) -> Iterator[tuple[RecordedExchange, Block]]:
        """Yield each complete block with its response."""
        for stream in self.streams:
            for block in stream.blocks:
                yield stream, block


Judge = Callable[[StreamRecording], Iterator[Assertion]]


@dataclass(frozen=True)
class StreamCheck:
    """Check that judges the recorded responses of one event stream."""

    name: str
    requirements: tuple[str, ...]
    about: str
    judge: Judge


STREAM_CHECKS: Final[dict[str, StreamCheck]] = {}
"""All checks by name, in the order of the requirements."""


def stream_check(requirement: str) -> Callable[[Judge], Judge]:
    """Register a check of one requirement."""
    if requirement not in specification.requirements():
        raise ValueError(f"the specification has no requirement {requirement}")

    def enter(judge: Judge) -> Judge:
        name = f"sse.{judge.__name__}"
        STREAM_CHECKS[name] = StreamCheck(
            name, (requirement,), " ".join((judge.__doc__ or "").split()), judge
        )
        return judge

    return enter


@stream_check("TW-SSE-001")
def status_and_media_type(found: StreamRecording) -> Iterator[Assertion]:
    """The response has status 200 and the media type `text/event-stream`."""
    first = found.first
    got = f"{first.status}, {first.response_header('content-type') or 'no Content-Type'}"
    yield Assertion("TW-SSE-001", first.is_stream, "200, text/event-stream", got, first)


@stream_check("TW-SSE-002")
def no_other_charset(found: StreamRecording) -> Iterator[Assertion]:
    """The parameter `charset` of the media type is absent or `utf-8`."""
    for stream in found.streams:
        kind = stream.response_header("content-type")
        charset = re.search(r';\s*charset\s*=\s*"?([^";\s]+)', kind, re.IGNORECASE)
        holds = charset is None or charset[1].lower() in {"utf-8", "utf8"}
        yield Assertion("TW-SSE-002", holds, "no charset, or utf-8", kind, stream)


@stream_check("TW-SSE-003")
def valid_utf8(found: StreamRecording) -> Iterator[Assertion]:
    """All complete blocks are UTF-8."""
    for stream, block in found.blocks():
        try:
            block.raw.decode()
        except UnicodeDecodeError as error:
            yield Assertion("TW-SSE-003", False, "UTF-8", str(error), stream, block)
        else:
            yield Assertion("TW-SSE-003", True)


@stream_check("TW-SSE-004")
def empty_line_after_each_event(found: StreamRecording) -> Iterator[Assertion]:
    """A response that the server ends has no event without an empty line after it."""
    for stream in found.streams:
        rest = stream.reader.unfinished.removeprefix(BYTE_ORDER_MARK)
        fields = [line for line in _LINE_END.split(rest) if line and not line.startswith(b":")]
        if stream.is_whole:
            got = f"{len(rest)} bytes after the last empty line: {rest[-80:]!r}"
            yield Assertion("TW-SSE-004", not fields, "an empty line after the last event", got, stream)


@stream_check("TW-SSE-005")
def known_field_names(found: StreamRecording) -> Iterator[Assertion]:
    """Each line is a comment, or a field with one of the four names of the standard."""
    for stream, block in found.blocks():
        others = [name for name, _ in block.fields if name not in FIELDS]
        yield Assertion("TW-SSE-005", not others, "event, data, id or retry", f"{others[:3]}", stream, block)


@stream_check("TW-SSE-006")
def types_only_with_data(found: StreamRecording) -> Iterator[Assertion]:
    """A block with an `event` field has a `data` field."""
    for stream, block in found.blocks():
        if block.values("event"):
            yield Assertion("TW-SSE-006", block.is_event, "a data field", "none", stream, block)


@stream_check("TW-SSE-007")
def ids_without_nul(found: StreamRecording) -> Iterator[Assertion]:
    """No `id` field contains U+0000."""
    for stream, block in found.blocks():
        for value in block.values("id"):
            yield Assertion("TW-SSE-007", b"\0" not in value, "no U+0000", repr(value), stream, block)


@stream_check("TW-SSE-008")
def retry_is_a_number(found: StreamRecording) -> Iterator[Assertion]:
    """Each `retry` field consists of ASCII digits."""
    for stream, block in found.blocks():
        for value in block.values("retry"):
            holds = re.fullmatch(rb"[0-9]+", value) is not None
            yield Assertion("TW-SSE-008", holds, "ASCII digits", repr(value), stream, block)


@stream_check("TW-SSE-009")
def events_are_not_held_back(found: StreamRecording) -> Iterator[Assertion]:
    """The empty line that ends an event does not arrive much later than the event, together with the next one."""
    for stream in found.streams:
        for block, gap, with_next in _empty_lines(stream):
            held = gap >= HELD_SECONDS and with_next
            got = f"{gap * 1000:.0f} ms later, together with the next event"
            yield Assertion("TW-SSE-009", not held, "the empty line with the event", got, stream, block)


def _empty_lines(stream: RecordedExchange) -> Iterator[tuple[Block, float, bool]]:
    """Yield each event that is followed by a pause, with two facts about the empty line that ends the event.

    The facts are the seconds from the last byte of the event to the empty line, and whether the empty line arrived in the
    same chunk as the next bytes. An event without a pause after it cannot show whether the server holds events back.
    """
    ends = [*accumulate(len(data) for _, data in stream.chunks)]
    position = len(BYTE_ORDER_MARK) * stream.reader.marks
    chunk = 0
    spans: list[tuple[Block, float, float, bool]] = []
    for block in stream.blocks:
        position += len(block.raw)
        empty = _EMPTY_LINE.search(block.raw)
        before = position - (len(empty[0]) if empty else 0)
        while ends[chunk] < before:
            chunk += 1
        sent = stream.chunks[chunk][0]
        while ends[chunk] < position:
            chunk += 1
        spans.append((block, sent, stream.chunks[chunk][0], ends[chunk] > position))
    for (block, sent, done, with_next), (_, next_sent, _, _) in pairwise(spans):
        if block.is_event and next_sent - sent >= HELD_SECONDS:
            yield block, done - sent, with_next


@stream_check("TW-SSE-010")
def no_content_coding(found: StreamRecording) -> Iterator[Assertion]:
    """The server applies no content coding, because the request accepts only `identity`."""
    coding = found.first.response_header("content-encoding").lower() or "identity"
    if found.first.is_stream:
        yield Assertion("TW-SSE-010", coding == "identity", "no Content-Encoding", coding, found.first)


@stream_check("TW-SSE-011")
def not_cached(found: StreamRecording) -> Iterator[Assertion]:
    """`Cache-Control` contains `no-store` or `no-cache`."""
    for stream in found.streams[:1]:
        value = stream.response_header("cache-control")
        holds = bool(stream.response_words("cache-control") & {"no-store", "no-cache"})
        yield Assertion("TW-SSE-011", holds, "no-store or no-cache", value or "no Cache-Control", stream)


@stream_check("TW-SSE-012")
def continues_after_the_last_event_id(found: StreamRecording) -> Iterator[Assertion]:
    """A stream that is requested with the id of an event continues after this event."""
    if found.resumed is None:
        return
    if not found.resumed.is_stream:
        # With 204, the server says that nothing follows.
        got = str(found.resumed.status)
        yield Assertion(
            "TW-SSE-012", found.resumed.status == 204, "an event stream, or 204", got, found.resumed
        )
        return
    again = [block for block in found.resumed.blocks if block.id in found.earlier_ids]
    expected = f"no event with the id {found.cursor!r} or an earlier id"
    got = f"an event with the id {again[0].id!r}" if again else ""
    yield Assertion("TW-SSE-012", not again, expected, got, found.resumed, again[0] if again else None)
    # If no later id arrives, the server may have sent new events instead, for example because it keeps no old events.
    known = next((block for block in found.resumed.blocks if block.id in found.later_ids), None)
    if known is not None:
        following = found.later_ids[0]
        expected = (
            f"the event with the id {following!r}, which followed {found.cursor!r} in the first response"
        )
        got = f"first an event with the id {known.id!r}"
        yield Assertion("TW-SSE-012", known.id == following, expected, got, found.resumed, known)
