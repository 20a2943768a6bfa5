"""Faulty servers with errors in event ids, or when a stream resumes from a cursor."""

import json
import re

from proof.servers.expected_side_failures import BROKEN_STREAM, CURSOR_VALIDATION, NEW_STREAM, WRONG_EVENT
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
from proof.servers.faults import fault, faulty_server
from proof.servers.faults.durable import OTHER_EPOCH, after_a_restart


def shift_cursor(by):
    """Add a number to the sequence number of the cursor."""

    def move(exchange):
        if re.fullmatch(r"1-\d+", exchange.cursor):
            exchange.set_header("last-event-id", f"1-{max(1, int(exchange.cursor[2:]) + by)}")

    return move


# fmt: off
fault("cursor_ignored", "TW-RES-019", "resume.ended_job_resumes_from_every_id",
      "`Last-Event-ID` is ignored, and the whole log is replayed.",
      requests=set_request_header("last-event-id", "0-0", lambda exchange: exchange.cursor),
      also_fails={"invalid cursors are ignored, too":
          "requests_with_several_errors.long_numbers_are_refused"} | CURSOR_VALIDATION)
fault("cursor_event_sent_again", "TW-RES-019", "resume.ended_job_resumes_from_every_id",
      "The event with the id of the cursor is sent again.",
      requests=shift_cursor(-1),
      also_fails={"the server cannot compute with a cursor of 5,000 digits, and answers with 500":
          "requests_with_several_errors.long_numbers_are_refused jobs.job_responses_are_not_cacheable errors.errors_are_valid_problem_documents"} | WRONG_EVENT)
fault("event_after_cursor_skipped", "TW-RES-020", "resume.ended_job_resumes_from_every_id",
      "The event after the cursor is skipped.",
      requests=shift_cursor(+1),
      also_fails={"the server cannot compute with a cursor of 5,000 digits, and answers with 500":
          "requests_with_several_errors.long_numbers_are_refused jobs.job_responses_are_not_cacheable errors.errors_are_valid_problem_documents"} | WRONG_EVENT)
fault("replay_has_other_text", "TW-RES-020", "resume.ended_job_resumes_from_every_id",
      "The text in a replay differs from the text in the original stream.",
      frames=rewrite_events(rb'data:"2', b'data:"3', where=lambda exchange: exchange.cursor not in {"", "0-0"}),
      also_fails=WRONG_EVENT)
fault("resume_of_ended_job_hangs", "TW-FRM-056", "resume.ended_job_resumes_from_every_id",
      "A resumed stream of an ended job hangs before `done`.",
      frames=lambda exchange, frame: HANG if exchange.cursor not in {"", "0-0"} and DONE in frame else frame,
      also_fails=BROKEN_STREAM)

fault("after_overrides_last_event_id", "TW-RES-009", "resume.last_event_id_takes_precedence_over_after",
      "`after` takes precedence over `Last-Event-ID`.",
      requests=set_request_header("last-event-id", None, lambda exchange: b"after=" in exchange.query),
      also_fails=WRONG_EVENT)
fault("last_event_id_case_sensitive", "TW-RES-009", "resume.last_event_id_takes_precedence_over_after",
      "`Last-Event-ID` is recognized only in its usual capitalization.",
      raw_head=lambda head: re.sub(rb"\r\n(last-event-id|LAST-EVENT-ID):", rb"\r\nX-\1:", head),
      also_fails=WRONG_EVENT)

fault("every_second_id_skipped", "TW-RES-003", "resume.ids_are_consecutive",
      "Every second sequence number is skipped.",
      frames=rewrite_events(rb"^id:1-(\d+)\n", lambda found: b"id:1-%d\n" % (2 * int(found[1]) - 1)),
      also_fails=WRONG_EVENT)
fault("duplicate_ids", "TW-RES-006", "resume.ids_are_consecutive",
      "Two events have the same id.",
      frames=rewrite_events(rb"^id:1-4\n", b"id:1-3\n"),
      also_fails=WRONG_EVENT)
fault("first_event_is_a_diff", "TW-DIF-009", "resume.ids_are_consecutive",
      "A new stream begins with a diff.",
      frames=lambda exchange, frame: b"" if b"event:snapshot" in frame and not exchange.cursor else frame,
      also_fails={"new streams lack their snapshot":
          "catch_up.no_event_is_lost_between_replay_and_live_events jobs.submit_ignores_a_cursor"} | NEW_STREAM | {"the stream of snapshots in the check is a new stream":
          "snapshots_only.diffs_0_returns_snapshots_and_done"})
fault("old_epoch_writer_continues", "TW-RES-006", "resume.ids_are_consecutive",
      "After a new epoch has begun, events of the old epoch are still written.",
      has_durable_log=True,
      frames=after_a_restart(replace_events(b'"restart"', lambda frame: frame + b'id:1-4\ndata:"late"\n\n')),
      also_run="durable.sent_events_survive_a_restart",
      also_fails=WRONG_EVENT)

fault("ids_begin_at_2", "TW-RES-005", "resume.log_begins_at_1_1_without_gaps",
      "Sequence numbers begin at 2.",
      frames=rewrite_events(rb"^id:1-(\d+)\n", lambda found: b"id:1-%d\n" % (int(found[1]) + 1)),
      also_fails=WRONG_EVENT)
fault("unmerged_diffs_have_on", "TW-DIF-045", "resume.log_begins_at_1_1_without_gaps",
      "Diffs that were not merged have the member `on`.",
      frames=rewrite_events(rb"^id:1-(\d+)\ndata:(\[.*\])",
          lambda found: b'id:1-%b\ndata:{"ops":%b,"on":%d}' % (found[1], found[2], int(found[1]) - 1)))

fault("unknown_cursor_gets_only_new_events", "TW-RES-012", "resume.unknown_cursor_returns_rewound_snapshot",
      "If the cursor is unknown, only new events are sent, without a snapshot.",
      frames=replace_events(b'"reason":"rewound"', lambda frame: b""),
      also_fails=CURSOR_VALIDATION)
fault("epochs_limited_to_32_bits", "TW-RES-012", "resume.unknown_cursor_returns_rewound_snapshot",
      "A cursor whose epoch has more than 32 bits is rejected.",
      instead=refuse(lambda exchange: exchange.cursor.startswith("9999999999-"), 400, "bad_cursor"))
fault("seqs_limited_to_32_bits", "TW-RES-047", "resume.unknown_cursor_returns_rewound_snapshot",
      "A cursor whose sequence number has more than 32 bits is answered with 500.",
      instead=refuse(lambda exchange: exchange.cursor.endswith("-999999999999999"), 500, "internal"))

fault("trimmed_cursor_gets_no_snapshot", "TW-RES-012", "resume.trimmed_log_resumes_with_a_snapshot",
      "If the log no longer contains the cursor, the remaining events are sent without a snapshot.",
      frames=lambda exchange, frame: b"" if exchange.cursor and b'"reason":"compacted"' in frame else frame,
      also_fails=WRONG_EVENT)
fault("oldest_snapshot_has_reason_start", "TW-RES-018", "resume.trimmed_log_resumes_with_a_snapshot",
      "The first snapshot of a trimmed log has the reason `start`.",
      frames=rewrite_events(b'"reason":"compacted"', b'"reason":"start"', where=lambda exchange: exchange.cursor == "0-0"),
      also_fails={"streams of snapshots begin with the same snapshot of the trimmed log":
          "snapshots_only.diffs_0_validates_the_cursor"})

fault("cursor_with_leading_zero_accepted", "TW-RES-011", "resume.malformed_cursor_returns_400",
      "The cursor `1-03` is accepted as `1-3`.",
      requests=rewrite_query(rb"after=(\d+)-0+([1-9])", rb"after=\1-\2"))
fault("cursor_with_sixteen_digits_accepted", "TW-RES-011", "resume.malformed_cursor_returns_400",
      "A cursor with a sequence number of sixteen digits is accepted.",
      requests=rewrite_query(rb"after=(\d+)-(\d{15})\d+", rb"after=\1-\2"))
fault("cursor_with_line_feed_accepted", "TW-RES-011", "resume.malformed_cursor_returns_400",
      "A cursor that ends with a line feed is accepted, as by a regular expression that ends with `$`.",
      requests=rewrite_query(rb"%0A$", b""))
fault("cursor_with_spaces_accepted", "TW-RES-011", "resume.malformed_cursor_returns_400",
      "Spaces around a cursor are ignored.",
      requests=rewrite_query(rb"after=%20", b"after="))

fault("empty_after_read_as_cursor", "TW-RES-010", "resume.ended_job_without_cursor_returns_snapshot_and_done",
      "An empty `after` is treated as a cursor.",
      requests=set_request_header("last-event-id", "1-1",
                                  lambda exchange: exchange.method == "GET" and exchange.query == b"after="))
# fmt: on


@faulty_server(
    "TW-RES-020", "resume.running_job_resumes_after_each_disconnect", hook="frames", also_fails=WRONG_EVENT
)
def running_job_resume_skips_an_event(exchange, frame):
    """A resumed stream of a running job skips an event."""
    first = exchange.cursor not in {"", "0-0"} and seq_of(frame) and not exchange.own.get("seen")
    exchange.own["seen"] = exchange.own.get("seen") or first
    return b"" if first and DONE not in frame else frame


@faulty_server(
    "TW-RES-020", "resume.running_job_resumes_from_earlier_ids", hook="frames", also_fails=WRONG_EVENT
)
def running_job_resume_far_behind_skips_an_event(exchange, frame):
    """While a job runs, a stream that resumes more than two events before the head skips an event."""
    head = exchange.shared.get(exchange.path, 0)
    exchange.shared[exchange.path] = 10**6 if DONE in frame else max(head, seq_of(frame))
    far = re.fullmatch(r"1-[1-9]\d*", exchange.cursor) and int(exchange.cursor[2:]) < head - 2 < 10**6 - 2
    skips = far and seq_of(frame) and DONE not in frame and "skipped" not in exchange.own
    exchange.own |= {"skipped": True} if seq_of(frame) else {}
    return b"" if skips else frame


@faulty_server("TW-RES-020", "resume.ended_job_resumes_from_every_id", also_fails=WRONG_EVENT)
def resume_skips_an_event_of_one_endpoint(hooks):
    """A resumed stream skips an event, but only in jobs of one endpoint."""

    def note(exchange, status, body):
        if exchange.path == "/v1/endpoints/talk/jobs" and status == 201:
            hooks.shared[f"/v1/jobs/{json.loads(body)['id']}/events"] = True

    def skip(exchange):
        if exchange.path in hooks.shared:
            shift_cursor(+1)(exchange)

    hooks.bodies.append(note)
    hooks.requests.append(skip)


@faulty_server(
    "TW-RES-006",
    "resume.ids_are_consecutive",
    hook="frames",
    also_run="resume.log_begins_at_1_1_without_gaps",
    also_fails=WRONG_EVENT,
)
def replay_reordered(exchange, frame):
    """A replay swaps two events."""
    if exchange.cursor == "0-0" and seq_of(frame) == 3:
        exchange.own["kept"] = frame
        return b""
    return frame + exchange.own.pop("kept", b"") if seq_of(frame) == 4 else frame


@faulty_server("TW-RES-019", "resume.ended_job_resumes_from_every_id", hook="frames", also_fails=WRONG_EVENT)
def ids_restart_after_reconnect(exchange, frame):
    """Sequence numbers begin at 1 again after a reconnect."""
    if exchange.cursor in {"", "0-0"} or not seq_of(frame):
        return frame
    exchange.own["n"] = exchange.own.get("n", 0) + 1
    return re.sub(rb"^id:1-\d+", b"id:1-%d" % exchange.own["n"], frame)


@faulty_server(
    "TW-RES-011",
    "resume.malformed_cursor_returns_400",
    hook="requests",
    also_fails={
        "an invalid cursor is no error": "requests_with_several_errors.request_with_several_errors_reports_one"
    }
    | CURSOR_VALIDATION
    | {
        "because of the fault, the server ignores a percent-encoded cursor and sends the whole log": "cursors_in_urls.after_works_like_last_event_id"
    },
)
def invalid_cursor_ignored(exchange):
    """An invalid cursor is ignored."""
    asked = re.search(rb"after=([^&]+)", exchange.query)
    if asked and not re.fullmatch(rb"\d+-\d+", asked[1]):
        exchange.query = b""


@faulty_server(
    "TW-RES-012",
    "resume.cursor_of_done_returns_204",
    also_fails={
        "streams of snapshots validate their cursor by the same code": "snapshots_only.diffs_0_validates_the_cursor"
    },
)
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


@faulty_server(
    "TW-DIF-010",
    "resume.ended_job_without_cursor_returns_snapshot_and_done",
    hook="frames",
    also_fails=WRONG_EVENT,
)
def snapshot_has_final_status(exchange, frame):
    """The snapshot of an ended job already has the final status."""
    if b'"reason":"compacted"' in frame:
        return frame.replace(b'"state":{"status":"running"', b'"state":{"status":"succeeded"')
    return frame


@faulty_server(
    "TW-JOB-063",
    "resume.disconnect_does_not_affect_the_job",
    also_fails={"the items of the cancelled job have succeeded": "state.item_status_transitions_are_valid"},
)
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


@faulty_server(
    "TW-DIF-066", "resume.concurrent_readers_see_the_same_states", hook="frames", also_fails=WRONG_EVENT
)
def readers_share_events(exchange, frame):
    """If two readers read the same job, each event is sent to only one of them."""
    dealt = exchange.shared.setdefault("dealt", {})
    place = exchange.path, seq_of(frame)
    if exchange.cursor != "0-0" or seq_of(frame) < 3:
        return frame
    return frame if dealt.setdefault(place, id(exchange)) == id(exchange) else b""


@faulty_server(
    "TW-RES-043",
    "resume.ids_are_consecutive",
    hook="frames",
    also_run="resume.ended_job_resumes_from_every_id",
    also_fails=WRONG_EVENT,
)
def merged_diff_has_wrong_base(exchange, frame):
    """A merged diff applies to a state that its reader does not have."""
    found = re.match(rb'id:1-(\d+)\ndata:(".*")', frame)
    if not found or exchange.cursor in {"", "0-0"} or int(found[1]) < 5:
        return frame
    return b'id:1-%b\ndata:{"ops":[["a","/items/0/value",%b]],"on":%d}\n\n' % (
        *found.groups(),
        int(found[1]) - 2,
    )


@faulty_server("TW-RES-020", "resume.ended_job_resumes_from_every_id", hook="frames", also_fails=WRONG_EVENT)
def first_diff_after_resume_repeats_text(exchange, frame):
    """The first diff on a resumed stream repeats text that the reader already has."""
    first = exchange.cursor not in {"", "0-0"} and not exchange.own.get("twice") and b'\ndata:"' in frame
    exchange.own["twice"] = exchange.own.get("twice") or first
    return re.sub(rb'data:"(.*)"', rb'data:"\1\1"', frame) if first else frame


@faulty_server("TW-RES-012", "resume.ended_job_resumes_from_every_id", hook="frames", also_fails=WRONG_EVENT)
def ids_compared_as_strings(exchange, frame):
    """Ids are compared as strings, so that `1-9` is greater than `1-10`."""
    number = seq_of(frame)
    is_known = number and re.fullmatch(r"1-\d+", exchange.cursor) and str(number) <= exchange.cursor[2:]
    return b"" if is_known else frame


@faulty_server(
    "TW-RES-004",
    "resume.ids_are_consecutive",
    hook="frames",
    has_durable_log=True,
    also_run="durable.sent_events_survive_a_restart",
    also_fails=WRONG_EVENT,
)
@after_a_restart
def seqs_restart_in_each_epoch(exchange, frame):
    """Sequence numbers begin at 1 in each epoch."""
    found = OTHER_EPOCH.match(frame)
    if not found:
        return frame
    first = exchange.shared.setdefault(f"first of {exchange.path}", int(found[2]))
    return b"id:%b-%d\n" % (found[1], int(found[2]) - first + 1) + frame[found.end() :]


@faulty_server("TW-RES-009", "resume.last_event_id_takes_precedence_over_after", hook="requests")
def empty_last_event_id_overrides_after(exchange):
    """An empty `Last-Event-ID` takes precedence over `after`."""
    if (b"last-event-id", b"") in exchange.scope["headers"]:
        exchange.query = b""


@faulty_server(
    "TW-RES-020",
    "resume.trimmed_log_resumes_with_a_snapshot",
    hook="frames",
    also_fails={"a skipped event makes the applied state wrong": "state.diffs_apply_and_checks_hold"},
)
def event_after_oldest_snapshot_skipped(exchange, frame):
    """An event after the oldest snapshot of a trimmed log is skipped."""
    if exchange.cursor == "0-0" and not exchange.own.get("first") and seq_of(frame) > 1:
        exchange.shared[exchange.path] = seq_of(frame)
    exchange.own["first"] = exchange.own.get("first") or seq_of(frame)
    edge = exchange.shared.get(exchange.path)
    return b"" if edge and exchange.cursor == f"1-{edge}" and seq_of(frame) == edge + 1 else frame
