# ruff: noqa: A002 - field names of SSE such as `id` and `type` shadow built-ins
"""`Follower`: the outcome of each received event, job read, cut and resync."""

import json
import random
import sys
import tracemalloc

import pytest

from tidewire.following.follower import (
    MAX_EVENT_OPS,
    MAX_RESYNCS,
    RESYNC_HEALED,
    Applied,
    Cause,
    Fatal,
    FatalKind,
    Follower,
    Ignored,
    Notice,
    Reconnect,
)
from tidewire.following.request_policy import RequestPolicy
from tidewire.following.retry_policy import RetryPolicy
from tidewire.protocol.cursor import MAX_SEQ, Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.document.document import TextChange, View
from tidewire.protocol.messages import MessageError
from tidewire.protocol.resources import JobResource
from tidewire.protocol.sse import Decoder, Event, EventWithoutId

TEXT = "/items/0/value"


def state(value=None, *, status="running", item_status=None):
    item = {"status": item_status or status}
    if value is not None:
        item["value"] = value
    return {"status": status, "items": [item], "usage": {}, "notes": []}


class Reader:
    """A follower fed with events; it remembers the last event id, as an SSE decoder does."""

    def __init__(self, **policy):
        limits = RetryPolicy(**{"jitter": 0} | policy)
        self.follower = Follower(policy=RequestPolicy(limits, rng=random.Random(1)), job_id="j1")
        self.connect()

    def connect(self):
        self.follower.connected()
        self.last_id = "" if self.follower.cursor is None else str(self.follower.cursor)

    def raw(self, type, data, id=None):
        self.last_id = self.last_id if id is None else id
        kind = EventWithoutId if id is None else Event
        return self.follower.receive(kind(type, data, self.last_id))

    def event(self, type, data, id=None):
        return self.raw(type, json.dumps(data), id)

    def hello(self, **members):
        data = {"protocol": "tidewire/1", "job": "j1", "events": "/e", "head": "1-1", "heartbeat_ms": 15000}
        return self.event("hello", data | members)

    def snapshot(self, id, content, *, reason="start", columns=(TEXT,)):
        return self.event("snapshot", {"state": content, "columns": list(columns), "reason": reason}, id)

    def diff(self, id, diff):
        return self.event("message", diff, id)

    def done(self, id, items, *, status="succeeded", **members):
        data = {"status": status, "usage": {}, "check": [], "digest": digest(items)}
        return self.event("done", data | members, id)

    @property
    def value(self):
        return self.follower.document.value(TEXT)


@pytest.fixture
def reader():
    reader = Reader()
    reader.hello()
    return reader


@pytest.fixture
def started(reader):
    reader.snapshot("1-1", state("Hel"))
    return reader


# ---- validity of the state after a diff ----------------------------------------------------------------------------

PROBLEM = {
    "type": "about:blank",
    "title": "t",
    "status": 500,
    "code": "internal",
    "detail": "d",
    "retryable": False,
}


@pytest.mark.parametrize(
    "op",
    [
        ["s", "/status", "running"],
        ["s", "/usage/tokens", 5],
        ["a", "/notes", [{"level": "info", "text": "x"}]],
        ["s", "/items/1/status", "failed"],
        ["s", "/items/1/error", PROBLEM],
        ["s", "/items/1/batch", {"size": 4, "row": 0, "wait_ms": 1}],
        ["s", "/items/1/stable", {"": 3}],
        ["s", "/items/1/stable/", 3],
        ["s", "/usage", {"tokens": 5}],
        ["s", "/items/1/more", 1],
    ],
    ids=str,
)
def test_diff_outside_the_values_does_not_read_the_values(reader, op, monkeypatch):
    before = state("Hello") | {"items": [{"status": "running", "value": "Hello", "stable": {}}] * 2}
    reader.snapshot("1-1", before)
    monkeypatch.setattr(Document, "value", None)
    monkeypatch.setattr(View, "value", None)
    assert isinstance(reader.diff("1-2", [op]), Applied)


@pytest.mark.parametrize(
    "op",
    [
        ["s", "/status", "succeeded"],
        ["s", "/status", []],
        ["s", "/usage", 5],
        ["d", "/items"],
        ["s", "/items", []],
        ["s", "/items", {}],
        ["s", "/items/0", 5],
        ["a", "/notes", [5]],
        ["a", "/notes", [{"level": "info", "text": "x"}, {"level": "info"}]],
        ["s", "/notes/0", {"level": 1, "text": "x"}],
        ["s", "/items/0/status", "done"],
        ["d", "/items/0/status"],
        ["s", "/items/0/error", {"title": 5}],
        ["s", "/items/0/batch", {"size": 0, "row": 0, "wait_ms": 1}],
        ["s", "/items/0/stable", 5],
        ["s", "/items/0/stable", {"": -1}],
        ["s", "/error", 5],
    ],
    ids=str,
)
def test_diff_that_makes_the_state_invalid_is_not_applied_and_causes_a_resync(started, op):
    outcome = started.diff("1-2", [["s", "/usage/n", 1], op])
    assert (type(outcome), outcome.cause) == (Reconnect, Cause.RESYNC)
    assert started.follower.document.value() == state("Hel")


def test_isolated_token_takes_six_function_calls(started):
    decoder, calls = Decoder(), []
    frames = [b'id:1-%d\ndata:" word\\n"\n\n' % seq for seq in range(2, 12)]

    def count(frame, event, _):
        if event == "call" and "/src/client/tidewire/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)

    for number, frame in enumerate(frames, 1):
        calls.clear()
        sys.setprofile(count)
        try:
            outcomes = [started.follower.receive(event) for event in decoder.feed(frame)]
        finally:
            sys.setprofile(None)
        assert [outcome.texts for outcome in outcomes] == [(TextChange(TEXT, 0, " word\n"),)]
        # The first event after the snapshot takes the general way.
        assert number == 1 or len(calls) <= 6, calls
    assert started.value == "Hel" + " word\n" * 10


def test_text_does_not_grow_beyond_the_last_valid_id(reader):
    reader.snapshot(f"1-{MAX_SEQ - 2}", state(""))
    for seq in (MAX_SEQ - 1, MAX_SEQ):
        assert isinstance(reader.diff(f"1-{seq}", "a"), Applied)
    assert isinstance(reader.diff(f"1-{MAX_SEQ + 1}", "a"), Reconnect)
    assert reader.value == "aa"


def test_diff_of_more_ops_than_allowed_causes_a_resync(started):
    op = ["s", "/usage/n", 1]
    assert isinstance(started.diff("1-2", [op] * MAX_EVENT_OPS), Applied)
    for diff in ([op] * (MAX_EVENT_OPS + 1), {"ops": [op] * (MAX_EVENT_OPS + 1)}):
        outcome = started.diff("1-3", diff)
        assert (type(outcome), outcome.cause) == (Reconnect, Cause.RESYNC)
        assert outcome.why == "diff 1-3 has 10001 ops, but a diff has at most 10000"
        started.connect()
        started.hello()


# ---- size limit of the state ---------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(reader):
    reader.follower.max_state_bytes = 1000
    reader.snapshot("1-1", state(""))
    return reader


def json_size(value):
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "diff",
    [
        "x" * 50,
        "ü" * 25,
        "\n" * 25,
        [["r", "x" * 50]],
        [["a", "/notes", [{"level": "info", "text": "x" * 30}]]],
    ],
    ids=["text", "beyond ASCII", "escaped", "row", "another place"],
)
def test_growing_state_is_fatal_at_the_size_limit(small_limit, diff):
    seq = 2
    while isinstance(outcome := small_limit.diff(f"1-{seq}", diff), Applied):
        before, seq = outcome.view.value(), seq + 1
    assert (outcome.kind, f"diff 1-{seq} " in outcome.why) == (FatalKind.TOO_LARGE, True)
    assert 1000 - 70 < json_size(before) <= 1000 * 17 / 16
    # The refused diff was not applied, and the limit still holds after a reconnect.
    assert small_limit.follower.cursor == Cursor(1, seq - 1)
    assert small_limit.follower.document.value() == before
    small_limit.connect()
    small_limit.hello()
    assert small_limit.diff(f"1-{seq}", diff).kind is FatalKind.TOO_LARGE


def test_state_may_be_exactly_as_large_as_the_limit(small_limit):
    available = 1000 - json_size(state(""))
    assert isinstance(small_limit.diff("1-2", [["s", TEXT, "x" * available]]), Applied)
    assert isinstance(small_limit.diff("1-3", [["s", TEXT, "y" * available]]), Applied)
    assert small_limit.diff("1-4", [["s", TEXT, "z" * (available + 1)]]).kind is FatalKind.TOO_LARGE
    assert small_limit.value == "y" * available


def test_snapshot_or_job_resource_above_the_size_limit_is_refused(small_limit):
    available = 1000 - json_size(state(""))
    small_limit.diff("1-2", "abc")
    assert small_limit.snapshot("1-3", state("x" * (available + 1))).kind is FatalKind.TOO_LARGE
    assert (small_limit.value, small_limit.follower.cursor) == ("abc", Cursor(1, 2))
    assert isinstance(small_limit.snapshot("1-3", state("x" * available)), Applied)
    assert (
        small_limit.follower.adopt(resource(state("x" * (available + 1)), "1-4")).kind is FatalKind.TOO_LARGE
    )
    assert isinstance(small_limit.follower.adopt(resource(state("y" * available), "1-4")), Applied)


def test_state_size_is_measured_rarely_while_a_value_is_replaced(small_limit, monkeypatch):
    measured = []
    whole = Document.json_bytes
    monkeypatch.setattr(Document, "json_bytes", lambda self: measured.append(1) or whole(self))
    small_limit.follower.max_state_bytes = 16_000
    small_limit.diff("1-2", [["s", "/usage", {"filler": "x" * 15_900}]])
    sent = 0
    for seq in range(3, 3000):
        ops = [["s", TEXT, str(seq)]]
        sent += len(json.dumps(ops))
        assert isinstance(small_limit.diff(f"1-{seq}", ops), Applied)
    assert 10 < len(measured) <= 2 + sent / (16_000 // 16)


def test_empty_appends_use_no_memory(small_limit):
    ops = [["r", ""], ["a", "/notes", []]]
    small_limit.diff("1-2", ops)
    tracemalloc.start()
    for seq in range(3, 3003):
        small_limit.diff(f"1-{seq}", ops if seq % 2 else "")
    assert tracemalloc.get_traced_memory()[0] < 20_000
    tracemalloc.stop()


# ---- logged event directly after the cursor -----------------------------------------------------------------------


def test_first_snapshot_covers_all_events_from_the_first(reader):
    advance = reader.snapshot("1-7", state("Hello"))
    assert isinstance(advance, Applied)
    assert (advance.first_seq, advance.cursor, advance.snapshot) == (1, Cursor(1, 7), "start")
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "Hello")]


def test_diff_advances_the_cursor_and_reports_the_new_text(started):
    advance = started.diff("1-2", "lo")
    assert (advance.first_seq, advance.cursor, advance.visible) == (2, Cursor(1, 2), True)
    assert advance.view.value(TEXT) == "Hello"
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "lo")]


def test_merged_diff_covers_all_events_since_its_base(started):
    advance = started.diff("1-9", {"ops": [["a", TEXT, "lo"]], "on": 1})
    assert (advance.first_seq, advance.cursor) == (2, Cursor(1, 9))


def test_diff_without_a_changed_value_is_not_visible(started):
    silent = started.diff("1-2", [["s", "/items/0/status", "running"]])
    assert not silent.visible
    assert started.diff("1-3", "lo").first_seq == 2


@pytest.mark.parametrize(
    ("ops", "visible"),
    [
        ([["s", "", state("x")]], True),
        ([["s", "/items/0", {"status": "running", "value": 1}]], True),
        ([["s", TEXT, 1]], True),
        ([["r", "x"]], True),
        ([["s", "/items/0/stable", {"": 1}]], False),
        ([["s", "/usage/value", 1]], False),
        ([["s", "/notes", [{"level": "info", "text": "x"}]]], False),
        ([], False),
    ],
)
def test_diff_is_visible_if_a_value_may_have_changed(started, ops, visible):
    advance = started.diff("1-2", ops)
    assert isinstance(advance, Applied), advance
    assert advance.visible is visible


def test_view_is_unchanged_by_later_diffs(started):
    advance = started.diff("1-2", "lo")
    started.diff("1-3", " world")
    assert advance.view.value(TEXT) == "Hello"


def test_initial_value_of_a_queued_job_is_not_visible(reader):
    advance = reader.snapshot("1-1", state({"text": ""}, status="queued"), columns=[TEXT + "/text"])
    assert not advance.visible


# ---- logged event at or below the cursor --------------------------------------------------------------------------


def test_rewound_snapshot_moves_the_cursor_back(started):
    started.diff("1-2", "lo there")
    advance = started.snapshot("1-1", state("Help"), reason="rewound")
    assert [(change.deleted, change.text) for change in advance.texts] == [(8, "p")]
    assert started.value == "Help"


def test_snapshot_of_a_new_epoch_reports_the_deleted_text(started):
    started.diff("1-2", "lo")
    advance = started.snapshot("40-3", state("Hey"), reason="restart")
    assert advance.cursor == Cursor(40, 3)
    assert [(change.deleted, change.text) for change in advance.texts] == [(3, "y")]


def test_snapshot_that_extends_a_text_reports_only_the_new_part(started):
    advance = started.snapshot("1-9", state("Hello"), reason="compacted")
    assert (advance.first_seq, advance.cursor.seq) == (2, 9)
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "lo")]


def test_snapshot_that_replaces_1_by_true_is_visible(reader):
    reader.snapshot("1-1", state([1, 0]), columns=[])
    assert reader.snapshot("1-2", state([True, False]), reason="compacted", columns=[]).visible


def test_snapshot_without_changes_is_not_visible(started):
    assert not started.snapshot("1-4", state("Hel"), reason="compacted").visible


# ---- invalid events; `vectors/test_messages` and `vectors/test_cursor` have all kinds --------------------------------


@pytest.mark.parametrize(
    ("name", "type", "data", "id"),
    [
        ("done that failed without an error", "done", json.dumps({"status": "failed", "digest": digest(state("Hel")["items"])}), "1-2"),
        ("a gap", "message", '"x"', "1-3"),
        ("a ping whose head is no id", "ping", '{"head":"x"}', None),
    ],
)  # fmt: skip
def test_invalid_event_is_not_applied_and_drops_the_cursor(started, name, type, data, id):
    outcome = started.raw(type, data, id)
    assert isinstance(outcome, Reconnect)
    assert outcome.cause is Cause.RESYNC
    assert outcome.wait == 1
    assert started.follower.cursor is None
    assert started.value == "Hel"
    assert started.follower.done is None


def test_truncation_below_the_stable_length_causes_a_resync(reader):
    reader.snapshot(
        "1-1", state("Hello") | {"items": [{"status": "running", "value": "Hello", "stable": {"": 4}}]}
    )
    assert isinstance(reader.diff("1-2", [["t", TEXT, 1]]), Applied)
    assert reader.diff("1-3", [["t", TEXT, 1]]).cause is Cause.RESYNC


def test_snapshot_after_a_resync_reports_only_the_new_text(started):
    started.diff("1-3", "gap")
    started.connect()
    started.hello()
    advance = started.snapshot("1-3", state("Hello"), reason="compacted")
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "lo")]
    assert advance.first_seq == 2


def test_too_many_resyncs_are_fatal(started):
    for _ in range(MAX_RESYNCS):
        assert started.follower.malformed("nonsense").cause is Cause.RESYNC
    assert started.follower.malformed("nonsense") == Fatal(FatalKind.PROTOCOL, "nonsense (after 3 resyncs)")


def test_too_many_resyncs_because_of_unknown_events_are_fatal_as_unsupported(started):
    for _ in range(MAX_RESYNCS):
        started.raw("novelty", "{}", "1-2")
        started.connect()
        started.hello()
        started.snapshot("1-1", state("Hel"))
    fatal = started.raw("novelty", "{}", "1-2")
    assert isinstance(fatal, Fatal)
    assert fatal.kind is FatalKind.UNSUPPORTED


def test_resync_count_is_reset_after_enough_applied_events(started):
    for _ in range(MAX_RESYNCS):
        started.follower.malformed("nonsense")
    started.connect()
    started.hello()
    started.snapshot("1-1", state("Hel"))
    for seq in range(2, RESYNC_HEALED + 1):
        started.diff(f"1-{seq}", "x")
    assert isinstance(started.follower.malformed("nonsense"), Reconnect)


# ---- done --------------------------------------------------------------------------------------------------------


def test_done_event_advances_the_cursor_and_sets_the_status(started):
    items = state("Hel")["items"]
    advance = started.done("1-2", items, usage={"tokens": 3})
    assert isinstance(advance, Applied)
    assert advance.done.status == "succeeded"
    assert started.follower.document.value("/status") == "succeeded"
    assert started.follower.document.value("/usage") == {"tokens": 3}


def test_done_event_carries_the_error_of_the_job(started):
    error = {"code": "deadline_exceeded", "title": "late", "status": 504}
    started.done("1-2", state("Hel")["items"], status="failed", error=error)
    assert started.follower.document.value("/error")["code"] == "deadline_exceeded"


# ---- ephemeral events --------------------------------------------------------------------------------------------


def test_hello_sets_the_heartbeat(reader):
    reader.hello(heartbeat_ms=250)
    assert (reader.follower.greeted, reader.follower.heartbeat) == (True, 0.25)


def test_hello_with_another_protocol_is_fatal(reader):
    assert reader.hello(protocol="tidewire/2").kind is FatalKind.UNSUPPORTED


def test_hello_for_another_job_is_fatal(reader):
    fatal = reader.hello(job="j2")
    assert fatal.kind is FatalKind.PROTOCOL
    assert "j2" in fatal.why


def test_goaway_after_progress_does_not_count_as_a_failure(started):
    started.diff("1-2", "lo")
    outcome = started.event("goaway", {"reason": "rotate", "retry_ms": 200})
    assert (outcome.cause, outcome.wait) == (Cause.GOAWAY, 0.2)
    assert started.follower.policy.failures == 0


def test_goaway_without_progress_counts_as_a_failure(started):
    started.connect()
    started.hello()
    outcome = started.event("goaway", {"reason": "rotate", "retry_ms": 0})
    assert outcome.wait == 1
    assert started.follower.policy.failures == 1


def test_two_pings_ahead_of_the_cursor_without_an_event_between_are_a_cut(started):
    assert isinstance(started.event("ping", {"head": "1-5"}), Ignored)
    assert started.event("ping", {"head": "1-5"}).cause is Cause.CUT
    assert started.follower.cursor == Cursor(1, 1)


def test_event_between_two_pings_ahead_of_the_cursor_prevents_a_cut(started):
    started.event("ping", {"head": "1-5"})
    started.diff("1-2", "lo")
    assert isinstance(started.event("ping", {"head": "1-5"}), Ignored)


def test_two_pings_while_the_head_of_hello_is_ahead_of_the_cursor_are_a_cut(reader):
    """A server whose log subscription has failed pings with the id that it sent last."""
    reader.connect()
    reader.hello(head="1-35")
    reader.snapshot("1-1", state("Hel"))
    reader.diff("1-2", "lo")
    assert isinstance(reader.event("ping", {"head": "1-2"}), Ignored)
    assert reader.event("ping", {"head": "1-2"}).cause is Cause.CUT


def test_stalled_connection_without_an_event_is_a_failure(reader):
    reader.connect()
    reader.hello(head="1-35")
    reader.snapshot("1-1", state("Hel"))
    for failures in (1, 2):
        reader.connect()
        reader.hello(head="1-35")
        reader.event("ping", {"head": "1-1"})
        reader.event("ping", {"head": "1-1"})
        assert reader.follower.policy.failures == failures


def test_hello_whose_head_is_not_an_id_is_malformed(reader):
    reader.connect()
    assert reader.hello(head="x").cause is Cause.RESYNC


def test_pings_at_the_cursor_are_ignored(started):
    for _ in range(5):
        assert isinstance(started.event("ping", {"head": "1-1"}), Ignored)


def test_ping_at_the_cursor_restarts_the_patience(reader):
    assert patience_spent_after(reader, hello="1-2", ping="1-2") == 0


@pytest.mark.parametrize(
    ("hello", "ping"),
    [
        pytest.param(None, "1-2", id="before hello"),
        pytest.param("1-1", "1-1", id="head before the cursor"),
        pytest.param("1-1", "1-3", id="head after the cursor"),
    ],
)
def test_ping_that_does_not_confirm_the_cursor_leaves_the_patience(reader, hello, ping):
    assert patience_spent_after(reader, hello=hello, ping=ping) > 0


def patience_spent_after(reader, *, hello, ping):
    """Let a connection fail after the event 1-2, and return the spent patience after `hello`, if any, and a ping on the next."""
    reader.hello()
    reader.snapshot("1-2", state("Hel"))
    reader.follower.lost("reset")
    reader.connect()
    if hello is not None:
        reader.hello(head=hello)
    reader.event("ping", {"head": ping})
    return reader.follower.policy.spent


def test_retryable_problem_causes_a_reconnect_after_its_retry_after(started):
    outcome = started.event(
        "problem",
        {"code": "too_many_streams", "title": "x", "status": 429, "retryable": True, "retry_after_ms": 5000},
    )
    assert (outcome.cause, outcome.wait) == (Cause.BUSY, 5.0)


def test_problem_that_is_not_retryable_is_fatal(started):
    fatal = started.event("problem", {"code": "job_expired", "title": "gone", "status": 410}, "0-1")
    assert (fatal.kind, fatal.problem.code) == (FatalKind.PROBLEM, "job_expired")


def test_queue_and_progress_events_are_reported(started):
    queue = started.event("queue", {"position": 3, "eta_ms": 1000})
    progress = started.event("progress", {"current": 1, "total": 2})
    assert isinstance(queue, Notice)
    assert queue.message.position == 3
    assert progress.message.total == 2


# ---- cuts --------------------------------------------------------------------------------------------------------


def test_cut_keeps_the_cursor(started):
    outcome = started.follower.lost("end of file")
    assert (outcome.cause, outcome.wait) == (Cause.CUT, 1)
    assert started.follower.cursor == Cursor(1, 1)


def test_cut_waits_as_long_as_the_server_requested(started):
    outcome = started.follower.busy("429", asked=7)
    assert (outcome.cause, outcome.wait) == (Cause.BUSY, 7)


@pytest.mark.parametrize(("wait", "failures"), [({"retry_after_ms": 0}, 0), ({}, 1)])
def test_only_a_problem_without_a_wait_is_a_failure(started, wait, failures):
    problem = {"code": "unavailable", "title": "busy", "status": 503, "retryable": True} | wait
    assert started.event("problem", problem).cause is Cause.BUSY
    assert started.follower.policy.failures == failures


def test_too_many_failures_without_progress_are_fatal():
    reader = Reader(attempts=3)
    assert isinstance(reader.follower.lost("reset"), Reconnect)
    assert isinstance(reader.follower.lost("reset"), Reconnect)
    fatal = reader.follower.lost("reset")
    assert (fatal.kind, fatal.why) == (
        FatalKind.EXHAUSTED,
        "reset (3 failures in a row without progress, and attempts=3)",
    )


def test_first_snapshot_does_not_count_as_progress(reader):
    reader.follower.lost("cut")
    reader.connect()
    reader.hello()
    reader.snapshot("1-1", state("Hel"))
    assert reader.follower.policy.failures == 1
    reader.diff("1-2", "lo")
    assert reader.follower.policy.failures == 0


# ---- job reads ---------------------------------------------------------------------------------------------------


def resource(content, cursor, done=None):
    return JobResource.model_validate(
        {
            "id": "j1", "endpoint": "e", "status": content["status"], "batch": False, "state": content, "columns": [TEXT],
            "cursor": cursor, "created_at": "now", "done": done, "links": {"self": "s", "events": "e", "cancel": "c"},
        }
    )  # fmt: skip


def test_204_for_an_ended_job_delivers_its_state(started):
    ended = state("Hello", status="succeeded")
    advance = started.follower.read_job(
        resource(ended, "1-9", {"status": "succeeded", "digest": digest(ended["items"])})
    )
    assert isinstance(advance, Applied)
    assert (advance.first_seq, advance.cursor, advance.visible) == (2, Cursor(1, 9), True)
    assert [change.text for change in advance.texts] == ["lo"]
    assert started.follower.done.status == "succeeded"


def test_204_for_an_ended_job_with_a_wrong_digest_causes_a_resync(started):
    ended = state("Hello", status="succeeded")
    outcome = started.follower.read_job(resource(ended, "1-9", {"status": "succeeded", "digest": "0" * 16}))
    assert outcome.cause is Cause.RESYNC
    assert started.value == "Hel"


def test_204_for_a_running_job_is_a_cut_that_drops_the_cursor(started):
    outcome = started.follower.read_job(resource(state("Hel"), "1-1"))
    assert outcome.cause is Cause.CUT
    assert started.follower.cursor is None


def test_reader_can_start_from_a_job_resource():
    reader = Reader()
    reader.hello()
    advance = reader.follower.adopt(resource(state("Hel"), "1-4"))
    assert (advance.first_seq, advance.cursor, advance.visible) == (1, Cursor(1, 4), True)
    assert reader.diff("1-5", "lo").first_seq == 5


def test_restored_state_is_not_reported_again():
    reader = Reader()
    reader.follower.restore(state("Hel"), [TEXT], Cursor(1, 4))
    reader.hello()
    advance = reader.diff("1-5", "lo")
    assert (advance.first_seq, [change.text for change in advance.texts]) == (5, ["lo"])


def test_restoring_an_invalid_state_is_refused():
    with pytest.raises(MessageError):
        Follower().restore({"status": "running"}, [], Cursor(1, 1))


@pytest.mark.parametrize("id_", ["1-2", "1-1", "1-9"])
def test_logged_event_before_hello_is_refused_and_drops_the_cursor(started, id_):
    started.connect()
    assert started.diff(id_, "lo").cause is Cause.RESYNC
    assert (started.follower.cursor, started.value) == (None, "Hel")


def test_rewound_snapshot_without_an_id_is_refused(started):
    assert started.snapshot(None, state("Hey"), reason="rewound").cause is Cause.RESYNC
    assert started.value == "Hel"


def test_rewound_snapshot_without_an_id_is_refused_after_a_reconnect(started):
    started.connect()
    started.hello()
    assert started.snapshot(None, state("Hey"), reason="rewound").cause is Cause.RESYNC
