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


@faulty_server("TW-FRM-001", "framing.an_answer_to_a_stream_request_is_an_event_stream")
def content_type_text_plain(hooks):
    """Event streams have the media type `text/plain`."""

    def head(exchange, status, headers):
        if headers["content-type"].startswith("text/event-stream"):
            headers["content-type"] = "text/plain"

    hooks.heads.append(head)


@faulty_server("TW-FRM-002", "framing.streams_have_their_header")
def no_no_store(hooks):
    """Event streams lack `Cache-Control: no-store`."""
    drop_header(hooks, "cache-control")


@faulty_server("TW-FRM-006", "framing.events_are_sent_when_they_are_due")
def held_back_until_done(hooks):
    """The whole stream is buffered until `done`."""

    def plain(exchange, frame):
        exchange.own["buffered"] = exchange.own.get("buffered", b"") + frame
        return exchange.own["buffered"] if DONE in frame else b""

    hooks.frames.append(plain)


@faulty_server("TW-FRM-004", "framing.a_stream_has_no_coding_whatever_is_accepted")
def gzip_where_it_is_accepted(hooks):
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


@faulty_server("TW-FRM-012", "framing.streams_are_framed_as_the_grammar_says")
def raw_newline_in_data(hooks):
    """The data of an event contains a raw line feed."""
    rewrite_events(hooks, b'"protocol":', b'"protocol":\n')


@faulty_server("TW-FRM-011", "framing.streams_are_framed_as_the_grammar_says")
def two_data_lines(hooks):
    """The data of an event is split into two `data` fields."""
    rewrite_events(hooks, b'"protocol":', b'"protocol":\ndata:')


@faulty_server("TW-FRM-013", "framing.streams_are_framed_as_the_grammar_says")
def no_blank_line_after_the_last_event(hooks):
    """The last event has no terminating blank line."""
    replace_events(hooks, DONE, lambda frame: frame[:-1])


@faulty_server("TW-FRM-012", "framing.streams_are_framed_as_the_grammar_says")
def lone_cr_inside_json(hooks):
    """The data of an event contains a raw CR."""
    rewrite_events(hooks, b'"protocol":', b'"protocol":\r')


@faulty_server("TW-FRM-009", "framing.streams_are_framed_as_the_grammar_says")
def invalid_utf8(hooks):
    """Event data is not valid UTF-8."""
    rewrite_events(hooks, b'{"protocol"', b'{"\xff":1,"protocol"')


@faulty_server("TW-FRM-010", "framing.streams_are_framed_as_the_grammar_says")
def bom_before_every_event(hooks):
    """Every event starts with a byte order mark."""
    hooks.frames.append(lambda exchange, frame: b"\xef\xbb\xbf" + frame)


@faulty_server("TW-FRM-015", "framing.events_are_those_of_the_table")
def id_missing_on_some_logged_events(hooks):
    """Some logged events have no id."""
    rewrite_events(hooks, rb"^id:\d+-\d*3\n", b"")


@faulty_server("TW-FRM-014", "framing.events_are_those_of_the_table")
def id_on_an_ephemeral_event(hooks):
    """`hello` has an id."""
    replace_events(hooks, b"event:hello", lambda frame: b"id:1-1\n" + frame)


@faulty_server(
    "TW-FRM-014",
    "framing.events_are_those_of_the_table",
    "queue_progress_ping_goaway.a_silent_stream_is_pinged",
)
def ping_moves_the_cursor(hooks):
    """A ping has an id, which changes the cursor of an EventSource."""
    replace_events(hooks, b"event:ping", lambda frame: b"id:1-1\n" + frame)


@faulty_server("TW-RES-001", "framing.events_are_those_of_the_table")
def nul_in_an_id(hooks):
    """An event id contains NUL."""
    rewrite_events(hooks, rb"^id:(\d+-\d*3)\n", b"id:\\1\0\n")


@faulty_server("TW-FRM-051", "framing.a_job_ends_by_one_done")
def no_terminal_event(hooks):
    """Streams end without `done`."""
    replace_events(hooks, DONE, lambda frame: b":end\n\n")


@faulty_server("TW-FRM-051", "framing.a_job_ends_by_one_done")
def two_terminal_events(hooks):
    """`done` is sent twice."""
    replace_events(hooks, DONE, lambda frame: frame * 2)


@faulty_server("TW-FRM-054", "framing.nothing_follows_the_end")
def events_after_the_terminal(hooks):
    """A ping follows `done`."""
    extra = b'event:ping\ndata:{"head":"1-1"}\n\n'
    replace_events(hooks, DONE, lambda frame: frame + extra)


@faulty_server("TW-FRM-007", "framing.a_stream_is_closed_after_done")
def open_after_the_terminal(hooks):
    """The connection stays open after `done`."""

    replace_events(hooks, DONE, lambda frame: frame + HANG)


@faulty_server("TW-FRM-051", "framing.a_job_ends_by_one_done")
def failure_drops_the_connection(hooks):
    """The connection is dropped when a job fails."""
    replace_events(hooks, b'"failed"', lambda frame: CUT)


@faulty_server("TW-FRM-061", "framing.streams_begin_with_hello")
def retry_abc(hooks):
    """`retry` is not a number."""
    rewrite_events(hooks, rb"retry:\d+", b"retry:abc")


@faulty_server("TW-FRM-018", "framing.retry_is_short_and_drawn_anew")
def retry_of_an_hour(hooks):
    """`retry` is an hour."""
    rewrite_events(hooks, rb"retry:\d+", b"retry:3600000")


@faulty_server(
    "TW-FRM-012",
    "framing.streams_are_framed_as_the_grammar_says",
    "sizes.a_change_that_is_too_long_for_an_event_comes_in_several",
)
def large_event_cut_at_64_kib(hooks):
    """Events are truncated at 64 KiB, as by a fixed buffer."""
    hooks.settings["max_event_bytes"] = 256 * 1024
    hooks.frames.append(lambda exchange, frame: frame if len(frame) <= 65536 else frame[:65534] + b"\n\n")


@faulty_server("TW-FRM-057", "framing.streams_begin_with_hello")
def no_hello(hooks):
    """Streams begin without `hello`."""
    replace_events(hooks, b"event:hello", lambda frame: b"retry:100\n\n")


@faulty_server("TW-FRM-005", "framing.hello_comes_within_a_second")
def hello_is_late(hooks):
    """`hello` is sent after 1.5 seconds."""

    async def late(exchange, frame):
        if b"event:hello" in frame:
            await asyncio.sleep(1.5)
        return frame

    hooks.frames.append(late)


@faulty_server("TW-FRM-058", "framing.streams_begin_with_hello")
def streams_of_two_jobs_cross(hooks):
    """`hello` names another job."""
    rewrite_events(hooks, rb'"job":"[^"]+"', b'"job":"AAAAAAAAAAAAAAAAAAAAAAAA"')


@faulty_server("TW-FRM-043", "framing.events_are_those_of_the_table")
def hello_without_heartbeat(hooks):
    """`hello` lacks the required `heartbeat_ms`."""
    rewrite_events(hooks, rb',"heartbeat_ms":\d+', b"")


@faulty_server("TW-FRM-053", "framing.a_job_ends_by_one_done")
def done_of_a_failed_job_without_error(hooks):
    """`done` of a failed job lacks `error`."""
    rewrite_events(hooks, rb',"error":\{[^}]*\}', b"", within=DONE)


@faulty_server("TW-RES-001", "framing.events_are_those_of_the_table")
def newline_in_an_id(hooks):
    """An event id contains a line feed."""
    rewrite_events(hooks, rb"^id:(\d+)-(\d*3)\n", b"id:\\1-\n\\2\n")


@faulty_server("TW-FRM-008", "framing.a_stream_that_is_not_accepted_is_refused")
def accept_is_not_looked_at(hooks):
    """A stream is sent whatever `Accept` says."""
    set_request_header(
        hooks, "accept", "text/event-stream", lambda exchange: exchange.path.endswith("/events")
    )


@faulty_server("TW-FRM-006", "framing.events_are_sent_when_they_are_due")
def each_event_waits_for_the_next(hooks):
    """Each event is sent only when the next one is available."""
    hooks.settings["heartbeat"] = 15.0

    def late(exchange, frame):
        before, exchange.own["late"] = exchange.own.get("late", b""), b"" if DONE in frame else frame
        return before + frame if DONE in frame else before

    hooks.frames.append(late)


@faulty_server(
    "TW-FRM-001",
    "framing.streams_have_their_header",
    "framing.an_answer_to_a_stream_request_is_an_event_stream",
)
def another_charset(hooks):
    """The media type of a stream names another charset."""
    hooks.heads.append(
        lambda exchange, status, headers: headers.update({"content-type": "text/event-stream; charset=iso-8859-1"})
        if headers.get("content-type", "").startswith("text/event") else None
    )  # fmt: skip


@faulty_server(
    "TW-FRM-060", "framing.streams_begin_with_hello", "resume.every_cut_point_of_a_job_that_has_ended_resumes"
)
def hello_knows_the_beginning_alone(hooks):
    """`head` of `hello` is always the first id of the job."""
    rewrite_events(hooks, rb'"head":"[^"]+"', b'"head":"1-1"', within=b"event:hello")


@faulty_server("TW-OVR-018", "framing.a_job_ends_by_one_done")
def a_failure_is_a_success_without_a_value(hooks):
    """A failed job is reported as succeeded with a null value."""

    def hide(exchange, frame):
        frame = re.sub(rb'\["s","/items/0/error",\{[^}]*\}\]', b'["s","/items/0/value",null]', frame)
        return frame.replace(b'"status":"failed","usage"', b'"status":"succeeded","usage"').replace(
            b'"failed"', b'"succeeded"'
        )

    hooks.frames.append(hide)


@faulty_server("TW-FRM-060", "framing.streams_begin_with_hello", "framing.a_job_ends_by_one_done")
def head_of_hello_is_the_next_id(hooks):
    """`head` of `hello` is one id too high."""
    after = lambda found: b'"head":"1-%d"' % (int(found[1]) + 1)  # noqa: E731
    rewrite_events(hooks, rb'"head":"1-(\d+)"', after, within=b"event:hello")


@faulty_server("TW-FRM-008", "framing.a_stream_that_is_not_accepted_is_refused")
def only_whole_media_types_admit_a_stream(hooks):
    """`Accept: text/*` is refused for an event stream."""
    refuse(
        hooks,
        lambda exchange: exchange.path.endswith("/events") and exchange.header("accept") == "text/*",
        406,
        "not_acceptable",
    )


@faulty_server("TW-FRM-008", "framing.a_stream_that_is_not_accepted_is_refused")
def a_weight_of_0_admits_a_stream(hooks):
    """A media type with weight 0 in `Accept` is sent."""
    weighs = lambda exchange: exchange.path.endswith("/events") and ";q=0" in exchange.header("accept")  # noqa: E731
    set_request_header(hooks, "accept", "*/*", weighs)


@faulty_server("TW-FRM-005", "framing.hello_comes_within_a_second")
def a_submit_waits_for_its_job(hooks):
    """A submit that asks for a stream is answered only after 1.3 seconds."""

    async def wait(exchange):
        if exchange.is_submit and "event-stream" in exchange.header("accept"):
            await asyncio.sleep(1.3)

    hooks.requests.append(wait)


@faulty_server(
    "TW-FRM-012", "framing.streams_are_framed_as_the_grammar_says", "framing.hello_comes_within_a_second"
)
def an_empty_event_keeps_a_stream_awake(hooks):
    """`hello` is followed by an event with empty data."""
    replace_events(hooks, b"event:hello", lambda frame: frame + b"data:\n\n")


@faulty_server("TW-DEP-001", "framing.what_is_asked_by_http_1_0_is_answered")
def http_1_0_is_refused(hooks):
    """Requests by HTTP/1.0 are refused with 426."""
    refuse(hooks, lambda exchange: exchange.scope["http_version"] == "1.0", 426, "edge.upgrade_required")
