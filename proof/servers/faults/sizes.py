"""Faulty servers whose events or states exceed the declared limits."""

from proof.servers.fault_helpers import rewrite_body
from proof.servers.faults import faulty_server


@faulty_server(
    "TW-FRM-047",
    "sizes.long_text_is_split_over_several_events",
    "sizes.long_result_is_set_in_one_event",
)
def oversized_event_sent(hooks):
    """A change longer than `max_event_bytes` is sent in one event."""
    hooks.settings["max_event_bytes"] = 256 * 1024
    rewrite_body(hooks, b":262144,", b":65536,")


@faulty_server(
    "TW-FRM-047",
    "sizes.events_stay_within_size_limits",
    "sizes.long_text_is_split_over_several_events",
    "sizes.long_result_is_set_in_one_event",
)
def discovery_declares_smaller_event_limit(hooks):
    """Discovery declares a smaller `max_event_bytes` than the server enforces."""
    hooks.settings["max_event_bytes"] = 100 * 1024
    rewrite_body(hooks, b":102400,", b":65536,")


@faulty_server("TW-DIF-071", "sizes.change_of_many_ops_is_split_over_several_events")
def diff_with_too_many_ops(hooks):
    """A change of more than `max_event_ops` ops is sent in one event."""
    hooks.settings["max_event_ops"] = 10_000
    rewrite_body(hooks, b'"max_event_ops":10000', b'"max_event_ops":100')


@faulty_server("TW-DSC-026", "discovery.discovery_document_is_valid")
def too_many_ops_declared(hooks):
    """Discovery declares that a diff may have 20,000 ops."""
    rewrite_body(hooks, b'"max_event_ops":100,', b'"max_event_ops":20000,', at="/v1")


@faulty_server("TW-FRM-050", "sizes.oversized_state_fails_the_job")
def oversized_state_accepted(hooks):
    """A job succeeds although its state exceeds `max_state_bytes`."""
    hooks.settings["max_state_bytes"] = 8 * 1024 * 1024
    rewrite_body(hooks, b":8388608,", b":3145728,")


@faulty_server(
    "TW-FRM-082",
    "sizes.long_result_is_set_in_one_event",
    "discovery.value_is_set_once_without_streaming",
    "text_checks_due.required_text_checks_are_sent",
)
def long_result_sent_in_parts(hooks):
    """A result longer than `max_event_bytes` is set by several diffs."""
    from tidewire_server.log_writer.pending_events import PendingEvents

    hooks.settings["max_event_bytes"] = 16 * 1024
    change = PendingEvents.change
    PendingEvents.change = lambda pending, ops, **options: change(pending, ops, **options | {"whole": False})
