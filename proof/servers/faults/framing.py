"""Faulty servers with errors in the header, framing, beginning or end of event streams."""

import asyncio
import gzip
import re

from proof.servers.fault_helpers import (
    DONE,
    drop_header,
    refuse,
    replace_events,
    rewrite_events,
    set_request_header,
)
from proof.servers.fault_proxy import CUT, HANG
from proof.servers.faults import faulty_server


@faulty_server("TW-FRM-001", "framing.stream_request_returns_an_event_stream")
def stream_media_type_is_text_plain(hooks):
    """Event streams have the media type `text/plain`."""

    def head(exchange, status, headers):
        if headers["content-type"].startswith("text/event-stream"):
            headers["content-type"] = "text/plain"

    hooks.heads.append(head)


@faulty_server("TW-FRM-002", "framing.streams_have_required_headers")
def stream_without_no_store(hooks):
    """Event streams lack `Cache-Control: no-store`."""
    drop_header(hooks, "cache-control")


@faulty_server("TW-FRM-006", "framing.events_are_sent_without_delay")
def stream_buffered_until_done(hooks):
    """The whole stream is buffered and sent only after `done`."""

    def plain(exchange, frame):
        exchange.own["buffered"] = exchange.own.get("buffered", b"") + frame
        return exchange.own["buffered"] if DONE in frame else b""

    hooks.frames.append(plain)


@faulty_server("TW-FRM-004", "framing.streams_have_no_content_coding")
def stream_compressed_if_accepted(hooks):
    """Event streams are compressed if the client accepts gzip."""

    def head(exchange, status, headers):
        if "gzip" in exchange.header("accept-encoding") and "event-stream" in headers.get("content-type", ""):
            headers["content-encoding"] = "gzip"

    hooks.heads.append(head)
    hooks.frames.append(
        lambda exchange, frame: (
            gzip.compress(frame) if "gzip" in exchange.header("accept-encoding") else frame
        )
    )


@faulty_server("TW-FRM-012", "framing.streams_follow_the_grammar")
def raw_newline_in_data(hooks):
    """The data of an event contains a raw line feed."""
    rewrite_events(hooks, b'"protocol":', b'"protocol":\n')


@faulty_server("TW-FRM-011", "framing.streams_follow_the_grammar")
def two_data_lines(hooks):
    """The data of an event is split into two `data` fields."""
    rewrite_events(hooks, b'"protocol":', b'"protocol":\ndata:')


@faulty_server("TW-FRM-013", "framing.streams_follow_the_grammar")
def no_blank_line_after_the_last_event(hooks):
    """The last event has no terminating blank line."""
    replace_events(hooks, DONE, lambda frame: frame[:-1])


@faulty_server("TW-FRM-012", "framing.streams_follow_the_grammar")
def lone_cr_inside_json(hooks):
    """The data of an event contains a raw CR."""
    rewrite_events(hooks, b'"protocol":', b'"protocol":\r')


@faulty_server("TW-FRM-009", "framing.streams_follow_the_grammar")
def invalid_utf8(hooks):
    """Event data is not valid UTF-8."""
    rewrite_events(hooks, b'{"protocol"', b'{"\xff":1,"protocol"')


@faulty_server("TW-FRM-010", "framing.streams_follow_the_grammar")
def bom_before_every_event(hooks):
    """Every event starts with a byte order mark."""
    hooks.frames.append(lambda exchange, frame: b"\xef\xbb\xbf" + frame)


@faulty_server("TW-FRM-015", "framing.events_match_their_schemas")
def logged_events_without_id(hooks):
    """Some logged events have no id."""
    rewrite_events(hooks, rb"^id:\d+-\d*3\n", b"")


@faulty_server("TW-FRM-080", "framing.streams_follow_the_grammar")
def id_without_data(hooks):
    """Some ids are in a separate block without data, before their event."""
    rewrite_events(hooks, rb"^(id:\d+-\d*3\n)", b"\\1\n\\1")


@faulty_server("TW-FRM-014", "framing.events_match_their_schemas")
def hello_with_an_id(hooks):
    """`hello` has an id."""
    replace_events(hooks, b"event:hello", lambda frame: b"id:1-1\n" + frame)


@faulty_server(
    "TW-FRM-014",
    "framing.events_match_their_schemas",
    "queue_progress_ping_goaway.idle_stream_receives_pings",
)
def ping_with_an_id(hooks):
    """A ping has an id, which changes the cursor of an EventSource."""
    replace_events(hooks, b"event:ping", lambda frame: b"id:1-1\n" + frame)


@faulty_server("TW-RES-001", "framing.events_match_their_schemas")
def nul_in_an_id(hooks):
    """An event id contains NUL."""
    rewrite_events(hooks, rb"^id:(\d+-\d*3)\n", b"id:\\1\0\n")


@faulty_server("TW-FRM-051", "framing.log_ends_with_exactly_one_done")
def stream_without_done(hooks):
    """Streams end without `done`."""
    replace_events(hooks, DONE, lambda frame: b":end\n\n")


@faulty_server("TW-FRM-051", "framing.log_ends_with_exactly_one_done")
def done_sent_twice(hooks):
    """`done` is sent twice."""
    replace_events(hooks, DONE, lambda frame: frame * 2)


@faulty_server("TW-FRM-054", "framing.closing_event_is_last")
def ping_after_done(hooks):
    """A ping follows `done`."""
    extra = b'event:ping\ndata:{"head":"1-1"}\n\n'
    replace_events(hooks, DONE, lambda frame: frame + extra)


@faulty_server("TW-FRM-007", "framing.stream_closes_after_done")
def connection_open_after_done(hooks):
    """The connection stays open after `done`."""

    replace_events(hooks, DONE, lambda frame: frame + HANG)


@faulty_server("TW-FRM-051", "framing.log_ends_with_exactly_one_done")
def connection_dropped_when_job_fails(hooks):
    """The connection is dropped when a job fails."""
    replace_events(hooks, b'"failed"', lambda frame: CUT)


@faulty_server("TW-FRM-061", "framing.streams_begin_with_hello")
def retry_is_not_a_number(hooks):
    """`retry` is not a number."""
    rewrite_events(hooks, rb"retry:\d+", b"retry:abc")


@faulty_server("TW-FRM-018", "framing.retry_is_jittered")
def retry_is_an_hour(hooks):
    """`retry` is an hour."""
    rewrite_events(hooks, rb"retry:\d+", b"retry:3600000")


@faulty_server(
    "TW-FRM-012",
    "framing.streams_follow_the_grammar",
    "sizes.long_text_is_split_over_several_events",
)
def events_truncated_at_64_kib(hooks):
    """Events are truncated to 64 KiB, as if they were written to a buffer of fixed size."""
    hooks.settings["max_event_bytes"] = 256 * 1024
    hooks.frames.append(lambda exchange, frame: frame if len(frame) <= 65536 else frame[:65534] + b"\n\n")


@faulty_server("TW-FRM-057", "framing.streams_begin_with_hello")
def stream_without_hello(hooks):
    """Streams begin without `hello`."""
    replace_events(hooks, b"event:hello", lambda frame: b"retry:100\n\n")


@faulty_server("TW-FRM-005", "framing.hello_arrives_within_one_second")
def hello_after_1500_ms(hooks):
    """`hello` is sent after 1.5 seconds."""

    async def late(exchange, frame):
        if b"event:hello" in frame:
            await asyncio.sleep(1.5)
        return frame

    hooks.frames.append(late)


@faulty_server("TW-FRM-058", "framing.streams_begin_with_hello")
def hello_names_another_job(hooks):
    """`hello` names another job."""
    rewrite_events(hooks, rb'"job":"[^"]+"', b'"job":"AAAAAAAAAAAAAAAAAAAAAAAA"')


@faulty_server("TW-FRM-043", "framing.events_match_their_schemas")
def hello_without_heartbeat(hooks):
    """`hello` lacks the required member `heartbeat_ms`."""
    rewrite_events(hooks, rb',"heartbeat_ms":\d+', b"")


@faulty_server("TW-FRM-053", "framing.log_ends_with_exactly_one_done")
def done_of_failed_job_without_error(hooks):
    """`done` of a failed job lacks `error`."""
    rewrite_events(hooks, rb',"error":\{[^}]*\}', b"", within=DONE)


@faulty_server("TW-RES-001", "framing.events_match_their_schemas")
def newline_in_an_id(hooks):
    """An event id contains a line feed."""
    rewrite_events(hooks, rb"^id:(\d+)-(\d*3)\n", b"id:\\1-\n\\2\n")


@faulty_server("TW-FRM-008", "framing.unacceptable_stream_request_returns_406")
def accept_header_ignored(hooks):
    """A stream is sent even if `Accept` does not permit its media type."""
    set_request_header(
        hooks, "accept", "text/event-stream", lambda exchange: exchange.path.endswith("/events")
    )


@faulty_server("TW-FRM-006", "framing.events_are_sent_without_delay")
def event_held_until_the_next(hooks):
    """Each event is sent only when the next event is available."""
    hooks.settings["heartbeat"] = 15.0

    def late(exchange, frame):
        before, exchange.own["late"] = exchange.own.get("late", b""), b"" if DONE in frame else frame
        return before + frame if DONE in frame else before

    hooks.frames.append(late)


@faulty_server(
    "TW-FRM-001",
    "framing.streams_have_required_headers",
    "framing.stream_request_returns_an_event_stream",
)
def stream_with_another_charset(hooks):
    """The media type of a stream names a charset other than UTF-8."""
    hooks.heads.append(
        lambda exchange, status, headers: headers.update({"content-type": "text/event-stream; charset=iso-8859-1"})
        if headers.get("content-type", "").startswith("text/event") else None
    )  # fmt: skip


@faulty_server("TW-FRM-060", "framing.streams_begin_with_hello", "resume.ended_job_resumes_from_every_id")
def hello_head_is_always_first_id(hooks):
    """The member `head` of `hello` is always the id of the job's first event."""
    rewrite_events(hooks, rb'"head":"[^"]+"', b'"head":"1-1"', within=b"event:hello")


@faulty_server("TW-OVR-018", "framing.log_ends_with_exactly_one_done")
def failed_job_reported_as_succeeded(hooks):
    """A failed job is reported as succeeded with a null value."""

    def hide(exchange, frame):
        frame = re.sub(rb'\["s","/items/0/error",\{[^}]*\}\]', b'["s","/items/0/value",null]', frame)
        return frame.replace(b'"status":"failed","usage"', b'"status":"succeeded","usage"').replace(
            b'"failed"', b'"succeeded"'
        )

    hooks.frames.append(hide)


@faulty_server("TW-FRM-060", "framing.streams_begin_with_hello", "framing.log_ends_with_exactly_one_done")
def hello_head_is_one_too_high(hooks):
    """The sequence number in the member `head` of `hello` is too high by one."""
    after = lambda found: b'"head":"1-%d"' % (int(found[1]) + 1)  # noqa: E731
    rewrite_events(hooks, rb'"head":"1-(\d+)"', after, within=b"event:hello")


@faulty_server("TW-FRM-008", "framing.unacceptable_stream_request_returns_406")
def accept_wildcard_refused(hooks):
    """`Accept: text/*` is refused for an event stream."""
    refuse(
        hooks,
        lambda exchange: exchange.path.endswith("/events") and exchange.header("accept") == "text/*",
        406,
        "not_acceptable",
    )


@faulty_server("TW-FRM-008", "framing.unacceptable_stream_request_returns_406")
def accept_weight_0_ignored(hooks):
    """A response has a media type to which `Accept` gives the weight 0."""
    weighs = lambda exchange: exchange.path.endswith("/events") and ";q=0" in exchange.header("accept")  # noqa: E731
    set_request_header(hooks, "accept", "*/*", weighs)


@faulty_server("TW-FRM-005", "framing.hello_arrives_within_one_second")
def stream_submit_answered_late(hooks):
    """A request to submit a job that asks for a stream is answered only after 1.3 seconds."""

    async def wait(exchange):
        if exchange.is_submit and "event-stream" in exchange.header("accept"):
            await asyncio.sleep(1.3)

    hooks.requests.append(wait)


@faulty_server("TW-FRM-012", "framing.streams_follow_the_grammar", "framing.hello_arrives_within_one_second")
def event_with_empty_data(hooks):
    """`hello` is followed by an event with empty data."""
    replace_events(hooks, b"event:hello", lambda frame: frame + b"data:\n\n")


@faulty_server("TW-DEP-001", "framing.http_1_0_requests_are_served")
def http_1_0_gets_426(hooks):
    """HTTP/1.0 requests are rejected with 426."""
    refuse(hooks, lambda exchange: exchange.scope["http_version"] == "1.0", 426, "edge.upgrade_required")
