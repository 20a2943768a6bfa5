"""The framing of an event stream: bytes in, events out (`Decoder`), and back (`encode`).

The rules are those of the HTML standard, "Server-sent events", sections "Parsing an event stream" and
"Interpreting an event stream" (https://html.spec.whatwg.org/multipage/server-sent-events.html):

- The stream is UTF-8, whatever its headers say. One byte order mark at its very start is no part of it;
  an invalid sequence becomes U+FFFD.
- CR, LF and CRLF end a line, and nothing else does. A line that begins with a colon is a comment.
- A line is `name:value`, or a name alone; one space after the first colon is no part of the value.
- `data` lines are joined by LF, `event` names the type, `id` the last event ID (ignored if it holds NUL),
  `retry` the reconnection time (ASCII digits only; it takes effect when its line ends). Other names mean nothing.
- A blank line commits the id and dispatches the event, if it has a data line. The type does not outlive the
  blank line; the id does. What no blank line has ended when the stream ends is dropped.

Where the standard leaves room:

- An event without an `id` carries the last event ID, also the one a `Decoder` was created with.
- An empty `retry` is ignored, and a huge one is clamped to `MAX_RETRY_MS`.
- The bytes held for an unfinished event are bounded; passing the bound is an error, `EventTooLargeError`.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, repeat
from typing import Final, NamedTuple

DEFAULT_MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
MAX_RETRY_MS: Final = 2**31 - 1
"""The longest reconnection time that is reported or written, in milliseconds: what a 32-bit timer holds."""

_BOM = b"\xef\xbb\xbf"
_LF, _CR, _COLON = 0x0A, 0x0D, 0x3A
_LONG_LINE = 2**12
"""Bytes of a line beyond which a copy of it costs more than not to make one."""
_MAX_RETRY_DIGITS = len(str(MAX_RETRY_MS))

# The shape that nearly every event has: at most one id and one type, then one data line. Each match begins where
# the last one ended, because the second branch takes all that is left where the first one fails. No quantifier
# gives back characters that it took, so a hostile line costs one pass.
_COMMON_EVENTS = re.compile(r"(?:id: ?+([^\n\0]*+)\n|)(?:event: ?+(.*+)\n|)data: ?+(.*+)\n\n|(?s:.++)")


class Event(NamedTuple):
    """One event of a stream.

    Attributes:
        type: The event's type; `"message"` where the stream names none.
        data: The data lines, joined by LF.
        id: The last event ID when this event was dispatched; empty where the stream has named none yet.
    """

    type: str
    data: str
    id: str


# What `Event._make` does, without the Python frame that it costs per event.
_event_from: Callable[[Iterable[str]], Event] = partial(tuple.__new__, Event)


class EventTooLargeError(ValueError):
    """An event passed the decoder's `max_event_bytes`, or the decoder was fed after that.

    Attributes:
        limit: The bound that was passed, in bytes.
        events: The events that the refused chunk completed before the bound was passed, oldest first. They are
            good, and no call has returned them.
    """

    def __init__(self, message: str, *, limit: int = 0, events: Iterable[Event] = ()) -> None:
        super().__init__(message)
        self.limit = limit
        self.events: list[Event] = list(events)


class Decoder:
    """Decodes one event stream; a new connection needs a new decoder.

    Feed it the bytes as they come: where the chunks are cut changes nothing, neither the events nor, at any byte,
    when they are delivered. An event is delivered with the byte that completes it. Time is linear in the
    bytes fed, and memory is bounded by `max_event_bytes` and the largest chunk.

    Args:
        max_event_bytes: How many bytes an unfinished event may have: its lines so far without their line ends,
            the one that has not ended included. A comment counts only until it ends.
        last_event_id: The last event ID of the connection before this one, for events that come without an id.

    Attributes:
        last_event_id: The last event ID, as of the last blank line: what a reconnection sends.
        retry_ms: The reconnection time in milliseconds, or None while the stream has named none.

    Raises:
        ValueError: `max_event_bytes` is less than 1.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_id",
        "_limit",
        "_line",
        "_size",
        "_start",
        "_stopped",
        "_type",
        "last_event_id",
        "retry_ms",
    )

    last_event_id: str
    retry_ms: int | None
    _start: bytes | None  # the first bytes, until they are known to be a BOM or not
    _after_cr: bool  # a CR ended the last chunk: if an LF comes next, the two are one line end
    _line: bytearray  # the line that has not ended
    _size: int  # bytes of the lines of this event that have ended, comments apart
    _data: bytes | bytearray | None
    _type: bytes | bytearray
    _id: bytes | bytearray | None
    _stopped: bool  # an event passed the limit
    _limit: int

    def __init__(self, *, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES, last_event_id: str = "") -> None:
        if max_event_bytes < 1:
            raise ValueError(f"max_event_bytes must be at least 1, not {max_event_bytes}")
        self.last_event_id = last_event_id
        self.retry_ms = None
        self._start = b""
        self._after_cr = False
        self._forget_event()
        self._stopped = False
        self._limit = max_event_bytes

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[Event]:
        """Take the next bytes of the stream and return the events that they complete, oldest first.

        Args:
            chunk: Any number of bytes, cut anywhere. An empty chunk does nothing.

        Raises:
            EventTooLargeError: An event passed `max_event_bytes`. The decoder has let go of what it held and
                refuses every further chunk with the same error.
            TypeError: `chunk` is not bytes-like.
        """
        if type(chunk) is not bytes:
            chunk = bytes(memoryview(chunk))
        if self._stopped:
            raise EventTooLargeError(
                f"this decoder stopped at an event of more than max_event_bytes={self._limit} bytes and takes no more "
                f"input; open a new connection after event id {self.last_event_id!r}, with a new decoder",
                limit=self._limit,
            )
        if self._start is not None:
            chunk = self._start + chunk
            if _BOM.startswith(chunk):
                self._start = chunk
                return []
            self._start = None
            chunk = chunk.removeprefix(_BOM)
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if _CR in chunk:  # an int, since `in` with bytes costs several times as much
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

        # From here on LF is the only line end.
        events: list[Event] = []
        if _LF in chunk:
            under_way = bool(self._line or self._size)
            if not under_way and chunk.endswith(b"\n\n"):
                # Whole events and no more: what comes from a server that sends each at once.
                self._take_events(chunk, events)
                return events
            begin, end = 0, chunk.rfind(b"\n") + 1
            if under_way:
                blank = chunk.find(b"\n\n", 0, end)
                begin = blank + 2 if blank >= 0 else end
                self._take_lines(chunk[:begin], events)
            blank = chunk.rfind(b"\n\n", begin, end)
            if blank >= 0:
                self._take_events(chunk[begin : blank + 2], events)
                begin = blank + 2
            if begin < end:
                self._take_lines(chunk[begin:end], events)
            chunk = chunk[end:]
        if self._size + len(self._line) + len(chunk) > self._limit:
            raise self._stop(events)
        self._line += chunk
        return events

    def _take_events(self, block: bytes, events: list[Event]) -> None:
        """Interpret events from first to last byte: in one call if all have the common shape, else line by line."""
        if len(block) > self._limit:
            self._take_lines(block, events)
            return
        # ["", id, event, data, "", id, event, data, …, ""]: None for a line that an event does not have.
        fields = _COMMON_EVENTS.split(block.decode("utf-8", "replace"))
        if fields[-2] is None:
            self._take_lines(block, events)
            return
        if len(fields) == 5:  # one event alone
            _, id_, type_, data, _ = fields
            if id_ is not None:
                self.last_event_id = id_
            events.append(_event_from((type_ or "message", data, self.last_event_id)))
            return
        ids, types, datas = fields[1::4], fields[2::4], fields[3::4]
        if not all(ids):
            last = self.last_event_id
            ids = [last if id_ is None else (last := id_) for id_ in ids]
        self.last_event_id = ids[-1]
        named = [type_ or "message" for type_ in types] if any(types) else repeat("message")
        events += map(_event_from, zip(named, datas, ids, strict=False))

    def _take_lines(self, block: bytes, events: list[Event]) -> None:
        """Interpret lines of any kind, the last one ended; the line under way is the beginning of the first."""
        ended = block.split(b"\n")
        del ended[-1]
        lines: Iterable[bytes | bytearray] = ended
        if self._line:
            self._line += ended[0]
            # A line may be as long as an event may be: a long one is not copied, and nothing holds it longer than it
            # is looked at. Short ones cost less as bytes.
            first = self._line if len(self._line) > _LONG_LINE else bytes(self._line)
            lines = chain(iter((first,)), ended[1:])
            self._line = bytearray()
            del first
        data, type_, id_, size = self._data, self._type, self._id, self._size
        value: bytes | bytearray
        for line in lines:
            if not line:
                if id_ is not None:
                    self.last_event_id = id_.decode("utf-8", "replace")
                if data is not None:
                    name = type_.decode("utf-8", "replace") or "message"
                    events.append(_event_from((name, data.decode("utf-8", "replace"), self.last_event_id)))
                data, type_, id_, size = None, b"", None, 0
                continue
            if size + len(line) > self._limit:
                raise self._stop(events)
            if line[0] == _COLON:
                continue
            size += len(line)
            if isinstance(line, bytes):
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
            else:
                field, value = _take_name(line)
            if field == b"data":
                if data is None:
                    data = value
                else:
                    # A list of values would hold several times the bytes that the limit counts.
                    if type(data) is bytes:
                        data = bytearray(data)
                    data += b"\n"
                    data += value
            elif field == b"event":
                type_ = value
            elif field == b"id":
                if 0 not in value:
                    id_ = value
            elif field == b"retry":
                self._set_retry(value)
        self._data, self._type, self._id, self._size = data, type_, id_, size

    def _set_retry(self, value: bytes | bytearray) -> None:
        if not value.isdigit():  # of bytes: ASCII digits, and at least one
            return
        digits = value.lstrip(b"0") or b"0"
        # int() refuses thousands of digits, and they come from the other side.
        self.retry_ms = min(int(digits), MAX_RETRY_MS) if len(digits) <= _MAX_RETRY_DIGITS else MAX_RETRY_MS

    def _forget_event(self) -> None:
        self._line = bytearray()
        self._size = 0
        self._data, self._type, self._id = None, b"", None

    def _stop(self, events: list[Event]) -> EventTooLargeError:
        self._stopped = True
        self._forget_event()
        return EventTooLargeError(
            f"an event has more than max_event_bytes={self._limit} bytes (the last event ID before it is "
            f"{self.last_event_id!r}); raise the limit, or drop the connection and resume after that id",
            limit=self._limit,
            events=events,
        )


def _take_name(line: bytearray) -> tuple[bytes, bytearray]:
    """A line's name and value. The line becomes the value: what stands before it is taken off in place."""
    colon = line.find(b":")
    end = colon if colon >= 0 else len(line)
    field = bytes(line[:end])
    del line[: end + 1 + (line[end + 1 : end + 2] == b" ")]
    return field, line


def encode(
    data: str,
    *,
    id: str | None = None,  # noqa: A002 -- the field's name
    event: str | None = None,
    retry_ms: int | None = None,
) -> bytes:
    """Write one event, so that a decoder reads back the same data, id and type.

    A space follows a colon only where the value begins with one. Data of several lines, parted by LF, takes a
    `data` line for each.

    Args:
        data: The event's data.
        id: The last event ID from this event on; an empty one resets it. None leaves it as it is.
        event: The event's type. None leaves it `"message"`.
        retry_ms: The reconnection time from this event on, in milliseconds.

    Raises:
        ValueError: A value that no event stream can carry: data with CR (alone or before LF), which would arrive
            as LF; an id with NUL, CR or LF; a type with CR or LF, or an empty one, which would arrive as
            `"message"`; a `retry_ms` below 0 or above `MAX_RETRY_MS`; a lone surrogate (`UnicodeEncodeError`).
    """
    frame = ""
    if retry_ms is not None:
        if not 0 <= retry_ms <= MAX_RETRY_MS:
            raise ValueError(f"retry_ms must be 0 to {MAX_RETRY_MS}, not {retry_ms}")
        frame = f"retry:{retry_ms:d}\n"
    if id is not None:
        if "\0" in id or "\r" in id or "\n" in id:
            raise ValueError(f"an event's id cannot hold NUL, CR or LF: {id!r}")
        frame += _line("id", id)
    if event is not None:
        if not event or "\r" in event or "\n" in event:
            raise ValueError(f"an event's type cannot be empty or hold CR or LF: {event!r}")
        frame += _line("event", event)
    if "\r" in data:
        index = data.index("\r")
        raise ValueError(
            f"an event's data cannot hold CR (index {index}); send LF, or the text as a JSON string"
        )
    if "\n" in data:
        frame += "".join([_line("data", line) for line in data.split("\n")])
    else:
        frame += _line("data", data)
    return f"{frame}\n".encode()


def _line(name: str, value: str) -> str:
    return f"{name}: {value}\n" if value[:1] == " " else f"{name}:{value}\n"
