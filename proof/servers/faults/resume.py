"""Faulty servers with errors in event ids or in resuming from a cursor."""

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


@faulty_server("TW-RES-019", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def cursor_ignored(hooks):
    """`Last-Event-ID` is ignored, and the whole log is replayed."""
    set_request_header(hooks, "last-event-id", "0-0", lambda exchange: exchange.cursor)


@faulty_server("TW-RES-019", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def replays_the_event_of_the_cursor(hooks):
    """The event of the cursor is sent again."""
    shift_cursor(hooks, -1)


@faulty_server("TW-RES-020", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def skips_the_event_after_the_cursor(hooks):
    """The event after the cursor is skipped."""
    shift_cursor(hooks, +1)


@faulty_server("TW-RES-020", "resume.a_running_job_resumes_after_each_cut")
def skips_an_event_of_a_running_job(hooks):
    """A resumed stream of a running job skips an event."""

    def skip(exchange, frame):
        first = exchange.cursor not in {"", "0-0"} and seq_of(frame) and not exchange.own.get("seen")
        exchange.own["seen"] = exchange.own.get("seen") or first
        return b"" if first and DONE not in frame else frame

    hooks.frames.append(skip)


@faulty_server("TW-RES-009", "resume.the_header_is_younger_than_the_url")
def the_url_overrules_the_header(hooks):
    """`after` takes precedence over `Last-Event-ID`."""
    set_request_header(hooks, "last-event-id", None, lambda exchange: b"after=" in exchange.query)


@faulty_server("TW-RES-010", "resume.without_a_cursor_an_ended_job_gives_a_snapshot_and_done")
def an_empty_cursor_is_the_beginning(hooks):
    """An empty `after` is treated as a cursor."""

    def begin(exchange):
        if exchange.method == "GET" and exchange.query == b"after=":
            exchange.set_header("last-event-id", "1-1")

    hooks.requests.append(begin)


@faulty_server(
    "TW-RES-006", "resume.ids_go_up_without_a_gap", "resume.a_history_begins_at_1_1_and_has_no_gap"
)
def replay_reordered(hooks):
    """A replay swaps two events."""

    def swap(exchange, frame):
        if exchange.cursor == "0-0" and seq_of(frame) == 3:
            exchange.own["kept"] = frame
            return b""
        return frame + exchange.own.pop("kept", b"") if seq_of(frame) == 4 else frame

    hooks.frames.append(swap)


@faulty_server("TW-RES-020", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def replay_renders_other_text(hooks):
    """A replay has other text than the original stream."""
    hooks.frames.append(
        lambda exchange, frame: (
            frame.replace(b'data:"2', b'data:"3') if exchange.cursor not in {"", "0-0"} else frame
        )
    )


@faulty_server("TW-RES-003", "resume.ids_go_up_without_a_gap")
def ids_skip(hooks):
    """Every second sequence number is skipped."""
    odd = lambda found: b"id:1-%d\n" % (2 * int(found[1]) - 1)  # noqa: E731
    rewrite_events(hooks, rb"^id:1-(\d+)\n", odd)


@faulty_server("TW-RES-006", "resume.ids_go_up_without_a_gap")
def ids_repeat(hooks):
    """Two events have the same id."""
    rewrite_events(hooks, rb"^id:1-4\n", b"id:1-3\n")


@faulty_server("TW-RES-005", "resume.a_history_begins_at_1_1_and_has_no_gap")
def ids_begin_at_two(hooks):
    """Sequence numbers begin at 2."""
    more = lambda found: b"id:1-%d\n" % (int(found[1]) + 1)  # noqa: E731
    rewrite_events(hooks, rb"^id:1-(\d+)\n", more)


@faulty_server("TW-RES-019", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def ids_restart_after_a_reconnect(hooks):
    """Sequence numbers begin at 1 again after a reconnect."""

    def renumber(exchange, frame):
        if exchange.cursor in {"", "0-0"} or not seq_of(frame):
            return frame
        exchange.own["n"] = exchange.own.get("n", 0) + 1
        return re.sub(rb"^id:1-\d+", b"id:1-%d" % exchange.own["n"], frame)

    hooks.frames.append(renumber)


@faulty_server("TW-RES-012", "resume.a_cursor_that_no_epoch_holds_gets_a_rewound_snapshot")
def unknown_cursor_starts_from_now(hooks):
    """An unknown cursor gets only new events, without a snapshot."""
    replace_events(hooks, b'"reason":"rewound"', lambda frame: b"")


@faulty_server("TW-RES-012", "resume.a_trimmed_log_is_bridged_by_a_snapshot")
def trimmed_log_gives_the_rest(hooks):
    """A cursor before the trimmed log gets the remaining events without a snapshot."""
    hooks.frames.append(
        lambda exchange, frame: b"" if exchange.cursor and b'"reason":"compacted"' in frame else frame
    )


@faulty_server("TW-RES-011", "resume.a_cursor_that_is_no_id_is_refused")
def any_cursor_is_taken(hooks):
    """An invalid cursor is ignored."""

    def rewrite(exchange):
        asked = re.search(rb"after=([^&]+)", exchange.query)
        if asked and not re.fullmatch(rb"\d+-\d+", asked[1]):
            exchange.query = b""

    hooks.requests.append(rewrite)


@faulty_server("TW-FRM-056", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def resume_after_the_end_hangs(hooks):
    """A resumed stream of an ended job hangs before `done`."""
    hooks.frames.append(
        lambda exchange, frame: HANG if exchange.cursor not in {"", "0-0"} and DONE in frame else frame
    )


@faulty_server("TW-RES-012", "resume.the_cursor_of_done_has_nothing_after_it")
def the_cursor_of_done_gets_done_again(hooks):
    """The id of `done` as the cursor gets `done` again."""

    def back(exchange):
        if (n := hooks.shared.get(exchange.path)) and exchange.cursor == f"1-{n}":
            exchange.set_header("last-event-id", f"1-{n - 1}")

    def note(exchange, frame):
        if DONE in frame:
            hooks.shared[exchange.path] = seq_of(frame)
        return frame

    hooks.requests.append(back)
    hooks.frames.append(note)


@faulty_server("TW-DIF-010", "resume.without_a_cursor_an_ended_job_gives_a_snapshot_and_done")
def done_folded_into_a_snapshot(hooks):
    """The snapshot of an ended job already has the final status."""

    def fold(exchange, frame):
        if b'"reason":"compacted"' in frame:
            return frame.replace(b'"state":{"status":"running"', b'"state":{"status":"succeeded"')
        return frame

    hooks.frames.append(fold)


@faulty_server("TW-DIF-009", "resume.ids_go_up_without_a_gap")
def first_event_is_a_diff(hooks):
    """A new stream begins with a diff."""
    hooks.frames.append(
        lambda exchange, frame: b"" if b"event:snapshot" in frame and not exchange.cursor else frame
    )


@faulty_server("TW-JOB-063", "resume.a_closed_connection_leaves_the_job_alone")
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


@faulty_server("TW-DIF-066", "resume.two_readers_see_the_same_history")
def second_reader_steals_events(hooks):
    """Two readers of one job share its events between them."""

    def deal(exchange, frame):
        dealt = hooks.shared.setdefault("dealt", {})
        place = exchange.path, seq_of(frame)
        if exchange.cursor != "0-0" or seq_of(frame) < 3:
            return frame
        return frame if dealt.setdefault(place, id(exchange)) == id(exchange) else b""

    hooks.frames.append(deal)


@faulty_server("TW-DIF-045", "resume.a_history_begins_at_1_1_and_has_no_gap")
def logged_diffs_name_a_base(hooks):
    """Unmerged diffs have `on`."""
    base = lambda found: b'id:1-%b\ndata:{"ops":%b,"on":%d}' % (found[1], found[2], int(found[1]) - 1)  # noqa: E731
    rewrite_events(hooks, rb"^id:1-(\d+)\ndata:(\[.*\])", base)


@faulty_server("TW-RES-009", "resume.the_header_is_younger_than_the_url")
def the_header_in_one_case_alone(hooks):
    """`Last-Event-ID` is recognized only in its usual capitalization."""
    hooks.raw_head = lambda head: re.sub(rb"\r\n(last-event-id|LAST-EVENT-ID):", rb"\r\nX-\1:", head)


@faulty_server(
    "TW-RES-043", "resume.ids_go_up_without_a_gap", "resume.every_cut_point_of_a_job_that_has_ended_resumes"
)
def a_merged_diff_names_another_base(hooks):
    """A merged diff names a base that its reader does not have."""

    def base(exchange, frame):
        found = re.match(rb'id:1-(\d+)\ndata:(".*")', frame)
        if not found or exchange.cursor in {"", "0-0"} or int(found[1]) < 5:
            return frame
        return b'id:1-%b\ndata:{"ops":[["a","/items/0/value",%b]],"on":%d}\n\n' % (
            *found.groups(),
            int(found[1]) - 2,
        )

    hooks.frames.append(base)


@faulty_server("TW-RES-020", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def the_overlap_is_sent_as_a_diff(hooks):
    """The first diff after a resume repeats text that the reader has."""

    def twice(exchange, frame):
        first = exchange.cursor not in {"", "0-0"} and not exchange.own.get("twice") and b'\ndata:"' in frame
        exchange.own["twice"] = exchange.own.get("twice") or first
        return re.sub(rb'data:"(.*)"', rb'data:"\1\1"', frame) if first else frame

    hooks.frames.append(twice)


@faulty_server("TW-RES-012", "resume.every_cut_point_of_a_job_that_has_ended_resumes")
def ids_are_compared_as_texts(hooks):
    """Ids are compared as strings, so `1-9` comes after `1-10`."""
    hooks.frames.append(
        lambda exchange, frame: (
            b""
            if seq_of(frame)
            and re.fullmatch(r"1-\d+", exchange.cursor)
            and str(seq_of(frame)) <= exchange.cursor[2:]
            else frame
        )
    )


@faulty_server("TW-RES-006", "resume.ids_go_up_without_a_gap", "durable.what_was_sent_survives_a_restart")
def a_zombie_writes_on(hooks):
    """The writer of an old epoch continues after the new epoch was opened."""
    late = b'id:1-4\ndata:"late"\n\n'
    after_a_restart(
        hooks,
        lambda exchange, frame: frame + late if OTHER_EPOCH.match(frame) and b'"restart"' in frame else frame,
    )


@faulty_server("TW-RES-004", "resume.ids_go_up_without_a_gap", "durable.what_was_sent_survives_a_restart")
def seqs_begin_anew_in_each_epoch(hooks):
    """Sequence numbers begin at 1 in each epoch."""

    def renumber(exchange, frame):
        found = OTHER_EPOCH.match(frame)
        if not found:
            return frame
        first = hooks.shared.setdefault(f"first of {exchange.path}", int(found[2]))
        return b"id:%b-%d\n" % (found[1], int(found[2]) - first + 1) + frame[found.end() :]

    after_a_restart(hooks, renumber)


@faulty_server("TW-RES-011", "resume.a_cursor_that_is_no_id_is_refused")
def zeros_before_a_seq(hooks):
    """The cursor `1-03` is accepted as `1-3`."""
    rewrite_query(hooks, rb"after=(\d+)-0+([1-9])", rb"after=\1-\2")


@faulty_server("TW-RES-011", "resume.a_cursor_that_is_no_id_is_refused")
def a_seq_of_sixteen_digits(hooks):
    """A cursor with a sequence number of sixteen digits is accepted."""
    rewrite_query(hooks, rb"after=(\d+)-(\d{15})\d+", rb"after=\1-\2")


@faulty_server("TW-RES-009", "resume.the_header_is_younger_than_the_url")
def an_empty_header_overrules_the_url(hooks):
    """An empty `Last-Event-ID` takes precedence over `after`."""

    def overrule(exchange):
        if (b"last-event-id", b"") in exchange.scope["headers"]:
            exchange.query = b""

    hooks.requests.append(overrule)


@faulty_server("TW-RES-018", "resume.a_trimmed_log_is_bridged_by_a_snapshot")
def the_oldest_snapshot_is_called_the_start(hooks):
    """The first snapshot of a trimmed log has the reason `start`."""
    hooks.frames.append(
        lambda exchange, frame: (
            frame.replace(b'"reason":"compacted"', b'"reason":"start"') if exchange.cursor == "0-0" else frame
        )
    )


@faulty_server("TW-RES-020", "resume.a_trimmed_log_is_bridged_by_a_snapshot")
def the_edge_of_the_log_is_off_by_one(hooks):
    """An event after the oldest snapshot of a trimmed log is skipped."""

    def skip(exchange, frame):
        if exchange.cursor == "0-0" and not exchange.own.get("first") and seq_of(frame) > 1:
            hooks.shared[exchange.path] = seq_of(frame)
        exchange.own["first"] = exchange.own.get("first") or seq_of(frame)
        edge = hooks.shared.get(exchange.path)
        return b"" if edge and exchange.cursor == f"1-{edge}" and seq_of(frame) == edge + 1 else frame

    hooks.frames.append(skip)


@faulty_server("TW-RES-011", "resume.a_cursor_that_is_no_id_is_refused")
def a_line_end_after_a_cursor(hooks):
    """A cursor with a trailing line feed is accepted, as by `$` in a regular expression."""
    rewrite_query(hooks, rb"%0A$", b"")


@faulty_server("TW-RES-011", "resume.a_cursor_that_is_no_id_is_refused")
def blanks_before_a_cursor(hooks):
    """Spaces around a cursor are ignored."""
    rewrite_query(hooks, rb"after=%20", b"after=")


@faulty_server("TW-RES-012", "resume.a_cursor_that_no_epoch_holds_gets_a_rewound_snapshot")
def epochs_have_32_bits(hooks):
    """An epoch above 32 bits is refused."""
    refuse(hooks, lambda exchange: exchange.cursor.startswith("9999999999-"), 400, "bad_cursor")


@faulty_server("TW-RES-047", "resume.a_cursor_that_no_epoch_holds_gets_a_rewound_snapshot")
def seqs_have_32_bits(hooks):
    """A sequence number above 32 bits is answered with 500."""
    refuse(hooks, lambda exchange: exchange.cursor.endswith("-999999999999999"), 500, "internal")
