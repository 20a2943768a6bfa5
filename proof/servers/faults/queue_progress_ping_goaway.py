"""Faulty servers with errors in ephemeral events: `queue`, `progress`, `ping` and `goaway`."""

from proof.servers.fault_helpers import DONE, PING, replace_events, rewrite_events
from proof.servers.faults import faulty_server


def drop_pings(hooks, holds):
    """If the request for a stream satisfies a condition, drop the pings of the stream."""
    hooks.frames.append(lambda exchange, frame: b"" if PING in frame and holds(exchange) else frame)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.idle_stream_receives_pings")
def no_pings(hooks):
    """No pings are sent."""
    replace_events(hooks, b"event:ping", lambda frame: b"")


@faulty_server("TW-FRM-069", "queue_progress_ping_goaway.idle_stream_receives_pings")
def ping_names_a_head_never_sent(hooks):
    """A ping names the id of an event that is never sent."""
    rewrite_events(hooks, rb'"head":"1-\d+"', b'"head":"1-99"', within=b"event:ping")


@faulty_server(
    "TW-FRM-073",
    "queue_progress_ping_goaway.goaway_retry_equals_retry_ms",
    "parameters.invalid_parameters_return_400",
)
def goaway_without_retry(hooks):
    """`goaway` lacks the `retry` field."""
    away = b'event:goaway\ndata:{"reason":"rotate","retry_ms":100}\n\n'
    hooks.frames.append(
        lambda exchange, frame: away if DONE in frame and b"colour" in exchange.query else frame
    )


@faulty_server(
    "TW-FRM-072",
    "queue_progress_ping_goaway.stream_ends_with_a_closing_event",
    "parameters.invalid_parameters_return_400",
)
def stream_ends_without_closing_event(hooks):
    """A stream ends without `done` and without `goaway`."""
    hooks.frames.append(
        lambda exchange, frame: b"" if DONE in frame and b"colour" in exchange.query else frame
    )


@faulty_server(
    "TW-FRM-066",
    "queue_progress_ping_goaway.batch_progress_names_its_item",
    "generation.seeded_generation_is_reproducible",
)
def batch_progress_without_item(hooks):
    """The `progress` events of a batch lack the member `item`."""
    rewrite_events(hooks, rb',"item":\d+', b"", within=b"event:progress")


@faulty_server("TW-DIF-004", "queue_progress_ping_goaway.ephemeral_events_carry_no_results")
def progress_contains_result(hooks):
    """`progress` contains a part of the result."""
    rewrite_events(hooks, b'{"current"', b'{"text":"so far","current"')


@faulty_server(
    "TW-FRM-064",
    "queue_progress_ping_goaway.queue_positions_start_at_1",
    "jobs.submit_can_return_the_stream",
)
def queue_positions_start_at_0(hooks):
    """The first position in the queue is 0."""
    place = b'event:queue\ndata:{"position":0}\n\n'
    replace_events(hooks, b"event:hello", lambda frame: frame + place)


@faulty_server("TW-FRM-067", "queue_progress_ping_goaway.progress_is_repeated_on_each_connection")
def progress_not_repeated_on_new_connection(hooks):
    """After a new connection, the current progress is not sent."""

    def once(exchange, frame):
        late = b"event:progress" in frame and hooks.shared.setdefault(
            (exchange.path, frame), id(exchange)
        ) != id(exchange)
        return b"" if late else frame

    hooks.frames.append(once)


@faulty_server(
    "TW-FRM-063",
    "queue_progress_ping_goaway.queue_positions_start_at_1",
    "jobs.submit_can_return_the_stream",
)
def queue_position_sent_twice(hooks):
    """`queue` is sent twice with the same position."""
    place = b'event:queue\ndata:{"position":3}\n\n'
    replace_events(hooks, b"event:hello", lambda frame: frame + 2 * place)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.idle_stream_receives_pings")
def only_one_ping_per_connection(hooks):
    """Only one ping is sent on each connection."""

    def later(exchange):
        exchange.own["pings"] = exchange.own.get("pings", 0) + 1
        return exchange.own["pings"] > 1

    drop_pings(hooks, later)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.idle_stream_receives_pings")
def no_pings_after_resume(hooks):
    """No pings are sent on a resumed stream."""
    drop_pings(hooks, lambda exchange: exchange.cursor)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.idle_stream_receives_pings")
def no_pings_on_submit_stream(hooks):
    """No pings are sent on a stream in response to a submitted job."""
    drop_pings(hooks, lambda exchange: exchange.is_submit)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.idle_stream_receives_pings")
def no_pings_on_snapshot_stream(hooks):
    """No pings are sent on a stream of snapshots."""
    drop_pings(hooks, lambda exchange: b"diffs=0" in exchange.query)


@faulty_server("TW-FRM-068", "queue_progress_ping_goaway.idle_stream_receives_pings")
def hello_declares_shorter_heartbeat(hooks):
    """`hello` declares a shorter heartbeat interval than the server uses."""
    hooks.settings["heartbeat"] = 5.0
    rewrite_events(hooks, rb'"heartbeat_ms":\d+', b'"heartbeat_ms":100')


@faulty_server(
    "TW-FRM-063",
    "queue_progress_ping_goaway.queue_positions_start_at_1",
    "jobs.submit_can_return_the_stream",
)
def queue_position_of_running_job(hooks):
    """`queue` is sent after the job has started."""
    place = b'event:queue\ndata:{"position":1}\n\n'
    replace_events(hooks, b'"/status","running"', lambda frame: frame + place)
