"""Faulty servers whose events or states exceed the declared limits."""

from types import SimpleNamespace

from proof.servers.fault_helpers import rewrite_body
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("oversized_event_sent", "TW-FRM-047", "sizes.long_text_is_split_over_several_events",
      "A change longer than `max_event_bytes` is sent in one event.",
      settings={"max_event_bytes": 256 * 1024}, bodies=rewrite_body(b":262144,", b":65536,"))

fault("discovery_declares_smaller_event_limit", "TW-FRM-047", "sizes.events_stay_within_size_limits",
      "Discovery declares a smaller `max_event_bytes` than the server enforces.",
      settings={"max_event_bytes": 100 * 1024}, bodies=rewrite_body(b":102400,", b":65536,"),
      also_run="sizes.long_text_is_split_over_several_events")

fault("diff_with_too_many_ops", "TW-DIF-071", "sizes.change_of_many_ops_is_split_over_several_events",
      "A change of more than `max_event_ops` ops is sent in one event.",
      settings={"max_event_ops": 10_000}, bodies=rewrite_body(b'"max_event_ops":10000', b'"max_event_ops":100'))

fault("oversized_state_accepted", "TW-FRM-050", "sizes.oversized_state_fails_the_job",
      "A job succeeds although its state exceeds `max_state_bytes`.",
      settings={"max_state_bytes": 8 * 1024 * 1024}, bodies=rewrite_body(b":8388608,", b":3145728,"))
# fmt: on


def set_results_in_parts(where):
    """Return a hook that sets long values by several diffs, if the path of the value satisfies a condition."""

    def install(hooks):
        from tidewire_server.job_log.open_event import to_json
        from tidewire_server.job_log.pending_events import PendingEvents

        inner = PendingEvents._write_snapshot

        def write_diffs(pending, ops, size, check_below, *, reserved):
            (letter, path, text), *others = ops
            if not where(path):
                inner(pending, ops, size, check_below, reserved=reserved)
                return
            parts = [["a", path, text[at : at + 2000]] for at in range(0, len(text), 2000)]
            for op in [*([["s", path, ""]] if letter == "s" else []), *parts, *others]:
                pending._write_diff([op], to_json([op]), check_below, reserved=reserved)

        PendingEvents._write_snapshot = write_diffs

    return install


# fmt: off
fault("long_result_sent_in_parts", "TW-FRM-082", "sizes.long_result_is_set_in_one_event",
      "A result longer than `max_event_bytes` is set by several diffs.",
      settings={"max_event_bytes": 16 * 1024}, install=set_results_in_parts(lambda path: True),
      also_fails={"the value is set before the item ends": "discovery.value_is_set_once_without_streaming",
                  "the parts are appends without checks": "text_checks_due.required_text_checks_are_sent"})
fault("long_result_of_a_batch_sent_in_parts", "TW-FRM-082", "sizes.long_result_is_set_in_one_event",
      "In a batch, the second result longer than `max_event_bytes` is set by several diffs.",
      settings={"max_event_bytes": 16 * 1024}, install=set_results_in_parts(lambda path: path.startswith("/items/1/")),
      also_fails={"the value is set before the item ends": "discovery.value_is_set_once_without_streaming",
                  "the parts are appends without checks": "text_checks_due.required_text_checks_are_sent"})
# fmt: on


@faulty_server("TW-FRM-047", "sizes.sizes_of_events_count_bytes")
def event_sizes_in_characters(hooks):
    """The size of an event is measured in characters."""
    from tidewire_server.job_log.open_event import to_json
    from tidewire_server.job_log.pending_events import PendingEvents

    inner = PendingEvents._change

    def change(pending, ops, check_below=None, *, reserved=False):
        encoded = to_json(ops)
        if len(encoded) > pending._event_bytes >= len(encoded.decode()):
            pending.blocks.end(pending._open)
            pending._write_diff(ops, encoded, check_below, reserved=reserved)
        else:
            inner(pending, ops, check_below, reserved=reserved)

    PendingEvents._change = change


@faulty_server("TW-FRM-047", "sizes.sizes_of_events_count_bytes")
def merged_event_sizes_in_characters(hooks):
    """While changes are merged, the size of an event is measured in characters."""
    from tidewire_server.job_log.pending_events import PendingEvents

    inner = PendingEvents._append

    def append(pending, additions):
        sizes = [len(added.x) for added in additions if isinstance(added.x, str)]
        event = pending._open
        if event is None or sum(sizes) > 10_000 or event.size > 4 * pending._event_bytes:
            inner(pending, additions)
            return
        before, pending._event_bytes = pending._event_bytes, 4 * pending._event_bytes
        inner(pending, additions)
        pending._event_bytes = before

    PendingEvents.append_text = lambda pending, path, piece: False
    PendingEvents._append = append


@faulty_server("TW-FRM-050", "sizes.sizes_of_states_count_bytes")
def state_sizes_in_characters(hooks):
    """The size of a state is measured in characters."""
    from tidewire_server.job_log import limited_state

    dumps = limited_state.orjson.dumps
    limited_state.orjson = SimpleNamespace(dumps=lambda value, **options: dumps(value, **options).decode())
