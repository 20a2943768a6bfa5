"""Faulty servers with wrong states, diffs or digests."""

import hashlib
import json
import re

from proof.servers.expected_side_failures import FAILED_JOB, INVALID_PATH, WRONG_EVENT, WRONG_HISTORY
from proof.servers.fault_helpers import change_data, replace_events, rewrite_body, rewrite_events, seq_of
from proof.servers.faults import fault, faulty_server


def change_checks(change):
    """Change each check of a text."""

    def apply(exchange, kind, data):
        if isinstance(data, dict):
            data["check"] = [change(check) for check in data["check"]] if "check" in data else []
        return data

    return change_data(apply)


def change_diffs(change):
    """Change each event that is a diff."""
    return lambda exchange, frame: frame if b"\nevent:" in frame else change(frame)


def digest_by(write):
    """Return an installer that computes digests over the JSON that the function `write` returns."""

    def install(hooks):
        from tidewire_server.job_log.log_writer import LogWriter

        async def digest(writer):
            return hashlib.sha256(write(writer.pending.state.value("/items")).encode()).hexdigest()[:16]

        LogWriter._digest = digest

    return install


def python_json(items, **options):
    return json.dumps(items, ensure_ascii=False, separators=(",", ":"), **options)


def canonical_json(items):
    import rfc8785

    return rfc8785.dumps(items).decode()


# fmt: off
fault("wrong_crc", "TW-DIF-047", "state.diffs_apply_and_checks_hold",
      "Checks have a wrong CRC.",
      frames=change_checks(lambda check: [*check[:2], check[2] ^ 1] if len(check) == 3 else check),
      also_fails=WRONG_EVENT)
fault("wrong_digest", "TW-DIF-055", "state.diffs_apply_and_checks_hold",
      "The digest in `done` is wrong.",
      frames=rewrite_events(rb'"digest":"[0-9a-f]{16}"', b'"digest":"0123456789abcdef"'),
      also_fails={"the `done` in the job resource has the right digest": "jobs.ended_job_includes_done"})
fault("digest_of_unsorted_members", "TW-DIF-055", "state.diffs_apply_and_checks_hold",
      "The digest is computed over JSON with unsorted members.",
      install=digest_by(python_json),
      also_run="framing.log_ends_with_exactly_one_done")
fault("digest_sorts_by_code_points", "TW-DIF-055", "state.diffs_apply_and_checks_hold",
      "The digest is computed over JSON whose members are sorted by code points, not by UTF-16 code units.",
      install=digest_by(lambda items: python_json(items, sort_keys=True).replace("1e-07", "1e-7")),
      also_run="state.diffs_reconstruct_the_value")
fault("digest_uses_python_numbers", "TW-DIF-055", "state.diffs_apply_and_checks_hold",
      "The digest is computed over JSON whose numbers are written as in Python.",
      install=digest_by(lambda items: canonical_json(items).replace("1e-7", "1e-07")),
      also_run="state.diffs_reconstruct_the_value")

fault("read_differs_from_stream", "TW-JOB-039", "state.each_id_has_one_state",
      "The job resource contains a different value than the job's event stream.",
      bodies=rewrite_body(b'"value":"Hello"', b'"value":"Hallo"'),
      also_run="jobs.ended_job_includes_done")

fault("insert_off_by_one", "TW-DIF-012", "state.diffs_reconstruct_the_value",
      "When an element is inserted into an array, the index is too low by one.",
      frames=rewrite_events(rb'(\["[is]","/items/0/value/a)/([1-9]\d*)"',
          lambda found: b'%b/%d"' % (found[1], int(found[2]) - 1)))
fault("path_names_not_escaped", "TW-DIF-012", "state.diffs_reconstruct_the_value",
      "Slashes and tildes in paths are not escaped.",
      frames=change_diffs(lambda frame: frame.replace(b"~1", b"/").replace(b"~0", b"~")),
      also_fails=INVALID_PATH)
fault("path_slash_escaped_as_01", "TW-DIF-012", "state.diffs_reconstruct_the_value",
      "A slash in a path is escaped as `~01`.",
      frames=change_diffs(lambda frame: frame.replace(b"~1", b"~01")),
      also_fails=INVALID_PATH)

fault("digest_keeps_negative_zero", "TW-DIF-055", "state.diffs_reconstruct_the_value",
      "The digest is computed over JSON that keeps the sign of negative zero.",
      install=digest_by(lambda items: canonical_json(items).replace("0.5,0,", "0.5,-0,")))

fault("append_splits_a_surrogate_pair", "TW-DIF-032", "state.text_lengths_count_code_points",
      "An append ends inside a surrogate pair.",
      frames=replace_events(b'data:"', lambda frame: frame.replace("🎉".encode(), b"\\ud83c")),
      also_fails={"half a surrogate pair is invalid JSON": "json_and_times.all_json_is_valid"})

fault("columns_change_within_an_epoch", "TW-DIF-035", "state.columns_are_constant_within_an_epoch",
      "Two snapshots of the same epoch have different columns.",
      frames=rewrite_events(rb'"columns":\["/items/0/value"\]', b'"columns":[]', within=b'"reason":"compacted"'),
      also_run="resume.ended_job_without_cursor_returns_snapshot_and_done",
      also_fails=WRONG_EVENT)


fault("job_with_failed_item_succeeds", "TW-OVR-020", "state.item_status_transitions_are_valid",
      "A job with a failed item ends with the status `succeeded`.",
      frames=rewrite_events(b'"status":"failed","usage"', b'"status":"succeeded","usage"'),
      also_run="framing.log_ends_with_exactly_one_done",
      also_fails={"the state of the job differs from its `done`":
          "jobs.state_of_an_ended_job_has_its_end"} | WRONG_EVENT | FAILED_JOB)

fault("item_running_at_done", "TW-OVR-021", "state.item_status_transitions_are_valid",
      "The job ends although its item is still running.",
      frames=rewrite_events(rb',?\["s","/items/0/status","succeeded"\]', b""),
      also_run="framing.log_ends_with_exactly_one_done",
      also_fails=WRONG_EVENT)

fault("stable_text_truncated", "TW-DIF-057", "state.stable_text_does_not_change", "Stable text is truncated.",
      frames=change_data(lambda exchange, kind, data:
          [["t", "/items/0/value", 1]] if data == "word 5 né 😀, " else data),
      also_fails=WRONG_EVENT)

fault("queued_item_succeeds_directly", "TW-OVR-018", "state.item_status_transitions_are_valid",
      "The status of an item changes directly from `queued` to `succeeded`.",
      frames=change_data(lambda exchange, kind, data:
          [] if isinstance(data, list) and data and data[0][1:] == ["/items/0/status", "running"] else data),
      also_fails={"an event is left out": "catch_up.no_event_is_lost_between_replay_and_live_events"} | WRONG_HISTORY)
# fmt: on


@faulty_server(
    "TW-DIF-043",
    "state.each_id_has_one_state",
    hook="frames",
    also_run="resume.ended_job_resumes_from_every_id",
    also_fails=WRONG_EVENT,
)
def merged_diff_omits_an_event(exchange, frame):
    """A merged diff omits one of its events."""
    if seq_of(frame) == 5 and exchange.cursor not in {"", "0-0"} and b"event:" not in frame:
        exchange.own["hole"] = True
        return b""
    if exchange.own.pop("hole", False) and (found := re.search(rb"data:(\".*\")", frame)):
        return b'id:1-6\ndata:{"ops":[["a","/items/0/value",%b]],"on":4}\n\n' % found[1]
    return frame


@faulty_server("TW-DIF-046", "state.diffs_apply_and_checks_hold", hook="frames", also_fails=WRONG_EVENT)
def lengths_in_utf16_units(exchange, frame):
    """Lengths in checks are counted in UTF-16 code units."""
    exchange.own["astral"] = exchange.own.get("astral", 0) + frame.decode().count("😀")
    more = exchange.own["astral"]
    return re.sub(
        rb'(\["/items/0/value",)(\d+)(,\d+\])',
        lambda m: m[1] + str(int(m[2]) + more).encode() + m[3],
        frame,
    )


@faulty_server(
    "TW-DIF-012",
    "state.diffs_reconstruct_the_value",
    hook="frames",
    also_fails={"reordered operations change the text": "generation.stop_string_is_never_streamed"},
)
@change_data
def ops_out_of_order(exchange, kind, data):
    """The operations of a diff are in reverse order."""
    if kind == "message" and isinstance(data, list):
        return data[::-1]
    if kind == "message" and isinstance(data, dict):
        data["ops"] = data["ops"][::-1]
    return data


@faulty_server("TW-DIF-058", "state.stable_text_does_not_change", hook="frames", also_fails=WRONG_HISTORY)
@change_data
def stable_length_exceeds_text(exchange, kind, data):
    """A `stable` length is greater than its text."""
    for op in data if isinstance(data, list) else ():
        if op[1].endswith("/stable/"):
            op[2] += 500
    return data


@faulty_server("TW-DIF-003", "state.states_are_valid", hook="frames", also_fails=WRONG_HISTORY)
@change_data
def diff_sets_final_status(exchange, kind, data):
    """A diff sets the final status of the job before `done`."""
    ends = b'"/items/0/status","succeeded"' in json.dumps(data, separators=(",", ":")).encode()
    if kind == "message" and isinstance(data, dict) and ends:
        data["ops"].append(["s", "/status", "succeeded"])
    return data


@faulty_server("TW-DIF-002", "state.states_are_valid", hook="frames", also_fails=WRONG_EVENT)
@change_data
def item_added_while_running(exchange, kind, data):
    """An item is added while the job runs."""
    starts = isinstance(data, list) and data and data[0][1:] == ["/items/0/status", "running"]
    item = {"status": "succeeded", "value": 0}
    return [*data, ["s", "/items/1", item]] if starts and len(data) == 2 else data


@faulty_server("TW-OVR-018", "state.item_status_transitions_are_valid", hook="frames")
@change_data
def running_item_queued_again(exchange, kind, data):
    """A running item is queued again."""
    status = {"word 3 né 😀, ": "queued", "word 4 né 😀, ": "running"}.get(str(data))
    return [["s", "/items/0/status", status]] if status else data
