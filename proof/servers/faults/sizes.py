"""Faulty servers whose events or states exceed the declared limits."""

from proof.servers.fault_helpers import rewrite_body
from proof.servers.faults import faulty_server


@faulty_server("TW-FRM-047", "sizes.a_change_that_is_too_long_for_an_event_comes_in_several")
def a_long_change_comes_whole(hooks):
    """A change longer than `max_event_bytes` is sent in one event."""
    hooks.settings["max_event_bytes"] = 256 * 1024
    rewrite_body(hooks, b":262144,", b":65536,")


@faulty_server(
    "TW-FRM-047",
    "sizes.events_are_no_longer_than_discovery_says",
    "sizes.a_change_that_is_too_long_for_an_event_comes_in_several",
)
def discovery_knows_a_smaller_limit(hooks):
    """Discovery declares a smaller `max_event_bytes` than the server keeps."""
    hooks.settings["max_event_bytes"] = 100 * 1024
    rewrite_body(hooks, b":102400,", b":65536,")


@faulty_server("TW-FRM-050", "sizes.a_state_that_grows_too_large_fails_the_job")
def a_state_may_grow_too_large(hooks):
    """A job succeeds although its state exceeds `max_state_bytes`."""
    hooks.settings["max_state_bytes"] = 8 * 1024 * 1024
    rewrite_body(hooks, b":8388608,", b":3145728,")
