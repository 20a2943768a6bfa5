"""Faulty servers that lose events between the replay of a log and the events that follow."""

import time

from proof.servers.expected_side_failures import WRONG_EVENT
from proof.servers.fault_helpers import DONE, seq_of
from proof.servers.faults import faulty_server

RACE_SECONDS = 0.001
"""Time, in seconds, after the replay in which an event is lost."""
SAME_BLOCK_SECONDS = 0.0002
"""Maximum time, in seconds, between two events that the server sends at once."""


@faulty_server(
    "TW-RES-020",
    "catch_up.no_event_is_lost_between_replay_and_live_events",
    hook="frames",
    also_fails=WRONG_EVENT,
)
def event_lost_after_the_replay(exchange, frame):
    """An event that is logged less than a millisecond after the replay of a log is lost."""
    now, before = time.monotonic(), exchange.own.get("replayed")
    if exchange.own.get("live") or not seq_of(frame):
        return frame
    if before is None or now - before < SAME_BLOCK_SECONDS:
        exchange.own["replayed"] = now
        return frame
    exchange.own["live"] = True
    return b"" if now - before < RACE_SECONDS and DONE not in frame else frame
