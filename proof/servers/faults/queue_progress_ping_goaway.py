"""Faulty servers with errors in ephemeral events: `queue`, `progress`, `ping` and `goaway`."""

from proof.servers.fault_helpers import DONE, PING, replace_events, rewrite_events
from proof.servers.faults import faulty_server


def drop_pings(hooks, holds):
    """Drop the pings of streams that satisfy a condition."""
    hooks.frames.append(lambda exchange, frame: b"" if PING in frame and holds(exchange) else frame)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.a_silent_stream_is_pinged")
def no_ping(hooks):
    """No pings are sent."""
    replace_events(hooks, b"event:ping", lambda frame: b"")


@faulty_server("TW-FRM-069", "queue_progress_ping_goaway.a_silent_stream_is_pinged")
def ping_of_a_head_that_never_comes(hooks):
    """A ping names a head that is never sent."""
    rewrite_events(hooks, rb'"head":"1-\d+"', b'"head":"1-99"', within=b"event:ping")


@faulty_server(
    "TW-FRM-073",
    "queue_progress_ping_goaway.goaway_says_its_wait_twice",
    "parameters.parameters_and_members_are_read_as_said",
)
def goaway_without_retry(hooks):
    """`goaway` lacks the `retry` field."""
    away = b'event:goaway\ndata:{"reason":"rotate","retry_ms":100}\n\n'
    hooks.frames.append(
        lambda exchange, frame: away if DONE in frame and b"colour" in exchange.query else frame
    )


@faulty_server(
    "TW-FRM-072",
    "queue_progress_ping_goaway.no_stream_is_closed_without_a_word",
    "parameters.parameters_and_members_are_read_as_said",
)
def streams_end_without_a_word(hooks):
    """A stream ends without `done` and without `goaway`."""
    hooks.frames.append(
        lambda exchange, frame: b"" if DONE in frame and b"colour" in exchange.query else frame
    )


@faulty_server(
    "TW-FRM-066",
    "queue_progress_ping_goaway.progress_of_a_batch_names_its_item",
    "generation.a_seed_gives_the_same_tokens_again",
)
def progress_without_its_item(hooks):
    """`progress` of a batch lacks `item`."""
    rewrite_events(hooks, rb',"item":\d+', b"", within=b"event:progress")


@faulty_server("TW-DIF-004", "queue_progress_ping_goaway.ephemeral_events_hold_nothing_of_a_result")
def text_in_progress(hooks):
    """`progress` contains a part of the result."""
    rewrite_events(hooks, b'{"current"', b'{"text":"so far","current"')


@faulty_server(
    "TW-FRM-064",
    "queue_progress_ping_goaway.places_are_counted_from_1",
    "jobs.a_submit_may_be_answered_by_the_stream",
)
def places_from_zero(hooks):
    """The first position in the queue is 0."""
    place = b'event:queue\ndata:{"position":0}\n\n'
    replace_events(hooks, b"event:hello", lambda frame: frame + place)


@faulty_server("TW-FRM-067", "queue_progress_ping_goaway.progress_is_told_again_on_each_connection")
def progress_is_told_once(hooks):
    """A new connection does not get the current progress."""

    def once(exchange, frame):
        late = b"event:progress" in frame and hooks.shared.setdefault(
            (exchange.path, frame), id(exchange)
        ) != id(exchange)
        return b"" if late else frame

    hooks.frames.append(once)


@faulty_server(
    "TW-FRM-063",
    "queue_progress_ping_goaway.places_are_counted_from_1",
    "jobs.a_submit_may_be_answered_by_the_stream",
)
def a_place_is_told_again_and_again(hooks):
    """`queue` is sent twice with the same position."""
    place = b'event:queue\ndata:{"position":3}\n\n'
    replace_events(hooks, b"event:hello", lambda frame: frame + 2 * place)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.a_silent_stream_is_pinged")
def only_the_first_silence_is_broken(hooks):
    """Only one ping is sent on each connection."""

    def later(exchange):
        exchange.own["pings"] = exchange.own.get("pings", 0) + 1
        return exchange.own["pings"] > 1

    drop_pings(hooks, later)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.a_silent_stream_is_pinged")
def no_ping_after_a_resume(hooks):
    """A resumed stream gets no pings."""
    drop_pings(hooks, lambda exchange: exchange.cursor)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.a_silent_stream_is_pinged")
def no_ping_where_a_submit_is_answered(hooks):
    """A stream that answers a submit gets no pings."""
    drop_pings(hooks, lambda exchange: exchange.is_submit)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.a_silent_stream_is_pinged")
def no_ping_without_diffs(hooks):
    """A stream of snapshots gets no pings."""
    drop_pings(hooks, lambda exchange: b"diffs=0" in exchange.query)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.a_silent_stream_is_pinged")
def hello_promises_a_quicker_heartbeat(hooks):
    """`hello` declares a shorter heartbeat than the server keeps."""
    hooks.settings["heartbeat"] = 5.0
    rewrite_events(hooks, rb'"heartbeat_ms":\d+', b'"heartbeat_ms":100')


@faulty_server(
    "TW-FRM-063",
    "queue_progress_ping_goaway.places_are_counted_from_1",
    "jobs.a_submit_may_be_answered_by_the_stream",
)
def a_job_that_runs_has_a_place(hooks):
    """`queue` is sent after the job has started."""
    place = b'event:queue\ndata:{"position":1}\n\n'
    replace_events(hooks, b'"/status","running"', lambda frame: frame + place)
