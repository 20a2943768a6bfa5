"""Faulty servers with errors in ephemeral events: `queue`, `progress`, `ping` and `goaway`."""

from proof.servers.fault_helpers import (
    DONE,
    PING,
    drop_events,
    replace_events,
    rewrite_events,
    rotate_streams,
)
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("no_pings", "TW-FRM-083", "queue_progress_ping_goaway.idle_stream_receives_pings",
      "No pings are sent.",
      frames=replace_events(b"event:ping", lambda frame: b""))
fault("ping_names_a_head_never_sent", "TW-FRM-069", "queue_progress_ping_goaway.idle_stream_receives_pings",
      "A ping names the id of an event that is never sent.",
      frames=rewrite_events(rb'"head":"1-\d+"', b'"head":"1-99"', within=b"event:ping"))
fault("comments_in_place_of_pings", "TW-FRM-083", "queue_progress_ping_goaway.idle_stream_receives_pings",
      "Comments are sent in place of pings.",
      frames=replace_events(b"event:ping", lambda frame: b":\n\n"))
fault("no_pings_after_resume", "TW-FRM-083", "queue_progress_ping_goaway.idle_stream_receives_pings",
      "No pings are sent on a resumed stream.",
      frames=drop_events(PING, lambda exchange: exchange.cursor))
fault("no_pings_on_submit_stream", "TW-FRM-083", "queue_progress_ping_goaway.idle_stream_receives_pings",
      "No pings are sent on a stream in response to a submitted job.",
      frames=drop_events(PING, lambda exchange: exchange.is_submit))
fault("no_pings_on_snapshot_stream", "TW-FRM-083", "queue_progress_ping_goaway.idle_stream_receives_pings",
      "No pings are sent on a stream of snapshots.",
      frames=drop_events(PING, lambda exchange: b"diffs=0" in exchange.query))
fault("hello_declares_shorter_heartbeat", "TW-FRM-083", "queue_progress_ping_goaway.idle_stream_receives_pings",
      "`hello` declares a shorter heartbeat interval than the server uses.",
      settings={"heartbeat": 5.0}, frames=rewrite_events(rb'"heartbeat_ms":\d+', b'"heartbeat_ms":100'))

fault("stream_ends_without_closing_event", "TW-FRM-072", "queue_progress_ping_goaway.stream_ends_with_a_closing_event",
      "A stream ends without `done` and without `goaway`.",
      frames=lambda exchange, frame: b"" if DONE in frame and b"colour" in exchange.query else frame,
      also_run="parameters.invalid_parameters_return_400")

fault("batch_progress_without_item", "TW-FRM-066", "queue_progress_ping_goaway.batch_progress_names_its_item",
      "The `progress` events of a batch lack the member `item`.",
      frames=rewrite_events(rb',"item":\d+', b"", within=b"event:progress"),
      also_run="generation.seeded_generation_is_reproducible")

fault("progress_contains_result", "TW-DIF-004", "queue_progress_ping_goaway.ephemeral_events_carry_no_results",
      "`progress` contains a part of the result.",
      frames=rewrite_events(b'{"current"', b'{"text":"so far","current"'))

fault("queue_positions_start_at_0", "TW-FRM-064", "queue_progress_ping_goaway.queue_positions_start_at_1",
      "The first position in the queue is 0.",
      frames=replace_events(b"event:hello", lambda frame: frame + b'event:queue\ndata:{"position":0}\n\n'),
      also_run="jobs.submit_can_return_the_stream",
      also_fails={"an event of the wrong shape violates its schema": "framing.events_match_their_schemas"})
fault("queue_position_sent_twice", "TW-FRM-063", "queue_progress_ping_goaway.queue_positions_start_at_1",
      "`queue` is sent twice with the same position.",
      frames=replace_events(b"event:hello", lambda frame: frame + 2 * b'event:queue\ndata:{"position":3}\n\n'),
      also_run="jobs.submit_can_return_the_stream")
fault("queue_position_of_running_job", "TW-FRM-063", "queue_progress_ping_goaway.queue_positions_start_at_1",
      "`queue` is sent after the job has started.",
      frames=replace_events(b'"/status","running"',
          lambda frame: frame + b'event:queue\ndata:{"position":1}\n\n'),
      also_run="jobs.submit_can_return_the_stream")

fault("goaway_without_retry", "TW-FRM-073", "queue_progress_ping_goaway.goaway_retry_equals_retry_ms",
      "`goaway` lacks the `retry` field.",
      frames=replace_events(DONE, lambda frame: b'event:goaway\ndata:{"reason":"rotate","retry_ms":100}\n\n',
          lambda exchange: b"colour" in exchange.query),
      also_run="parameters.invalid_parameters_return_400")
fault("late_goaway_without_retry", "TW-FRM-073", "queue_progress_ping_goaway.goaway_retry_equals_retry_ms",
      "A stream ends after 2 s with a `goaway` that lacks the `retry` field.",
      install=rotate_streams(2.0), frames=rewrite_events(rb"^retry:\d+\n|\nretry:\d+", b"", within=b"event:goaway"),
      also_run="batch.results_do_not_depend_on_batching jobs.stream_continues_from_a_read "
               "generation.stop_string_is_never_streamed generation.accepted_members_take_effect")
# fmt: on


@faulty_server(
    "TW-FRM-067", "queue_progress_ping_goaway.progress_is_repeated_on_each_connection", hook="frames"
)
def progress_not_repeated_on_new_connection(exchange, frame):
    """After a new connection, the current progress is not sent."""
    late = b"event:progress" in frame and exchange.shared.setdefault(
        (exchange.path, frame), id(exchange)
    ) != id(exchange)
    return b"" if late else frame


@faulty_server("TW-FRM-083", "queue_progress_ping_goaway.idle_stream_receives_pings", hook="frames")
def only_one_ping_per_connection(exchange, frame):
    """Only one ping is sent on each connection."""
    exchange.own["pings"] = exchange.own.get("pings", 0) + (PING in frame)
    return b"" if PING in frame and exchange.own["pings"] > 1 else frame
