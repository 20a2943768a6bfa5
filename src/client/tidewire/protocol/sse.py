"""Server-sent events: an incremental decoder (`Decoder`) and an encoder (`encode`).

The decoder follows the HTML standard, "Server-sent events", sections "Parsing an event stream" and "Interpreting an
event stream" (https://html.spec.whatwg.org/multipage/server-sent-events.html):

- The stream is decoded as UTF-8, whatever charset its headers name. A byte order mark at the start of the stream is
  skipped. Invalid byte sequences are replaced by U+FFFD.
- A line ends with CR, LF or CRLF. A line that begins with a colon is a comment.
- Any other line is a field, `name:value` or a name alone. One space after the first colon is not part of the value.
- The values of several `data` fields are joined with LF. The field `event` sets the type of the event. The field `id` sets
  the last event ID, and is ignored if its value contains NUL. The field `retry` sets the reconnection time, and is ignored
  if its value contains anything but ASCII digits. Fields with other names are ignored.
- A blank line ends an event. The event is dispatched if it has a `data` field. The type is then reset, but the last event
  ID is kept. If the stream ends before the blank line, the event is dropped.

The standard leaves some cases open. This decoder handles them as follows:

- An event without an `id` field has the last event ID. This may be the ID with which the `Decoder` was created, or that
  of a block without data. The attribute `has_id` of such an event is false.
- A `retry` field with an empty value is ignored. A value above `MAX_RETRY_MS` is reduced to `MAX_RETRY_MS`.
- The memory for an unfinished event is limited. If an event exceeds the limit, the decoder raises `EventTooLargeError`.
"""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, NamedTuple

DEFAULT_MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
MAX_RETRY_MS: Final = 2**31 - 1
"""Maximum reconnection time that is decoded or encoded, in milliseconds. It is the maximum of a 32-bit timer."""

_BOM = b"\xef\xbb\xbf"
_LF, _CR, _COLON = 0x0A, 0x0D, 0x3A
_LONG_LINE = 2**12
"""Size of an unfinished line, in bytes, above which the line is parsed in place instead of being copied to `bytes`."""
_MAX_RETRY_DIGITS = len(str(MAX_RETRY_MS))

# Nearly every event has at most one `id` line and one `event` line, followed by one `data` line. The first branch matches
# such an event. If it does not match, the second branch consumes the remaining text, so that each match begins at the end of
# the previous match. All quantifiers are possessive, so that even a hostile line is scanned only once.
_COMMON_EVENTS = re.compile(r"(?:id: ?+([^\n\0]*+)\n|)(?:event: ?+(.*+)\n|)data: ?+(.*+)\n\n|(?s:.++)")


class Event(NamedTuple):
    """A decoded event.

    Attributes:
        type: The type of the event. It is `"message"` if the event has no `event` line.
        data: The values of the `data` lines, joined with LF.
        id: The last event ID at the end of the event. It is empty if the stream has not contained an id yet.
    """

    type: str
    data: str
    id: str

    @property
    def has_id(self) -> bool:
        """Whether the event's own block has an `id` field. If not, `id` is that of an earlier block."""
        return True


class EventWithoutId(Event):
    """A decoded event whose own block has no `id` field. It equals an `Event` with the same attributes."""

    __slots__ = ()

    @property
    def has_id(self) -> bool:
        """Whether the event's own block has an `id` field. Always false for this class."""
        return False


class EventTooLargeError(ValueError):
    """An event exceeded the decoder's `max_event_bytes`, or `feed` was called again after that error.

    Attributes:
        limit: The limit that was exceeded, in bytes.
        events: Events in the rejected chunk that were complete before the limit was exceeded, oldest first. `feed` has not
            returned these events.
    """

    def __init__(self, message: str, *, limit: int = 0, events: Iterable[Event] = ()) -> None:
        super().__init__(message)
        self.limit = limit
        self.events: list[Event] = list(events)


class Decoder:
    """Incremental decoder for one event stream. Create a new decoder for each connection.

    Pass the received bytes to `feed` in chunks of any size. The boundaries of the chunks do not affect the events. Each
    event is returned by the call that receives its last byte. Decoding takes time linear in the number of bytes. The memory
    is limited by `max_event_bytes` and by the size of the largest chunk.

    Args:
        max_event_bytes: Maximum size of an unfinished event, in bytes. All lines of the event count, without their line
            ends. A comment counts only until its line ends.
        last_event_id: The last event ID of the previous connection. Events without an id have this ID.

    Attributes:
        last_event_id: The last event ID, updated at each blank line. Send it as `Last-Event-ID` when you reconnect.
        retry_ms: The reconnection time in milliseconds, or None if the stream has not contained a `retry` line.

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
    _start: bytes | None
    """First bytes of the stream, as long as they may be part of a byte order mark. None afterwards."""
    _after_cr: bool
    """Whether the previous chunk ended with CR. If so, an LF at the start of the next chunk must be skipped."""
    _line: bytearray
    """The last line, if the end of this line has not been received yet."""
    _size: int
    """Size of the finished lines of the current event, in bytes, without comments."""
    _data: bytes | bytearray | None
    _type: bytes | bytearray
    _id: bytes | bytearray | None
    _stopped: bool
    """Whether an event has exceeded the limit."""
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
        """Decode the next bytes of the stream and return the events that they complete, oldest first.

        Args:
            chunk: The next bytes of the stream. A chunk may end within an event or a line. An empty chunk has no effect.

        Raises:
            EventTooLargeError: An event exceeded `max_event_bytes`. The decoder drops the unfinished event and raises
                this error on every later call.
            TypeError: `chunk` is not bytes-like.
        """
        if type(chunk) is not bytes:
            chunk = bytes(memoryview(chunk))
        if self._stopped:
            raise EventTooLargeError(
                f"this decoder has stopped, because an event was larger than max_event_bytes={self._limit} bytes; reconnect "
                f"with Last-Event-ID {self.last_event_id!r} and a new decoder",
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
        if (
            _CR in chunk
        ):  # `_CR` is an int, because searching for an int is several times faster than searching for a bytes object
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

        # All line ends are LF from here on.
        events: list[Event] = []
        if _LF in chunk:
            unfinished = bool(self._line or self._size)
            if not unfinished and chunk.endswith(b"\n\n"):  # usual if the server sends each event separately
                self._take_events(chunk, events)
                return events
            begin, end = 0, chunk.rfind(b"\n") + 1
            if unfinished:
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
        """Decode complete events.

        If all of them have the usual shape, one regular expression decodes them. Line by line, tokens would be decoded at
        1.3 to 1.5 times the speed of httpx-sse instead of 2.7 to 2.9 times, which misses the target of 1.5 (bench/decoder.py).
        """
        # The list is ["", id, event, data, "", id, event, data, …, ""]. The list contains None for each line that an event
        # does not have.
        fields: list[Any] = (
            _COMMON_EVENTS.split(block.decode("utf-8", "replace"))
            if len(block) <= self._limit
            else [None, ""]
        )
        if fields[-2] is None:
            self._take_lines(block, events)
            return
        each = iter(fields)
        for _, id_, type_, data in zip(each, each, each, each, strict=False):
            if id_ is None:
                events.append(EventWithoutId(type_ or "message", data, self.last_event_id))
            else:
                self.last_event_id = id_
                events.append(Event(type_ or "message", data, id_))

    def _take_lines(self, block: bytes, events: list[Event]) -> None:
        """Decode complete lines of any kind. The first line in `block` continues the unfinished line in `_line`."""
        ended = block.split(b"\n")
        del ended[-1]
        lines: Iterable[bytes | bytearray] = ended
        if self._line:
            self._line += ended[0]
            # A line can be as long as `max_event_bytes`. To limit the memory, do not copy long lines, and do not keep
            # references to them after they were parsed. Convert short lines to bytes, because operations on bytes are
            # faster.
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
                    kind = EventWithoutId if id_ is None else Event
                    events.append(kind(name, data.decode("utf-8", "replace"), self.last_event_id))
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
                    # Do not collect the values in a list. A list of many short values would need several times the memory
                    # of their text.
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
        if not value.isdigit():  # `bytes.isdigit` requires at least one byte, and accepts only ASCII digits
            return
        digits = value.lstrip(b"0") or b"0"
        # Check the number of digits first, because `int` raises ValueError for thousands of digits.
        self.retry_ms = min(int(digits), MAX_RETRY_MS) if len(digits) <= _MAX_RETRY_DIGITS else MAX_RETRY_MS

    def _forget_event(self) -> None:
        self._line = bytearray()
        self._size = 0
        self._data, self._type, self._id = None, b"", None

    def _stop(self, events: list[Event]) -> EventTooLargeError:
        self._stopped = True
        self._forget_event()
        return EventTooLargeError(
            f"an event is larger than max_event_bytes={self._limit} bytes (the event before it has the id "
            f"{self.last_event_id!r}); raise the limit, or close the connection and resume after this id",
            limit=self._limit,
            events=events,
        )


def _take_name(line: bytearray) -> tuple[bytes, bytearray]:
    """Split a line into its name and its value. To avoid a copy of the value, the name is removed from `line` in place."""
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
    """Encode one event as a server-sent event.

    The result has one `data` line for each line of the data. A colon is followed by a space only if the value begins with a
    space.

    Args:
        data: The data of the event. Its lines are separated by LF.
        id: The new last event ID. An empty string resets the ID. None keeps the current ID.
        event: The type of the event. None means the default type, `"message"`.
        retry_ms: The new reconnection time in milliseconds.

    Raises:
        ValueError: A decoder would not read the same values back, for one of these reasons: the data contains CR; the
            id contains NUL, CR or LF; the type is empty or contains CR or LF; `retry_ms` is not between 0 and
            `MAX_RETRY_MS`; a value contains a lone surrogate (`UnicodeEncodeError`).
    """
    frame = ""
    if retry_ms is not None:
        if not 0 <= retry_ms <= MAX_RETRY_MS:
            raise ValueError(f"retry_ms must be from 0 to {MAX_RETRY_MS}, not {retry_ms}")
        frame = f"retry:{retry_ms:d}\n"
    if id is not None:
        if "\0" in id or "\r" in id or "\n" in id:
            raise ValueError(f"the id of an event cannot contain NUL, CR or LF: {id!r}")
        frame += _line("id", id)
    if event is not None:
        if not event or "\r" in event or "\n" in event:
            raise ValueError(f"the type of an event cannot be empty or contain CR or LF: {event!r}")
        frame += _line("event", event)
    if "\r" in data:
        index = data.index("\r")
        raise ValueError(
            f"the data of an event cannot contain CR (found at index {index}); use LF, or send the text as a JSON string"
        )
    if "\n" in data:
        frame += "".join([_line("data", line) for line in data.split("\n")])
    else:
        frame += _line("data", data)
    return f"{frame}\n".encode()


def _line(name: str, value: str) -> str:
    return f"{name}: {value}\n" if value[:1] == " " else f"{name}:{value}\n"
