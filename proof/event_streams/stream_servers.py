"""Servers of event streams for the proof: faulty ones, each with one fault, and unusual but correct ones.

A response is a sequence of bytes and numbers. Bytes are sent at once, and a number is a pause in seconds.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Steps = Sequence[bytes | float]
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n"
)
PAUSE = 0.25


@dataclass(frozen=True)
class StreamServer:
    """Server whose responses are fixed, apart from `Last-Event-ID`."""

    name: str
    description: str
    respond: Callable[[str], Steps]
    """Function that returns the response to a request. Its argument is the `Last-Event-ID`, or an empty string."""
    requirement: str = ""
    """Requirement that the server violates; empty for a correct server."""
    check: str = ""


def stream(*body: bytes | float, head: bytes = HEAD) -> Callable[[str], Steps]:
    """Return the function for a server that ignores `Last-Event-ID`."""
    return lambda _: [head + b"\r\n", *body]


def numbered(last_id: str, last: int = 3) -> Steps:
    """Send the events 1 to `last` that follow an id."""
    numbers = range(int(last_id or 0) + 1, last + 1)
    return [HEAD + b"\r\n", *(b"id: %d\ndata: %d\n\n" % (number, number) for number in numbers)]


def _faulty(
    requirement: str, check: str, name: str, description: str, respond: Callable[[str], Steps]
) -> StreamServer:
    return StreamServer(name, description, respond, requirement, f"sse.{check}")


STREAM_SERVERS = {
    server.name: server
    for server in (
        _faulty("TW-SSE-001", "status_and_media_type", "plain_text", "The media type is text/plain.",
                stream(b"data: a\n\n", head=HEAD.replace(b"event-stream", b"plain"))),
        _faulty("TW-SSE-001", "status_and_media_type", "status_202", "The status is 202.",
                stream(b"data: a\n\n", head=HEAD.replace(b"200", b"202"))),
        _faulty("TW-SSE-002", "no_other_charset", "charset_latin_1", "The charset is iso-8859-1.",
                stream(b"data: a\n\n", head=HEAD.replace(b"event-stream", b"event-stream; charset=iso-8859-1"))),
        _faulty("TW-SSE-003", "valid_utf8", "latin_1", "The data is written in ISO 8859-1.", stream(b"data: \xe9\n\n")),
        _faulty("TW-SSE-004", "empty_line_after_each_event", "no_empty_line_at_the_end",
                "The last event has no empty line.", stream(b"data: a\n\ndata: b\n")),
        _faulty("TW-SSE-004", "empty_line_after_each_event", "no_empty_lines", "No event has an empty line.",
                stream(b"data: a\n", b"data: b\n")),
        _faulty("TW-SSE-005", "known_field_names", "capital_letters", "The names of fields have capital letters.",
                stream(b"Event: t\nData: a\n\ndata: b\n\n")),
        _faulty("TW-SSE-005", "known_field_names", "mark_before_each_event", "Each event begins with a byte order mark.",
                stream(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n")),
        _faulty("TW-SSE-005", "known_field_names", "raw_newline_in_data", "A newline in the data is not written as a field.",
                stream(b"data: a\nb\n\n")),
        _faulty("TW-SSE-006", "types_only_with_data", "type_without_data", "An event has a type and no data.",
                stream(b"event: ping\n\ndata: a\n\n")),
        _faulty("TW-SSE-007", "ids_without_nul", "nul_in_an_id", "An id contains U+0000.", stream(b"id: 1\0\ndata: a\n\n")),
        _faulty("TW-SSE-008", "retry_is_a_number", "retry_in_seconds", "A retry field has a unit.",
                stream(b"retry: 3s\ndata: a\n\n")),
        _faulty("TW-SSE-008", "retry_is_a_number", "empty_retry", "A retry field is empty.", stream(b"retry:\ndata: a\n\n")),
        _faulty("TW-SSE-009", "events_are_not_held_back", "empty_line_before_each_event",
                "The empty line of an event is sent with the next event.",
                stream(b"data: a\n", PAUSE, b"\ndata: b\n", PAUSE, b"\ndata: c\n\n")),
        _faulty("TW-SSE-010", "no_content_coding", "unasked_coding", "A content coding is declared that the request excludes.",
                stream(b"data: a\n\n", head=HEAD + b"Content-Encoding: x-none\r\n")),
        _faulty("TW-SSE-011", "not_cached", "may_be_cached", "Caches may store the stream.",
                stream(b"data: a\n\n", head=HEAD.replace(b"no-store", b"max-age=60"))),
        _faulty("TW-SSE-012", "continues_after_the_last_event_id", "cursor_ignored", "Last-Event-ID is ignored.",
                lambda _: numbered("")),
        _faulty("TW-SSE-012", "continues_after_the_last_event_id", "cursor_event_sent_again",
                "The event with the requested id is sent again.", lambda last: numbered(str(int(last or 1) - 1))),
        _faulty("TW-SSE-012", "continues_after_the_last_event_id", "event_after_the_cursor_lost",
                "The event after the requested id is lost.", lambda last: numbered(str(int(last or -1) + 1), 5)),
        StreamServer("plain", "Events with ids, which continue after Last-Event-ID.", numbered),
        StreamServer("crlf", "Lines end in CR LF.", stream(b"data: a\r\n\r\ndata: b\r\n\r\n")),
        StreamServer("cr", "Lines end in CR.", stream(b"data: a\r\rdata: b\r\r")),
        StreamServer("one_mark", "The stream begins with a byte order mark.", stream(b"\xef\xbb\xbfdata: a\n\n")),
        StreamServer("comments", "Comments between and within events.", stream(b": hi\n\ndata: a\n: hi\n\n:\n\n:")),
        StreamServer("single_bytes", "Each byte is sent alone.", stream(*(b"%c" % each for each in b"event: t\ndata: \xc3\xa9\n\n"))),
        StreamServer("pauses", "Complete events with pauses between them.", stream(b"data: a\n\n", PAUSE, b"data: b\n\n")),
        StreamServer("pause_within", "A pause within an event.", stream(b"data: a\n", PAUSE, b"data: b\n\n", b"data: c\n\n")),
        StreamServer("id_without_data", "A block has only an id.",
                     lambda last: [HEAD + b"\r\n", b"data: b\n\n" if last else b"id: 1\n\nretry: 100\n\ndata: a\n\n"]),
        StreamServer("nothing_follows", "The response to Last-Event-ID is 204.",
                     lambda last: [b"HTTP/1.1 204 No Content\r\n\r\n"] if last else numbered("")),
        StreamServer("capital_media_type", "The media type has capital letters and a parameter.",
                     stream(b"data: a\n\n", head=HEAD.replace(b"text/event-stream", b'Text/Event-Stream; Charset="UTF-8"'))),
        StreamServer("no_events", "The stream is empty.", stream()),
    )
}  # fmt: skip


@contextlib.contextmanager
def running_stream_server(name: str) -> Iterator[str]:
    """Run a server in a thread and yield the URL of its stream."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                last_id = ""
                while (line := lines.readline()).strip():
                    if line.lower().startswith(b"last-event-id:"):
                        last_id = line.partition(b":")[2].strip().decode()
                for step in STREAM_SERVERS[name].respond(last_id):
                    time.sleep(step) if isinstance(step, float) else connection.sendall(step)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/events?from=proof"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
