"""Faulty servers with wrong states, diffs or digests."""

import hashlib
import json
import re

from proof.servers.fault_helpers import change_data, replace_events, rewrite_body, rewrite_events, seq_of
from proof.servers.faults import faulty_server


def change_checks(hooks, change):
    def apply(exchange, kind, data):
        if isinstance(data, dict):
            data["check"] = [change(check) for check in data["check"]] if "check" in data else []
        return data

    change_data(hooks, apply)


def digest_by(write):
    """Compute digests over the JSON that the function `write` returns."""
    from tidewire_server.log_writer.log_writer import LogWriter

    async def digest(writer):
        return hashlib.sha256(write(writer.pending.state.value("/items")).encode()).hexdigest()[:16]

    LogWriter._digest = digest


@faulty_server("TW-DIF-043", "state.each_id_has_one_state", "resume.ended_job_resumes_from_every_id")
def merged_diff_omits_an_event(hooks):
    """A merged diff omits one of its events."""

    def over(exchange, frame):
        if seq_of(frame) == 5 and exchange.cursor not in {"", "0-0"} and b"event:" not in frame:
            exchange.own["hole"] = True
            return b""
        if exchange.own.pop("hole", False) and (found := re.search(rb"data:(\".*\")", frame)):
            return b'id:1-6\ndata:{"ops":[["a","/items/0/value",%b]],"on":4}\n\n' % found[1]
        return frame

    hooks.frames.append(over)


@faulty_server("TW-DIF-047", "state.diffs_apply_and_checks_hold")
def wrong_crc(hooks):
    """Checks have a wrong CRC."""
    change_checks(hooks, lambda check: [*check[:2], check[2] ^ 1] if len(check) == 3 else check)


@faulty_server("TW-DIF-046", "state.diffs_apply_and_checks_hold")
def lengths_in_utf16_units(hooks):
    """Lengths in checks are counted in UTF-16 code units."""

    def count(exchange, frame):
        exchange.own["astral"] = exchange.own.get("astral", 0) + frame.decode().count("😀")
        more = exchange.own["astral"]
        return re.sub(
            rb'(\["/items/0/value",)(\d+)(,\d+\])',
            lambda m: m[1] + str(int(m[2]) + more).encode() + m[3],
            frame,
        )

    hooks.frames.append(count)


@faulty_server("TW-DIF-055", "state.diffs_apply_and_checks_hold")
def wrong_digest(hooks):
    """The digest in `done` is wrong."""
    rewrite_events(hooks, rb'"digest":"[0-9a-f]{16}"', b'"digest":"0123456789abcdef"')


@faulty_server("TW-JOB-039", "state.each_id_has_one_state", "jobs.ended_job_includes_done")
def read_differs_from_stream(hooks):
    """The job resource contains a different value than the job's event stream."""
    rewrite_body(hooks, b'"value":"Hello"', b'"value":"Hallo"')


@faulty_server("TW-DIF-012", "state.diffs_reconstruct_the_value")
def ops_out_of_order(hooks):
    """The operations of a diff are in reverse order."""

    def reverse(exchange, kind, data):
        if kind == "message" and isinstance(data, list):
            return data[::-1]
        if kind == "message" and isinstance(data, dict):
            data["ops"] = data["ops"][::-1]
        return data

    change_data(hooks, reverse)


@faulty_server("TW-DIF-012", "state.diffs_reconstruct_the_value")
def insert_off_by_one(hooks):
    """When an element is inserted into an array, the index is too low by one."""
    before = lambda found: b'%b/%d"' % (found[1], int(found[2]) - 1)  # noqa: E731
    rewrite_events(hooks, rb'(\["[is]","/items/0/value/a)/([1-9]\d*)"', before)


@faulty_server("TW-DIF-032", "state.text_lengths_count_code_points")
def append_splits_a_surrogate_pair(hooks):
    """An append ends inside a surrogate pair."""
    replace_events(hooks, b'data:"', lambda frame: frame.replace("🎉".encode(), b"\\ud83c"))


@faulty_server(
    "TW-DIF-035",
    "state.columns_are_constant_within_an_epoch",
    "resume.ended_job_without_cursor_returns_snapshot_and_done",
)
def columns_change_within_an_epoch(hooks):
    """Two snapshots of the same epoch have different columns."""
    hooks.frames.append(
        lambda exchange, frame: frame.replace(
            b'"columns":["/items/0/value"],"reason":"compacted"', b'"columns":[],"reason":"compacted"'
        )
    )


@faulty_server("TW-DIF-057", "state.stable_text_does_not_change")
def stable_text_truncated(hooks):
    """Stable text is truncated."""

    def shrink(exchange, kind, data):
        return [["t", "/items/0/value", 1]] if data == "word 5 né 😀, " else data

    change_data(hooks, shrink)


@faulty_server("TW-DIF-058", "state.stable_text_does_not_change")
def stable_length_exceeds_text(hooks):
    """A `stable` length is greater than its text."""

    def grow(exchange, kind, data):
        return (
            [[*op[:2], op[2] + 500] if op[1].endswith("/stable/") else op for op in data]
            if isinstance(data, list)
            else data
        )

    change_data(hooks, grow)


@faulty_server("TW-DIF-003", "state.states_are_valid")
def diff_sets_final_status(hooks):
    """A diff sets the final status of the job before `done`."""

    def end(exchange, kind, data):
        ends = b'"/items/0/status","succeeded"' in json.dumps(data, separators=(",", ":")).encode()
        if kind == "message" and isinstance(data, dict) and ends:
            data["ops"].append(["s", "/status", "succeeded"])
        return data

    change_data(hooks, end)


@faulty_server("TW-DIF-002", "state.states_are_valid")
def item_added_while_running(hooks):
    """An item is added while the job runs."""
    item = {"status": "succeeded", "value": 0}

    def add(exchange, kind, data):
        starts = isinstance(data, list) and data and data[0][1:] == ["/items/0/status", "running"]
        return [*data, ["s", "/items/1", item]] if starts and len(data) == 2 else data

    change_data(hooks, add)


@faulty_server("TW-OVR-018", "state.item_status_transitions_are_valid")
def queued_item_succeeds_directly(hooks):
    """The status of an item changes directly from `queued` to `succeeded`."""

    def jump(exchange, kind, data):
        return (
            [] if isinstance(data, list) and data and data[0][1:] == ["/items/0/status", "running"] else data
        )

    change_data(hooks, jump)


@faulty_server(
    "TW-OVR-020", "state.item_status_transitions_are_valid", "framing.log_ends_with_exactly_one_done"
)
def job_with_failed_item_succeeds(hooks):
    """A job with a failed item ends with the status `succeeded`."""
    rewrite_events(hooks, b'"status":"failed","usage"', b'"status":"succeeded","usage"')


@faulty_server("TW-OVR-018", "state.item_status_transitions_are_valid")
def running_item_queued_again(hooks):
    """A running item is queued again."""

    def back(exchange, kind, data):
        return ([["s", "/items/0/status", "queued"]] if data == "word 3 né 😀, " else
                [["s", "/items/0/status", "running"]] if data == "word 4 né 😀, " else data)  # fmt: skip

    change_data(hooks, back)


@faulty_server("TW-DIF-055", "state.diffs_apply_and_checks_hold", "framing.log_ends_with_exactly_one_done")
def digest_of_unsorted_members(hooks):
    """The digest is computed over JSON with unsorted members."""
    digest_by(lambda items: json.dumps(items, ensure_ascii=False, separators=(",", ":")))


@faulty_server("TW-DIF-055", "state.diffs_apply_and_checks_hold", "state.diffs_reconstruct_the_value")
def digest_sorts_by_code_points(hooks):
    """The digest is computed over JSON whose members are sorted by code points, not by UTF-16 code units."""
    numbers = lambda text: text.replace("1e-07", "1e-7").replace("1e+21", "1e+21")  # noqa: E731
    digest_by(
        lambda items: numbers(json.dumps(items, ensure_ascii=False, separators=(",", ":"), sort_keys=True))
    )


@faulty_server("TW-DIF-055", "state.diffs_apply_and_checks_hold", "state.diffs_reconstruct_the_value")
def digest_uses_python_numbers(hooks):
    """The digest is computed over JSON whose numbers are written as in Python."""
    import rfc8785

    digest_by(lambda items: rfc8785.dumps(items).decode().replace("1e-7", "1e-07"))


@faulty_server("TW-DIF-055", "state.diffs_reconstruct_the_value")
def digest_keeps_negative_zero(hooks):
    """The digest is computed over JSON that keeps the sign of negative zero."""
    import rfc8785

    digest_by(lambda items: rfc8785.dumps(items).decode().replace("0.5,0,", "0.5,-0,"))


@faulty_server("TW-DIF-012", "state.diffs_reconstruct_the_value")
def path_names_not_escaped(hooks):
    """Slashes and tildes in paths are not escaped."""
    unescaped = lambda frame: frame.replace(b"~1", b"/").replace(b"~0", b"~")  # noqa: E731
    hooks.frames.append(lambda exchange, frame: unescaped(frame) if b"\nevent:" not in frame else frame)


@faulty_server("TW-DIF-012", "state.diffs_reconstruct_the_value")
def path_slash_escaped_as_01(hooks):
    """A slash in a path is escaped as `~01`."""
    hooks.frames.append(
        lambda exchange, frame: frame.replace(b"~1", b"~01") if b"\nevent:" not in frame else frame
    )
