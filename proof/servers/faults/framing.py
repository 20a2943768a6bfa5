"""Faulty servers with errors in the header, framing, beginning or end of event streams."""

import asyncio
import gzip
import re

from proof.servers.expected_side_failures import (
    BROKEN_STREAM,
    DONE_WITHOUT_ERROR,
    FAILED_JOB,
    INBAND_RETRY,
    INVALID_JSON,
    READ_DIFFERS,
    WRONG_EVENT,
    WRONG_HISTORY,
)
from proof.servers.fault_helpers import (
    DONE,
    drop_header,
    refuse,
    replace_events,
    rewrite_events,
    set_request_header,
)
from proof.servers.fault_proxy import CUT, HANG
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("stream_without_no_store", "TW-FRM-002", "framing.streams_have_required_headers",
      "Event streams lack `Cache-Control: no-store`.",
      heads=drop_header("cache-control"))

fault("raw_newline_in_data", "TW-FRM-012", "framing.streams_follow_the_grammar",
      "The data of an event contains a raw line feed.",
      frames=rewrite_events(b'"protocol":', b'"protocol":\n'),
      also_fails=INVALID_JSON)
fault("two_data_lines", "TW-FRM-011", "framing.streams_follow_the_grammar",
      "The data of an event is split into two `data` fields.",
      frames=rewrite_events(b'"protocol":', b'"protocol":\ndata:'))
fault("no_blank_line_after_the_last_event", "TW-FRM-013", "framing.streams_follow_the_grammar",
      "The last event has no terminating blank line.",
      frames=replace_events(DONE, lambda frame: frame[:-1]),
      also_fails=BROKEN_STREAM)
fault("lone_cr_inside_json", "TW-FRM-012", "framing.streams_follow_the_grammar",
      "The data of an event contains a raw CR.",
      frames=rewrite_events(b'"protocol":', b'"protocol":\r'),
      also_fails=INVALID_JSON)
fault("invalid_utf8", "TW-FRM-009", "framing.streams_follow_the_grammar",
      "Event data is not valid UTF-8.",
      frames=rewrite_events(b'{"protocol"', b'{"\xff":1,"protocol"'),
      also_fails=INVALID_JSON)
fault("bom_before_every_event", "TW-FRM-010", "framing.streams_follow_the_grammar",
      "Every event starts with a byte order mark.",
      frames=lambda exchange, frame: b"\xef\xbb\xbf" + frame,
      also_fails=BROKEN_STREAM)
fault("id_without_data", "TW-FRM-080", "framing.streams_follow_the_grammar",
      "Some ids are in a separate block without data, before their event.",
      frames=rewrite_events(rb"^(id:\d+-\d*3\n)", b"\\1\n\\1"))
fault("events_truncated_at_64_kib", "TW-FRM-012", "framing.streams_follow_the_grammar",
      "Events are truncated to 64 KiB, as if they were written to a buffer of fixed size.",
      settings={"max_event_bytes": 256 * 1024},
      frames=lambda exchange, frame: frame if len(frame) <= 65536 else frame[:65534] + b"\n\n",
      also_run="sizes.long_text_is_split_over_several_events",
      also_fails=WRONG_EVENT | INVALID_JSON)
fault("event_with_empty_data", "TW-FRM-012", "framing.streams_follow_the_grammar",
      "`hello` is followed by an event with empty data.",
      frames=replace_events(b"event:hello", lambda frame: frame + b"data:\n\n"),
      also_run="framing.hello_arrives_within_one_second",
      also_fails=BROKEN_STREAM)

fault("logged_events_without_id", "TW-FRM-015", "framing.events_match_their_schemas",
      "Some logged events have no id.",
      frames=rewrite_events(rb"^id:\d+-\d*3\n", b""),
      also_fails=WRONG_EVENT)
fault("hello_with_an_id", "TW-FRM-014", "framing.events_match_their_schemas",
      "`hello` has an id.",
      frames=replace_events(b"event:hello", lambda frame: b"id:1-1\n" + frame))
fault("ping_with_an_id", "TW-FRM-014", "framing.events_match_their_schemas",
      "A ping has an id, which changes the cursor of an EventSource.",
      frames=replace_events(b"event:ping", lambda frame: b"id:1-1\n" + frame),
      also_run="queue_progress_ping_goaway.idle_stream_receives_pings")
fault("nul_in_an_id", "TW-RES-001", "framing.events_match_their_schemas",
      "An event id contains NUL.",
      frames=rewrite_events(rb"^id:(\d+-\d*3)\n", b"id:\\1\0\n"),
      also_fails=WRONG_EVENT)
fault("hello_without_heartbeat", "TW-FRM-043", "framing.events_match_their_schemas",
      "`hello` lacks the required member `heartbeat_ms`.",
      frames=rewrite_events(rb',"heartbeat_ms":\d+', b""))
fault("newline_in_an_id", "TW-RES-001", "framing.events_match_their_schemas",
      "An event id contains a line feed.",
      frames=rewrite_events(rb"^id:(\d+)-(\d*3)\n", b"id:\\1-\n\\2\n"),
      also_fails=WRONG_EVENT)

fault("stream_without_done", "TW-FRM-051", "framing.log_ends_with_exactly_one_done",
      "Streams end without `done`.",
      frames=replace_events(DONE, lambda frame: b":end\n\n"),
      also_fails=BROKEN_STREAM)
fault("done_sent_twice", "TW-FRM-051", "framing.log_ends_with_exactly_one_done",
      "`done` is sent twice.",
      frames=replace_events(DONE, lambda frame: frame * 2),
      also_fails=WRONG_EVENT)
fault("connection_dropped_when_job_fails", "TW-FRM-051", "framing.log_ends_with_exactly_one_done",
      "The connection is dropped when a job fails.",
      frames=replace_events(b'"failed"', lambda frame: CUT))
fault("done_of_failed_job_without_error", "TW-FRM-053", "framing.log_ends_with_exactly_one_done",
      "`done` of a failed job lacks `error`.",
      frames=rewrite_events(rb',"error":\{[^}]*\}', b"", within=DONE),
      also_fails=READ_DIFFERS | DONE_WITHOUT_ERROR | {"a job fails when its state grows too large":
          "sizes.oversized_state_fails_the_job"})

fault("ping_after_done", "TW-FRM-054", "framing.closing_event_is_last",
      "A ping follows `done`.",
      frames=replace_events(DONE, lambda frame: frame + b'event:ping\ndata:{"head":"1-1"}\n\n'),
      also_fails=BROKEN_STREAM)

fault("connection_open_after_done", "TW-FRM-007", "framing.stream_closes_after_done",
      "The connection stays open after `done`.",
      frames=replace_events(DONE, lambda frame: frame + HANG),
      also_fails=BROKEN_STREAM)

fault("retry_is_not_a_number", "TW-FRM-061", "framing.streams_begin_with_hello",
      "`retry` is not a number.",
      frames=rewrite_events(rb"retry:\d+", b"retry:abc"),
      also_fails=INBAND_RETRY)
fault("stream_without_hello", "TW-FRM-057", "framing.streams_begin_with_hello",
      "Streams begin without `hello`.",
      frames=replace_events(b"event:hello", lambda frame: b"retry:100\n\n"),
      also_fails=BROKEN_STREAM)
fault("hello_names_another_job", "TW-FRM-058", "framing.streams_begin_with_hello",
      "`hello` names another job.",
      frames=rewrite_events(rb'"job":"[^"]+"', b'"job":"AAAAAAAAAAAAAAAAAAAAAAAA"'))
fault("hello_head_is_always_first_id", "TW-FRM-060", "framing.streams_begin_with_hello",
      "The member `head` of `hello` is always the id of the job's first event.",
      frames=rewrite_events(rb'"head":"[^"]+"', b'"head":"1-1"', within=b"event:hello"),
      also_run="resume.ended_job_resumes_from_every_id")
fault("hello_head_is_one_too_high", "TW-FRM-060", "framing.streams_begin_with_hello",
      "The sequence number in the member `head` of `hello` is too high by one.",
      frames=rewrite_events(rb'"head":"1-(\d+)"', lambda found: b'"head":"1-%d"' % (int(found[1]) + 1),
          within=b"event:hello"),
      also_run="framing.log_ends_with_exactly_one_done")

fault("retry_is_an_hour", "TW-FRM-018", "framing.retry_is_jittered",
      "`retry` is an hour.",
      frames=rewrite_events(rb"retry:\d+", b"retry:3600000"),
      also_fails=INBAND_RETRY)

fault("accept_header_ignored", "TW-FRM-008", "framing.unacceptable_stream_request_returns_406",
      "A stream is sent even if `Accept` does not permit its media type.",
      requests=set_request_header("accept", "text/event-stream",
          lambda exchange: exchange.path.endswith("/events")))
fault("accept_wildcard_refused", "TW-FRM-008", "framing.unacceptable_stream_request_returns_406",
      "`Accept: text/*` is refused for an event stream.",
      instead=refuse(
          lambda exchange: exchange.path.endswith("/events") and exchange.header("accept") == "text/*", 406,
          "not_acceptable"))
fault("accept_weight_0_ignored", "TW-FRM-008", "framing.unacceptable_stream_request_returns_406",
      "A response has a media type to which `Accept` gives the weight 0.",
      requests=set_request_header("accept", "*/*",
          lambda exchange: exchange.path.endswith("/events") and ";q=0" in exchange.header("accept")))

fault("http_1_0_gets_426", "TW-DEP-001", "framing.http_1_0_requests_are_served",
      "HTTP/1.0 requests are rejected with 426.",
      instead=refuse(lambda exchange: exchange.scope["http_version"] == "1.0", 426, "edge.upgrade_required"))
# fmt: on


@faulty_server(
    "TW-FRM-001", "framing.stream_request_returns_an_event_stream", hook="heads", also_fails=BROKEN_STREAM
)
def stream_media_type_is_text_plain(exchange, status, headers):
    """Event streams have the media type `text/plain`."""
    if headers["content-type"].startswith("text/event-stream"):
        headers["content-type"] = "text/plain"


@faulty_server("TW-FRM-006", "framing.events_are_sent_without_delay", hook="frames", also_fails=BROKEN_STREAM)
def stream_buffered_until_done(exchange, frame):
    """The whole stream is buffered and sent only after `done`."""
    exchange.own["buffered"] = exchange.own.get("buffered", b"") + frame
    return exchange.own["buffered"] if DONE in frame else b""


@faulty_server("TW-FRM-004", "framing.streams_have_no_content_coding", also_fails=BROKEN_STREAM)
def stream_compressed_if_accepted(hooks):
    """Event streams are compressed if the client accepts gzip."""
    accepts = lambda exchange: "gzip" in exchange.header("accept-encoding")  # noqa: E731

    def head(exchange, status, headers):
        if accepts(exchange) and "event-stream" in headers.get("content-type", ""):
            headers["content-encoding"] = "gzip"

    hooks.heads.append(head)
    hooks.frames.append(replace_events(b"", gzip.compress, accepts))


@faulty_server(
    "TW-FRM-005",
    "framing.hello_arrives_within_one_second",
    hook="frames",
    also_fails={
        "the job ends before the check receives `hello` and cancels it": "generation.cancelled_generation_reports_reason_and_usage"
    },
)
async def hello_after_1500_ms(exchange, frame):
    """`hello` is sent after 1.5 seconds."""
    if b"event:hello" in frame:
        await asyncio.sleep(1.5)
    return frame


@faulty_server(
    "TW-FRM-006",
    "framing.events_are_sent_without_delay",
    hook="frames",
    settings={"heartbeat": 15.0},
    also_fails=BROKEN_STREAM,
)
def event_held_until_the_next(exchange, frame):
    """Each event is sent only when the next event is available."""
    before, exchange.own["late"] = exchange.own.get("late", b""), b"" if DONE in frame else frame
    return before + frame if DONE in frame else before


@faulty_server(
    "TW-FRM-001",
    "framing.streams_have_required_headers",
    hook="heads",
    also_run="framing.stream_request_returns_an_event_stream",
)
def stream_with_another_charset(exchange, status, headers):
    """The media type of a stream names a charset other than UTF-8."""
    if headers.get("content-type", "").startswith("text/event"):
        headers["content-type"] = "text/event-stream; charset=iso-8859-1"


@faulty_server(
    "TW-OVR-018",
    "framing.log_ends_with_exactly_one_done",
    hook="frames",
    also_fails=FAILED_JOB | WRONG_HISTORY,
)
def failed_job_reported_as_succeeded(exchange, frame):
    """A failed job is reported as succeeded with a null value."""
    frame = re.sub(rb'\["s","/items/0/error",\{[^}]*\}\]', b'["s","/items/0/value",null]', frame)
    return frame.replace(b'"status":"failed","usage"', b'"status":"succeeded","usage"').replace(
        b'"failed"', b'"succeeded"'
    )


@faulty_server("TW-FRM-005", "framing.hello_arrives_within_one_second", hook="requests")
async def stream_submit_answered_late(exchange):
    """A request to submit a job that asks for a stream is answered only after 1.3 seconds."""
    if exchange.is_submit and "event-stream" in exchange.header("accept"):
        await asyncio.sleep(1.3)
