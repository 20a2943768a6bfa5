# ruff: noqa: A002 - the names that SSE gives
"""The client's table: a test for every row, events in, outcomes out."""

import json
import random
import tracemalloc

import pytest

from tidewire.protocol.backoff import Backoff, RetryPolicy
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.document.document import View
from tidewire.protocol.follower import (
    MAX_RESYNCS,
    RESYNC_HEALED,
    Advance,
    Cause,
    Fatal,
    FatalKind,
    Follower,
    Ignored,
    Reconnect,
    Told,
)
from tidewire.protocol.messages import MessageError
from tidewire.protocol.resources import JobResource
from tidewire.protocol.sse import Event

TEXT = "/items/0/value"


def state(value=None, *, status="running", item_status=None):
    item = {"status": item_status or status}
    if value is not None:
        item["value"] = value
    return {"status": status, "items": [item], "usage": {}, "notes": []}


class Reader:
    """A follower with the ids of its events kept as a decoder would."""

    def __init__(self, **policy):
        policy = {"jitter": 0, "initial": 1, **policy}
        self.follower = Follower(backoff=Backoff(RetryPolicy(**policy), random.Random(1)), job_id="j1")
        self.connect()

    def connect(self):
        self.follower.connected()
        self.last_id = "" if self.follower.cursor is None else str(self.follower.cursor)

    def raw(self, type, data, id=None):
        self.last_id = self.last_id if id is None else id
        return self.follower.receive(Event(type, data, self.last_id))

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
def begun(reader):
    reader.snapshot("1-1", state("Hel"))
    return reader


# ---- what a diff may make of a state ------------------------------------------------------------------------------

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
def test_a_diff_beside_the_values_looks_at_none_of_them(reader, op, monkeypatch):
    before = state("Hello") | {"items": [{"status": "running", "value": "Hello", "stable": {}}] * 2}
    reader.snapshot("1-1", before)
    monkeypatch.setattr(Document, "value", None)
    monkeypatch.setattr(View, "value", None)
    assert isinstance(reader.diff("1-2", [op]), Advance)


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
def test_a_diff_that_leaves_no_state_is_a_resync_and_nothing_of_it_is_applied(begun, op):
    outcome = begun.diff("1-2", [["s", "/usage/n", 1], op])
    assert (type(outcome), outcome.cause) == (Reconnect, Cause.RESYNC)
    assert begun.follower.document.value() == state("Hel")


# ---- how large a state may become ---------------------------------------------------------------------------------


@pytest.fixture
def narrow(reader):
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
def test_a_state_that_grows_without_end_is_given_up_at_its_bound(narrow, diff):
    seq = 2
    while isinstance(outcome := narrow.diff(f"1-{seq}", diff), Advance):
        before, seq = outcome.view.value(), seq + 1
    assert (outcome.kind, f"diff 1-{seq} " in outcome.why) == (FatalKind.TOO_LARGE, True)
    assert 1000 - 70 < json_size(before) <= 1000 * 17 / 16
    # Nothing of it was applied, and asking again does not help.
    assert narrow.follower.cursor == Cursor(1, seq - 1)
    assert narrow.follower.document.value() == before
    narrow.connect()
    narrow.hello()
    assert narrow.diff(f"1-{seq}", diff).kind is FatalKind.TOO_LARGE


def test_a_state_may_be_as_large_as_the_bound(narrow):
    room = 1000 - json_size(state(""))
    assert isinstance(narrow.diff("1-2", [["s", TEXT, "x" * room]]), Advance)
    assert isinstance(narrow.diff("1-3", [["s", TEXT, "y" * room]]), Advance)
    assert narrow.diff("1-4", [["s", TEXT, "z" * (room + 1)]]).kind is FatalKind.TOO_LARGE
    assert narrow.value == "y" * room


def test_a_snapshot_or_a_job_as_read_beyond_the_bound_is_not_held(narrow):
    room = 1000 - json_size(state(""))
    narrow.diff("1-2", "abc")
    assert narrow.snapshot("1-3", state("x" * (room + 1))).kind is FatalKind.TOO_LARGE
    assert (narrow.value, narrow.follower.cursor) == ("abc", Cursor(1, 2))
    assert isinstance(narrow.snapshot("1-3", state("x" * room)), Advance)
    assert narrow.follower.adopt(resource(state("x" * (room + 1)), "1-4")).kind is FatalKind.TOO_LARGE
    assert isinstance(narrow.follower.adopt(resource(state("y" * room), "1-4")), Advance)


def test_a_value_that_is_replaced_for_ever_is_seldom_measured(narrow, monkeypatch):
    measured = []
    whole = Document.json_bytes
    monkeypatch.setattr(Document, "json_bytes", lambda self: measured.append(1) or whole(self))
    narrow.follower.max_state_bytes = 16_000
    narrow.diff("1-2", [["s", "/usage", {"filler": "x" * 15_900}]])
    sent = 0
    for seq in range(3, 3000):
        ops = [["s", TEXT, str(seq)]]
        sent += len(json.dumps(ops))
        assert isinstance(narrow.diff(f"1-{seq}", ops), Advance)
    assert 10 < len(measured) <= 2 + sent / (16_000 // 16)


def test_appends_of_nothing_are_not_kept(narrow):
    ops = [["r", ""], ["a", "/notes", []]]
    narrow.diff("1-2", ops)
    tracemalloc.start()
    for seq in range(3, 3003):
        narrow.diff(f"1-{seq}", ops if seq % 2 else "")
    assert tracemalloc.get_traced_memory()[0] < 20_000
    tracemalloc.stop()


# ---- a logged event that continues from here ---------------------------------------------------------------------


def test_a_first_snapshot_advances_from_the_first_event(reader):
    advance = reader.snapshot("1-7", state("Hello"))
    assert isinstance(advance, Advance)
    assert (advance.first_seq, advance.cursor, advance.snapshot) == (1, Cursor(1, 7), "start")
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "Hello")]


def test_a_diff_advances_by_what_it_covers(begun):
    advance = begun.diff("1-2", "lo")
    assert (advance.first_seq, advance.cursor, advance.visible) == (2, Cursor(1, 2), True)
    assert advance.view.value(TEXT) == "Hello"
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "lo")]


def test_a_diff_on_an_earlier_event_covers_what_was_between(begun):
    advance = begun.diff("1-9", {"ops": [["a", TEXT, "lo"]], "on": 1})
    assert (advance.first_seq, advance.cursor) == (2, Cursor(1, 9))


def test_an_advance_without_a_changed_value_is_covered_by_the_next_visible_one(begun):
    silent = begun.diff("1-2", [["s", "/items/0/status", "running"]])
    assert not silent.visible
    assert begun.diff("1-3", "lo").first_seq == 2


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
def test_an_advance_is_visible_where_a_value_may_have_changed(begun, ops, visible):
    advance = begun.diff("1-2", ops)
    assert isinstance(advance, Advance), advance
    assert advance.visible is visible


def test_a_view_stays_right_when_more_is_applied(begun):
    advance = begun.diff("1-2", "lo")
    begun.diff("1-3", " world")
    assert advance.view.value(TEXT) == "Hello"


def test_a_queued_jobs_first_value_is_not_news(reader):
    advance = reader.snapshot("1-1", state({"text": ""}, status="queued"), columns=[TEXT + "/text"])
    assert not advance.visible


# ---- a logged event at or below mine -----------------------------------------------------------------------------


def test_a_known_diff_is_dropped_and_counted(begun):
    begun.diff("1-2", "lo")
    assert isinstance(begun.diff("1-2", "lo"), Ignored)
    assert (begun.follower.repeats, begun.value) == (1, "Hello")


def test_a_known_snapshot_is_dropped_and_counted(begun):
    begun.diff("1-2", "lo")
    assert isinstance(begun.snapshot("1-1", state("Hel")), Ignored)
    assert (begun.follower.repeats, begun.value) == (1, "Hello")


def test_a_rewound_snapshot_goes_back(begun):
    begun.diff("1-2", "lo there")
    advance = begun.snapshot("1-1", state("Help"), reason="rewound")
    assert [(change.deleted, change.text) for change in advance.texts] == [(8, "p")]
    assert begun.value == "Help"


def test_a_snapshot_of_a_new_epoch_says_what_became_void(begun):
    begun.diff("1-2", "lo")
    advance = begun.snapshot("40-3", state("Hey"), reason="restart")
    assert advance.cursor == Cursor(40, 3)
    assert [(change.deleted, change.text) for change in advance.texts] == [(3, "y")]


def test_a_snapshot_that_only_grew_hands_over_the_rest(begun):
    advance = begun.snapshot("1-9", state("Hello"), reason="compacted")
    assert (advance.first_seq, advance.cursor.seq) == (2, 9)
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "lo")]


def test_a_snapshot_that_makes_true_of_one_is_visible(reader):
    reader.snapshot("1-1", state([1, 0]), columns=[])
    assert reader.snapshot("1-2", state([True, False]), reason="compacted", columns=[]).visible


def test_a_snapshot_that_changed_nothing_is_not_visible(begun):
    assert not begun.snapshot("1-4", state("Hel"), reason="compacted").visible


# ---- what cannot be used -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "type", "data", "id"),
    [
        ("a gap", "message", '"x"', "1-3"),
        ("another epoch", "message", '"x"', "2-2"),
        ("no id", "message", '"x"', ""),
        ("a malformed id", "message", '"x"', "1-02"),
        ("no JSON", "message", "{", "1-2"),
        ("a number", "message", "5", "1-2"),
        ("an op of the wrong shape", "message", '[["a"]]', "1-2"),
        ("an unknown op", "message", '[["z","/items"]]', "1-2"),
        ("a target that is not there", "message", '[["a","/nope","x"]]', "1-2"),
        ("a base that is not mine", "message", '{"ops":[],"on":0}', "1-2"),
        ("a base that is no number", "message", '{"ops":[],"on":true}', "1-2"),
        ("a base beyond its own id", "message", '{"ops":[],"on":2}', "1-2"),
        ("a failed check", "message", '{"ops":[["a","/items/0/value","lo"]],"check":[["/items/0/value",5,1]]}', "1-2"),
        ("a diff that ends the job", "message", '[["s","/status","succeeded"]]', "1-2"),
        ("a snapshot that is none", "snapshot", "{}", "1-2"),
        ("done that failed without an error", "done", json.dumps({"status": "failed", "digest": digest(state("Hel")["items"])}), "1-2"),
        ("a snapshot whose job has ended", "snapshot", json.dumps({"state": state("x", status="succeeded"), "columns": [], "reason": "start"}), "1-2"),
        ("a done that is none", "done", "{}", "1-2"),
        ("a done beyond a gap", "done", json.dumps({"status": "failed", "digest": digest(state("Hel")["items"])}), "1-3"),
        ("a wrong digest", "done", json.dumps({"status": "succeeded", "digest": "0" * 16}), "1-2"),
        ("an unknown logged event", "novelty", "{}", "1-2"),
        ("a malformed ephemeral event", "ping", "[]", None),
        ("a ping whose head is no id", "ping", '{"head":"x"}', None),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_not_handed_over_and_drops_the_cursor(begun, name, type, data, id):
    outcome = begun.raw(type, data, id)
    assert isinstance(outcome, Reconnect)
    assert outcome.cause is Cause.RESYNC
    assert outcome.wait == 1
    assert begun.follower.cursor is None
    assert begun.value == "Hel"
    assert begun.follower.done is None


def test_a_truncate_below_stable_cannot_be_used(reader):
    reader.snapshot(
        "1-1", state("Hello") | {"items": [{"status": "running", "value": "Hello", "stable": {"": 4}}]}
    )
    assert isinstance(reader.diff("1-2", [["t", TEXT, 1]]), Advance)
    assert reader.diff("1-3", [["t", TEXT, 1]]).cause is Cause.RESYNC


def test_after_a_resync_the_snapshot_hands_over_only_the_rest(begun):
    begun.diff("1-3", "gap")
    begun.connect()
    begun.hello()
    advance = begun.snapshot("1-3", state("Hello"), reason="compacted")
    assert [(change.deleted, change.text) for change in advance.texts] == [(0, "lo")]
    assert advance.first_seq == 2


def test_more_resyncs_than_allowed_are_fatal(begun):
    for _ in range(MAX_RESYNCS):
        assert begun.follower.malformed("nonsense").cause is Cause.RESYNC
    assert begun.follower.malformed("nonsense") == Fatal(FatalKind.PROTOCOL, "nonsense (after 3 resyncs)")


def test_more_resyncs_over_what_is_unknown_are_told_apart(begun):
    for _ in range(MAX_RESYNCS):
        begun.raw("novelty", "{}", "1-2")
        begun.connect()
        begun.hello()
        begun.snapshot("1-1", state("Hel"))
    fatal = begun.raw("novelty", "{}", "1-2")
    assert isinstance(fatal, Fatal)
    assert fatal.kind is FatalKind.UNSUPPORTED


def test_resyncs_are_forgotten_after_enough_applied_events(begun):
    for _ in range(MAX_RESYNCS):
        begun.follower.malformed("nonsense")
    begun.connect()
    begun.hello()
    begun.snapshot("1-1", state("Hel"))
    for seq in range(2, RESYNC_HEALED + 1):
        begun.diff(f"1-{seq}", "x")
    assert isinstance(begun.follower.malformed("nonsense"), Reconnect)


def test_a_refused_cursor_is_a_resync(begun):
    assert begun.follower.malformed("400").cause is Cause.RESYNC
    assert begun.follower.cursor is None


# ---- done --------------------------------------------------------------------------------------------------------


def test_done_advances_and_sets_the_status(begun):
    items = state("Hel")["items"]
    advance = begun.done("1-2", items, usage={"tokens": 3})
    assert isinstance(advance, Advance)
    assert advance.done.status == "succeeded"
    assert begun.follower.document.value("/status") == "succeeded"
    assert begun.follower.document.value("/usage") == {"tokens": 3}


def test_done_carries_the_jobs_error(begun):
    error = {"code": "deadline_exceeded", "title": "late", "status": 504}
    begun.done("1-2", state("Hel")["items"], status="failed", error=error)
    assert begun.follower.document.value("/error")["code"] == "deadline_exceeded"


def test_a_known_done_is_dropped(begun):
    begun.diff("1-2", "lo")
    assert isinstance(begun.done("1-2", state("Hello")["items"]), Ignored)


# ---- ephemeral events --------------------------------------------------------------------------------------------


def test_hello_tells_the_heartbeat(reader):
    reader.hello(heartbeat_ms=250)
    assert (reader.follower.greeted, reader.follower.heartbeat) == (True, 0.25)


def test_hello_of_another_protocol_is_fatal(reader):
    assert reader.hello(protocol="tidewire/2").kind is FatalKind.UNSUPPORTED


def test_hello_of_another_job_is_fatal(reader):
    fatal = reader.hello(job="j2")
    assert fatal.kind is FatalKind.PROTOCOL
    assert "j2" in fatal.why


def test_goaway_after_progress_is_no_failure(begun):
    begun.diff("1-2", "lo")
    outcome = begun.event("goaway", {"reason": "rotate", "retry_ms": 200})
    assert (outcome.cause, outcome.wait) == (Cause.GOAWAY, 0.2)
    assert begun.follower.backoff.failures == 0


def test_goaway_without_progress_is_a_failure(begun):
    begun.connect()
    begun.hello()
    outcome = begun.event("goaway", {"reason": "rotate", "retry_ms": 0})
    assert outcome.wait == 1
    assert begun.follower.backoff.failures == 1


def test_two_pings_above_mine_without_an_event_between_are_a_cut(begun):
    assert isinstance(begun.event("ping", {"head": "1-5"}), Ignored)
    assert begun.event("ping", {"head": "1-5"}).cause is Cause.CUT
    assert begun.follower.cursor == Cursor(1, 1)


def test_an_event_between_two_pings_above_mine_is_a_sign_of_life(begun):
    begun.event("ping", {"head": "1-5"})
    begun.diff("1-2", "lo")
    assert isinstance(begun.event("ping", {"head": "1-5"}), Ignored)


def test_pings_at_mine_are_no_news(begun):
    for _ in range(5):
        assert isinstance(begun.event("ping", {"head": "1-1"}), Ignored)


def test_a_retryable_problem_is_waited_out(begun):
    outcome = begun.event(
        "problem",
        {"code": "too_many_streams", "title": "x", "status": 429, "retryable": True, "retry_after_ms": 5000},
    )
    assert (outcome.cause, outcome.wait) == (Cause.BUSY, 5.0)


def test_a_fatal_problem_is_fatal(begun):
    fatal = begun.event("problem", {"code": "job_expired", "title": "gone", "status": 410}, "0-1")
    assert (fatal.kind, fatal.problem.code) == (FatalKind.PROBLEM, "job_expired")


def test_queue_and_progress_are_told(begun):
    queue = begun.event("queue", {"position": 3, "eta_ms": 1000})
    progress = begun.event("progress", {"current": 1, "total": 2})
    assert isinstance(queue, Told)
    assert queue.message.position == 3
    assert progress.message.total == 2


def test_an_unknown_event_without_an_id_of_its_own_is_ignored(begun):
    assert isinstance(begun.event("weather", {"rain": True}), Ignored)
    assert isinstance(begun.diff("1-2", "lo"), Advance)


# ---- cuts --------------------------------------------------------------------------------------------------------


def test_a_cut_keeps_the_cursor(begun):
    outcome = begun.follower.lost("end of file")
    assert (outcome.cause, outcome.wait) == (Cause.CUT, 1)
    assert begun.follower.cursor == Cursor(1, 1)


def test_a_cut_waits_as_long_as_the_server_asked(begun):
    outcome = begun.follower.lost("429", at_least=7)
    assert (outcome.cause, outcome.wait) == (Cause.BUSY, 7)


def test_too_many_failures_without_progress_are_fatal():
    reader = Reader(max_attempts=2)
    assert isinstance(reader.follower.lost("reset"), Reconnect)
    assert isinstance(reader.follower.lost("reset"), Reconnect)
    fatal = reader.follower.lost("reset")
    assert (fatal.kind, fatal.why) == (FatalKind.EXHAUSTED, "reset (2 attempts without progress)")


def test_the_opening_snapshot_is_no_progress(reader):
    reader.follower.lost("cut")
    reader.connect()
    reader.hello()
    reader.snapshot("1-1", state("Hel"))
    assert reader.follower.backoff.failures == 1
    reader.diff("1-2", "lo")
    assert reader.follower.backoff.failures == 0


# ---- job reads ---------------------------------------------------------------------------------------------------


def resource(content, cursor, done=None):
    return JobResource.model_validate(
        {
            "id": "j1", "endpoint": "e", "status": content["status"], "batch": False, "state": content, "columns": [TEXT],
            "cursor": cursor, "created_at": "now", "done": done, "links": {"self": "s", "events": "e", "cancel": "c"},
        }
    )  # fmt: skip


def test_204_for_an_ended_job_delivers_its_state(begun):
    ended = state("Hello", status="succeeded")
    advance = begun.follower.read_job(
        resource(ended, "1-9", {"status": "succeeded", "digest": digest(ended["items"])})
    )
    assert isinstance(advance, Advance)
    assert (advance.first_seq, advance.cursor, advance.visible) == (2, Cursor(1, 9), True)
    assert [change.text for change in advance.texts] == ["lo"]
    assert begun.follower.done.status == "succeeded"


def test_204_for_an_ended_job_with_a_wrong_digest_is_a_resync(begun):
    ended = state("Hello", status="succeeded")
    outcome = begun.follower.read_job(resource(ended, "1-9", {"status": "succeeded", "digest": "0" * 16}))
    assert outcome.cause is Cause.RESYNC
    assert begun.value == "Hel"


def test_204_for_a_running_job_is_a_cut_without_a_cursor(begun):
    outcome = begun.follower.read_job(resource(state("Hel"), "1-1"))
    assert outcome.cause is Cause.CUT
    assert begun.follower.cursor is None


def test_a_job_that_was_read_is_a_place_to_start_from():
    reader = Reader()
    reader.hello()
    advance = reader.follower.adopt(resource(state("Hel"), "1-4"))
    assert (advance.first_seq, advance.cursor, advance.visible) == (1, Cursor(1, 4), True)
    assert reader.diff("1-5", "lo").first_seq == 5


def test_a_kept_state_is_not_handed_over_again():
    reader = Reader()
    reader.follower.restore(state("Hel"), [TEXT], Cursor(1, 4))
    reader.hello()
    advance = reader.diff("1-5", "lo")
    assert (advance.first_seq, [change.text for change in advance.texts]) == (5, ["lo"])


def test_a_kept_state_that_is_none_is_refused():
    with pytest.raises(MessageError):
        Follower().restore({"status": "running"}, [], Cursor(1, 1))


@pytest.mark.parametrize(
    "diff",
    [
        '[["d","/status"]]',
        '[["s","",5]]',
        '[["s","/status",[]]]',
        '[["s","/status","failed"]]',
        '[["d","/items"]]',
        '[["d","/items/0"]]',
        '[["s","/items/0/status",3]]',
        '[["s","/items/0/status",["running"]]]',
        '[["s","/items/0/error",3]]',
        '[["a","/notes",[{"level":1}]]]',
    ],
)
def test_a_diff_that_leaves_no_state_is_refused_and_nothing_of_it_stays(diff):
    state = {"status": "running", "items": [{"status": "running", "value": ""}], "usage": {}, "notes": []}
    reader = Reader()
    reader.hello()
    assert isinstance(reader.snapshot("1-1", state), Advance)
    outcome = reader.raw("message", diff, "1-2")
    assert isinstance(outcome, Reconnect)
    assert outcome.cause is Cause.RESYNC
    assert reader.follower.document is not None
    assert reader.follower.document.value() == state


@pytest.mark.parametrize("id_", ["1-2", "1-1", "1-9"])
def test_a_logged_event_before_hello_is_refused_and_the_cursor_dropped(begun, id_):
    begun.connect()
    assert begun.diff(id_, "lo").cause is Cause.RESYNC
    assert (begun.follower.cursor, begun.value) == (None, "Hel")


def test_a_rewound_snapshot_without_an_id_of_its_own_is_refused(begun):
    assert begun.snapshot(None, state("Hey"), reason="rewound").cause is Cause.RESYNC
    assert begun.value == "Hel"


def test_a_rewound_snapshot_under_the_cursor_of_its_connection_is_refused(begun):
    begun.connect()
    begun.hello()
    assert begun.snapshot(None, state("Hey"), reason="rewound").cause is Cause.RESYNC
