"""Faulty servers with errors in event ids, or when a stream resumes from a cursor."""

import re

from proof.servers.fault_helpers import (
    DONE,
    refuse,
    replace_events,
    rewrite_events,
    rewrite_query,
    seq_of,
    set_request_header,
)
from proof.servers.fault_proxy import HANG
from proof.servers.faults import faulty_server
from proof.servers.faults.durable import OTHER_EPOCH, after_a_restart


def shift_cursor(hooks, by):
    def move(exchange):
        if re.fullmatch(r"1-\d+", exchange.cursor):
            exchange.set_header("last-event-id", f"1-{max(1, int(exchange.cursor[2:]) + by)}")

    hooks.requests.append(move)


@faulty_server("TW-RES-019", "resume.ended_job_resumes_from_every_id")
def cursor_ignored(hooks):
    """`Last-Event-ID` is ignored, and the whole log is replayed."""
    set_request_header(hooks, "last-event-id", "0-0", lambda exchange: exchange.cursor)


@faulty_server("TW-RES-019", "resume.ended_job_resumes_from_every_id")
def cursor_event_sent_again(hooks):
    """The event with the id of the cursor is sent again."""
    shift_cursor(hooks, -1)


@faulty_server("TW-RES-020", "resume.ended_job_resumes_from_every_id")
def event_after_cursor_skipped(hooks):
    """The event after the cursor is skipped."""
    shift_cursor(hooks, +1)


@faulty_server("TW-RES-020", "resume.running_job_resumes_after_each_disconnect")
def running_job_resume_skips_an_event(hooks):
    """A resumed stream of a running job skips an event."""

    def skip(exchange, frame):
        first = exchange.cursor not in {"", "0-0"} and seq_of(frame) and not exchange.own.get("seen")
        exchange.own["seen"] = exchange.own.get("seen") or first
        return b"" if first and DONE not in frame else frame

    hooks.frames.append(skip)


@faulty_server("TW-RES-009", "resume.last_event_id_takes_precedence_over_after")
def after_overrides_last_event_id(hooks):
    """`after` takes precedence over `Last-Event-ID`."""
    set_request_header(hooks, "last-event-id", None, lambda exchange: b"after=" in exchange.query)


@faulty_server("TW-RES-010", "resume.ended_job_without_cursor_returns_snapshot_and_done")
def empty_after_read_as_cursor(hooks):
    """An empty `after` is treated as a cursor."""

    def begin(exchange):
        if exchange.method == "GET" and exchange.query == b"after=":
            exchange.set_header("last-event-id", "1-1")

    hooks.requests.append(begin)


@faulty_server("TW-RES-006", "resume.ids_are_consecutive", "resume.log_begins_at_1_1_without_gaps")
def replay_reordered(hooks):
    """A replay swaps two events."""

    def swap(exchange, frame):
        if exchange.cursor == "0-0" and seq_of(frame) == 3:
            exchange.own["kept"] = frame
            return b""
        return frame + exchange.own.pop("kept", b"") if seq_of(frame) == 4 else frame

    hooks.frames.append(swap)


@faulty_server("TW-RES-020", "resume.ended_job_resumes_from_every_id")
def replay_has_other_text(hooks):
    """The text in a replay differs from the text in the original stream."""
    hooks.frames.append(
        lambda exchange, frame: (
            frame.replace(b'data:"2', b'data:"3') if exchange.cursor not in {"", "0-0"} else frame
        )
    )


@faulty_server("TW-RES-003", "resume.ids_are_consecutive")
def every_second_id_skipped(hooks):
    """Every second sequence number is skipped."""
    odd = lambda found: b"id:1-%d\n" % (2 * int(found[1]) - 1)  # noqa: E731
    rewrite_events(hooks, rb"^id:1-(\d+)\n", odd)


@faulty_server("TW-RES-006", "resume.ids_are_consecutive")
def duplicate_ids(hooks):
    """Two events have the same id."""
    rewrite_events(hooks, rb"^id:1-4\n", b"id:1-3\n")


@faulty_server("TW-RES-005", "resume.log_begins_at_1_1_without_gaps")
def ids_begin_at_2(hooks):
    """Sequence numbers begin at 2."""
    more = lambda found: b"id:1-%d\n" % (int(found[1]) + 1)  # noqa: E731
    rewrite_events(hooks, rb"^id:1-(\d+)\n", more)


@faulty_server("TW-RES-019", "resume.ended_job_resumes_from_every_id")
def ids_restart_after_reconnect(hooks):
    """Sequence numbers begin at 1 again after a reconnect."""

    def renumber(exchange, frame):
        if exchange.cursor in {"", "0-0"} or not seq_of(frame):
            return frame
        exchange.own["n"] = exchange.own.get("n", 0) + 1
        return re.sub(rb"^id:1-\d+", b"id:1-%d" % exchange.own["n"], frame)

    hooks.frames.append(renumber)


@faulty_server("TW-RES-012", "resume.unknown_cursor_returns_rewound_snapshot")
def unknown_cursor_gets_only_new_events(hooks):
    """If the cursor is unknown, only new events are sent, without a snapshot."""
    replace_events(hooks, b'"reason":"rewound"', lambda frame: b"")


@faulty_server("TW-RES-012", "resume.trimmed_log_resumes_with_a_snapshot")
def trimmed_cursor_gets_no_snapshot(hooks):
    """If the log no longer contains the cursor, the remaining events are sent without a snapshot."""
    hooks.frames.append(
        lambda exchange, frame: b"" if exchange.cursor and b'"reason":"compacted"' in frame else frame
    )


@faulty_server("TW-RES-011", "resume.malformed_cursor_returns_400")
def invalid_cursor_ignored(hooks):
    """An invalid cursor is ignored."""

    def rewrite(exchange):
        asked = re.search(rb"after=([^&]+)", exchange.query)
        if asked and not re.fullmatch(rb"\d+-\d+", asked[1]):
            exchange.query = b""

    hooks.requests.append(rewrite)


@faulty_server("TW-FRM-056", "resume.ended_job_resumes_from_every_id")
def resume_of_ended_job_hangs(hooks):
    """A resumed stream of an ended job hangs before `done`."""
    hooks.frames.append(
        lambda exchange, frame: HANG if exchange.cursor not in {"", "0-0"} and DONE in frame else frame
    )


@faulty_server("TW-RES-012", "resume.cursor_of_done_returns_204")
def cursor_of_done_gets_done_again(hooks):
    """If the cursor is the id of `done`, `done` is sent again."""

    def back(exchange):
        if (n := hooks.shared.get(exchange.path)) and exchange.cursor == f"1-{n}":
            exchange.set_header("last-event-id", f"1-{n - 1}")

    def note(exchange, frame):
        if DONE in frame:
            hooks.shared[exchange.path] = seq_of(frame)
        return frame

    hooks.requests.append(back)
    hooks.frames.append(note)


@faulty_server("TW-DIF-010", "resume.ended_job_without_cursor_returns_snapshot_and_done")
def snapshot_has_final_status(hooks):
    """The snapshot of an ended job already has the final status."""

    def fold(exchange, frame):
        if b'"reason":"compacted"' in frame:
            return frame.replace(b'"state":{"status":"running"', b'"state":{"status":"succeeded"')
        return frame

    hooks.frames.append(fold)


@faulty_server("TW-DIF-009", "resume.ids_are_consecutive")
def first_event_is_a_diff(hooks):
    """A new stream begins with a diff."""
    hooks.frames.append(
        lambda exchange, frame: b"" if b"event:snapshot" in frame and not exchange.cursor else frame
    )


@faulty_server("TW-JOB-063", "resume.disconnect_does_not_affect_the_job")
def disconnect_cancels(hooks):
    """A disconnect cancels the job."""

    def note(exchange, frame):
        if exchange.method == "POST" and b"event:hello" in frame:
            hooks.shared.setdefault("left", []).append(re.search(rb'"job":"([^"]+)"', frame)[1].decode())
        return frame

    def end(exchange, frame):
        left = DONE in frame and any(job in exchange.path for job in hooks.shared.get("left", ()))
        return frame.replace(b'"status":"succeeded"', b'"status":"cancelled"') if left else frame

    hooks.frames += [note, end]


@faulty_server("TW-DIF-066", "resume.concurrent_readers_see_the_same_states")
def readers_share_events(hooks):
    """If two readers read the same job, each event is sent to only one of them."""

    def deal(exchange, frame):
        dealt = hooks.shared.setdefault("dealt", {})
        place = exchange.path, seq_of(frame)
        if exchange.cursor != "0-0" or seq_of(frame) < 3:
            return frame
        return frame if dealt.setdefault(place, id(exchange)) == id(exchange) else b""

    hooks.frames.append(deal)


@faulty_server("TW-DIF-045", "resume.log_begins_at_1_1_without_gaps")
def unmerged_diffs_have_on(hooks):
    """Diffs that were not merged have the member `on`."""
    base = lambda found: b'id:1-%b\ndata:{"ops":%b,"on":%d}' % (found[1], found[2], int(found[1]) - 1)  # noqa: E731
    rewrite_events(hooks, rb"^id:1-(\d+)\ndata:(\[.*\])", base)


@faulty_server("TW-RES-009", "resume.last_event_id_takes_precedence_over_after")
def last_event_id_case_sensitive(hooks):
    """`Last-Event-ID` is recognized only in its usual capitalization."""
    hooks.raw_head = lambda head: re.sub(rb"\r\n(last-event-id|LAST-EVENT-ID):", rb"\r\nX-\1:", head)


@faulty_server("TW-RES-043", "resume.ids_are_consecutive", "resume.ended_job_resumes_from_every_id")
def merged_diff_has_wrong_base(hooks):
    """A merged diff applies to a state that its reader does not have."""

    def base(exchange, frame):
        found = re.match(rb'id:1-(\d+)\ndata:(".*")', frame)
        if not found or exchange.cursor in {"", "0-0"} or int(found[1]) < 5:
            return frame
        return b'id:1-%b\ndata:{"ops":[["a","/items/0/value",%b]],"on":%d}\n\n' % (
            *found.groups(),
            int(found[1]) - 2,
        )

    hooks.frames.append(base)


@faulty_server("TW-RES-020", "resume.ended_job_resumes_from_every_id")
def first_diff_after_resume_repeats_text(hooks):
    """The first diff on a resumed stream repeats text that the reader already has."""

    def twice(exchange, frame):
        first = exchange.cursor not in {"", "0-0"} and not exchange.own.get("twice") and b'\ndata:"' in frame
        exchange.own["twice"] = exchange.own.get("twice") or first
        return re.sub(rb'data:"(.*)"', rb'data:"\1\1"', frame) if first else frame

    hooks.frames.append(twice)


@faulty_server("TW-RES-012", "resume.ended_job_resumes_from_every_id")
def ids_compared_as_strings(hooks):
    """Ids are compared as strings, so that `1-9` is greater than `1-10`."""
    hooks.frames.append(
        lambda exchange, frame: (
            b""
            if seq_of(frame)
            and re.fullmatch(r"1-\d+", exchange.cursor)
            and str(seq_of(frame)) <= exchange.cursor[2:]
            else frame
        )
    )


@faulty_server("TW-RES-006", "resume.ids_are_consecutive", "durable.sent_events_survive_a_restart")
def old_epoch_writer_continues(hooks):
    """After a new epoch has begun, events of the old epoch are still written."""
    late = b'id:1-4\ndata:"late"\n\n'
    after_a_restart(
        hooks,
        lambda exchange, frame: frame + late if OTHER_EPOCH.match(frame) and b'"restart"' in frame else frame,
    )


@faulty_server("TW-RES-004", "resume.ids_are_consecutive", "durable.sent_events_survive_a_restart")
def seqs_restart_in_each_epoch(hooks):
    """Sequence numbers begin at 1 in each epoch."""

    def renumber(exchange, frame):
        found = OTHER_EPOCH.match(frame)
        if not found:
            return frame
        first = hooks.shared.setdefault(f"first of {exchange.path}", int(found[2]))
        return b"id:%b-%d\n" % (found[1], int(found[2]) - first + 1) + frame[found.end() :]

    after_a_restart(hooks, renumber)


@faulty_server("TW-RES-011", "resume.malformed_cursor_returns_400")
def cursor_with_leading_zero_accepted(hooks):
    """The cursor `1-03` is accepted as `1-3`."""
    rewrite_query(hooks, rb"after=(\d+)-0+([1-9])", rb"after=\1-\2")


@faulty_server("TW-RES-011", "resume.malformed_cursor_returns_400")
def cursor_with_sixteen_digits_accepted(hooks):
    """A cursor with a sequence number of sixteen digits is accepted."""
    rewrite_query(hooks, rb"after=(\d+)-(\d{15})\d+", rb"after=\1-\2")


@faulty_server("TW-RES-009", "resume.last_event_id_takes_precedence_over_after")
def empty_last_event_id_overrides_after(hooks):
    """An empty `Last-Event-ID` takes precedence over `after`."""

    def overrule(exchange):
        if (b"last-event-id", b"") in exchange.scope["headers"]:
            exchange.query = b""

    hooks.requests.append(overrule)


@faulty_server("TW-RES-018", "resume.trimmed_log_resumes_with_a_snapshot")
def oldest_snapshot_has_reason_start(hooks):
    """The first snapshot of a trimmed log has the reason `start`."""
    hooks.frames.append(
        lambda exchange, frame: (
            frame.replace(b'"reason":"compacted"', b'"reason":"start"') if exchange.cursor == "0-0" else frame
        )
    )


@faulty_server("TW-RES-020", "resume.trimmed_log_resumes_with_a_snapshot")
def event_after_oldest_snapshot_skipped(hooks):
    """An event after the oldest snapshot of a trimmed log is skipped."""

    def skip(exchange, frame):
        if exchange.cursor == "0-0" and not exchange.own.get("first") and seq_of(frame) > 1:
            hooks.shared[exchange.path] = seq_of(frame)
        exchange.own["first"] = exchange.own.get("first") or seq_of(frame)
        edge = hooks.shared.get(exchange.path)
        return b"" if edge and exchange.cursor == f"1-{edge}" and seq_of(frame) == edge + 1 else frame

    hooks.frames.append(skip)


@faulty_server("TW-RES-011", "resume.malformed_cursor_returns_400")
def cursor_with_line_feed_accepted(hooks):
    """A cursor that ends with a line feed is accepted, as by a regular expression that ends with `$`."""
    rewrite_query(hooks, rb"%0A$", b"")


@faulty_server("TW-RES-011", "resume.malformed_cursor_returns_400")
def cursor_with_spaces_accepted(hooks):
    """Spaces around a cursor are ignored."""
    rewrite_query(hooks, rb"after=%20", b"after=")


@faulty_server("TW-RES-012", "resume.unknown_cursor_returns_rewound_snapshot")
def epochs_limited_to_32_bits(hooks):
    """A cursor whose epoch has more than 32 bits is rejected."""
    refuse(hooks, lambda exchange: exchange.cursor.startswith("9999999999-"), 400, "bad_cursor")


@faulty_server("TW-RES-047", "resume.unknown_cursor_returns_rewound_snapshot")
def seqs_limited_to_32_bits(hooks):
    """A cursor whose sequence number has more than 32 bits is answered with 500."""
    refuse(hooks, lambda exchange: exchange.cursor.endswith("-999999999999999"), 500, "internal")
