"""The endpoint `tidewire.script`: the effect of each step, the limits, and errors that name the failing step."""

import pytest
from jsonschema import Draft202012Validator

from support.nested_arrays import nested
from support.reference_server import QUICK, Fold, data, logged, serving
from tidewire_server import Server
from tidewire_server.script_endpoint import (
    MAX_BYTES,
    MAX_COLUMNS,
    MAX_NUMBERS,
    MAX_SLEEP_MS,
    MAX_STEPS,
    add_script,
)

SCRIPT = "tidewire.script"


@pytest.fixture(scope="module")
def peer():
    # A merge window of 0 makes each call of a script a separate event.
    server = Server(merge_window=0, max_state_bytes=200_000, **QUICK)
    add_script(server)
    with serving(server) as found:
        yield found


def run_script(peer, *steps, **members):
    """The diffs of a script and its final value.

    The snapshot, the start, the end of the item, and `done` are left out.
    """
    events = logged(peer.events(peer.start(SCRIPT, {"script": steps} | members), "0-0"))
    fold = Fold().take(events)
    assert fold.done is not None
    assert fold.done["status"] == "succeeded", fold.items
    return [data(event) for event in events[2:-2]], fold.items[0]["value"]


def failed(peer, *steps, **members):
    job = peer.run(SCRIPT, {"script": steps} | members)
    assert job["status"] == "failed"
    return job["state"]["items"][0]


def refused(peer, input_):
    answer = peer.submit(SCRIPT, input_)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["code"] == "invalid_input"
    return problem["pointer"], problem["detail"]


# ---- steps -------------------------------------------------------------------------------------------------------


def test_append_and_truncate_count_code_points(peer):
    diffs, value = run_script(peer, {"append": "né😀"}, {"truncate": 1}, {"append": "!"})
    assert value == "né!"
    assert diffs[0] == "né😀"
    assert diffs[1]["ops"] == [["t", "/items/0/value", 1]]
    assert diffs[2] == "!"


def test_at_selects_a_place_within_the_value(peer):
    steps = [
        {"append": "ab", "at": "/text"},
        {"append": [1, 2], "at": "/list"},
        {"truncate": 1, "at": "/list"},
    ]
    _, value = run_script(peer, *steps, {"bytes": 12, "at": "/text"}, initial={"text": "", "list": []})
    assert value == {"text": "ab012345678901", "list": [1]}


def test_append_without_at_extends_the_only_column(peer):
    diffs, value = run_script(peer, {"append": "a"}, initial={"text": "", "n": 0}, columns=["/text"])
    assert diffs == ["a"]
    assert value == {"text": "a", "n": 0}


def test_row_extends_all_columns(peer):
    start = {"initial": {"text": "", "ids": []}, "columns": ["/text", "/ids"]}
    diffs, value = run_script(peer, {"row": ["Hel", 15]}, {"row": ["lo", [16]]}, **start)
    assert diffs == [[["r", "Hel", 15]], [["r", "lo", [16]]]]
    assert value == {"text": "Hello", "ids": [15, [16]]}


def test_set_replaces_a_place(peer):
    _, value = run_script(
        peer, {"set": ["/a", {"b": None}]}, {"set": ["/a/b", [1.5]]}, {"set": ["/a/b/1", True]}, initial={}
    )
    assert value == {"a": {"b": [1.5, True]}}


def test_emit_sends_the_difference_in_one_event(peer):
    diffs, value = run_script(peer, {"append": "Helped"}, {"emit": "Hello"})
    assert value == "Hello"
    assert diffs[1]["ops"] == [["t", "/items/0/value", 3], ["a", "/items/0/value", "lo"]]
    assert run_script(peer, {"emit": None})[1] is None


def test_bytes_appends_digits(peer):
    assert run_script(peer, {"bytes": 0}, {"bytes": 13})[1] == "0123456789012"


def test_progress_notes_and_usage_do_not_change_the_value(peer):
    steps = [
        {"progress": {"current": 1, "total": 4, "unit": "step", "phase": "warm"}},
        {"note": "cut"},
        {"note": "much", "level": "warning"},
        {"usage": {"tokens": 2, "seconds": 0.5}},
        {"usage": {"tokens": 3}},
        {"sleep_ms": 30_000},
    ]
    job = peer.start(SCRIPT, {"script": steps})
    with peer.stream(job, "0-0") as reading:
        progress = data(reading.until("progress"))
        reading.until_text("much")
        peer.http.post(f"/v1/jobs/{job}/cancel")
        reading.until("done")
    assert progress == {"current": 1, "total": 4, "unit": "step", "phase": "warm", "item": 0}
    state = peer.job(job)["state"]
    assert state["notes"] == [{"level": "info", "text": "cut"}, {"level": "warning", "text": "much"}]
    assert state["usage"] == {"tokens": 3, "seconds": 0.5}


def test_fail_sets_code_and_detail_and_keeps_the_value(peer):
    item = failed(peer, {"append": "so far"}, {"fail": "no further"}, {"append": "never"})
    assert item["value"] == "so far"
    assert (item["error"]["code"], item["error"]["detail"]) == ("internal", "no further")
    assert failed(peer, {"fail": "", "code": "input_too_long"})["error"]["status"] == 422
    assert failed(peer, {"fail": "x", "code": "urn:x:y"})["error"]["code"] == "urn:x:y"


def test_a_step_that_does_not_fit_the_value_fails_with_its_number(peer):
    for steps, number in [
        ([{"append": "ab"}, {"truncate": 3}], 1),
        ([{"append": [1]}], 0),
        ([{"row": ["a", "b"]}], 0),
        ([{"append": "a"}, {"append": "b"}, {"set": ["/x", 1]}], 2),
        ([{"append": "a", "at": "/none"}], 0),
    ]:
        error = failed(peer, *steps)["error"]
        assert error["code"] == "invalid_input"
        assert error["detail"].startswith(f"/script/{number}: ")


def test_items_of_a_batch_run_their_own_scripts(peer):
    inputs = [{"script": [{"append": "a"}]}, {"script": [{"fail": "b"}]}, {}]
    job = peer.run(SCRIPT, inputs=inputs, shared={"script": [{"append": "shared"}]})
    assert job["status"] == "partially_failed"
    assert [item["status"] for item in job["state"]["items"]] == ["succeeded", "failed", "succeeded"]
    assert [item["value"] for item in job["state"]["items"]] == ["a", "", "shared"]


def test_an_empty_script_succeeds_with_its_initial_value(peer):
    assert run_script(peer) == ([], "")
    assert run_script(peer, initial=[1]) == ([], [1])


def test_a_state_beyond_max_state_bytes_fails_the_job(peer):
    job = peer.run(SCRIPT, {"script": [{"bytes": 300_000}]})
    assert job["done"]["error"]["code"] == "state_too_large"


# ---- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("largest", "too_large", "pointer"),
    [
        ([{"append": ""}] * MAX_STEPS, [{"append": ""}] * (MAX_STEPS + 1), "/input/script"),
        ([{"fail": ""}, {"sleep_ms": MAX_SLEEP_MS}], [{"sleep_ms": MAX_SLEEP_MS + 1}], "/input/script/0/sleep_ms"),
        (
            [{"fail": ""}, {"sleep_ms": MAX_SLEEP_MS - 1}, {"sleep_ms": 1}],
            [{"sleep_ms": MAX_SLEEP_MS}, {"sleep_ms": 1}],
            "/input/script",
        ),
        ([{"fail": ""}, {"bytes": MAX_BYTES}], [{"bytes": MAX_BYTES + 1}], "/input/script/0/bytes"),
        ([{"fail": ""}, {"bytes": MAX_BYTES - 1}, {"bytes": 1}], [{"bytes": MAX_BYTES}, {"bytes": 1}], "/input/script"),
        (
            [{"usage": dict.fromkeys(map(str, range(MAX_NUMBERS)), 1)}],
            [{"usage": dict.fromkeys(map(str, range(MAX_NUMBERS + 1)), 1)}],
            "/input/script/0/usage",
        ),
        ([{"fail": ""}, {"row": [0] * MAX_COLUMNS}], [{"row": [0] * (MAX_COLUMNS + 1)}], "/input/script/0/row"),
    ],
)  # fmt: skip
def test_a_script_above_a_limit_is_refused_before_it_is_queued(peer, largest, too_large, pointer):
    assert peer.submit(SCRIPT, {"script": largest}).status_code == 201
    assert refused(peer, {"script": too_large})[0] == pointer


@pytest.mark.parametrize(
    ("input_", "pointer"),
    [
        ({"script": [], "columns": ["/a"] * (MAX_COLUMNS + 1)}, "/input/columns"),
        ({"script": [], "columns": ["a"]}, "/input/columns/0"),
        ({"script": [], "initial": nested(57)}, "/input/initial"),
        ({"script": [{"emit": nested(57)}]}, "/input/script/0/emit"),
        ({}, "/input"),
        ({"script": {}}, "/input/script"),
        ({"script": [{"append": "x"}, {}]}, "/input/script/1"),
        ({"script": ["append"]}, "/input/script/0"),
        ({"script": [{"shout": "x"}]}, "/input/script/0"),
        ({"script": [{"append": 7}]}, "/input/script/0/append"),
        ({"script": [{"append": "x", "emit": "y"}]}, "/input/script/0/emit"),
        ({"script": [{"append": "x", "at": "~"}]}, "/input/script/0/at"),
        ({"script": [{"truncate": -1}]}, "/input/script/0/truncate"),
        ({"script": [{"truncate": 1.5}]}, "/input/script/0/truncate"),
        ({"script": [{"sleep_ms": "1"}]}, "/input/script/0/sleep_ms"),
        ({"script": [{"set": ["/a"]}]}, "/input/script/0/set"),
        ({"script": [{"note": "x", "level": "loud"}]}, "/input/script/0/level"),
        ({"script": [{"usage": {"n": "1"}}]}, "/input/script/0/usage/n"),
        ({"script": [{"progress": {"current": None}}]}, "/input/script/0/progress/current"),
        ({"script": [{"fail": "x", "code": "sad"}]}, "/input/script/0/code"),
    ],
)
def test_an_invalid_script_is_refused_with_its_place(peer, input_, pointer):
    assert refused(peer, input_)[0] == pointer


def test_a_step_without_a_kind_lists_the_kinds(peer):
    assert (
        "one of the members append, truncate, set, row, emit, bytes, sleep_ms"
        in refused(peer, {"script": [{}]})[1]
    )


def test_values_of_the_maximum_depth_are_accepted(peer):
    assert run_script(peer, {"emit": nested(56)}, initial=nested(56))[1] == nested(56)


# ---- discovery ---------------------------------------------------------------------------------------------------


def test_the_description_is_correct_and_its_examples_run(peer):
    described = peer.http.get(f"/v1/endpoints/{SCRIPT}").json()
    capabilities = described["capabilities"]
    assert (capabilities["streams"], capabilities["cancel"], capabilities["rollback"]) == (True, True, True)
    schema = Draft202012Validator(described["input_schema"])
    for example in described["examples"]:
        assert list(schema.iter_errors(example)) == []
        assert peer.run(SCRIPT, example)["status"] in {"succeeded", "failed"}
    assert not schema.is_valid({"script": [{"shout": 1}]})
    assert not schema.is_valid({"script": [{"sleep_ms": MAX_SLEEP_MS + 1}]})


def test_a_server_offers_the_script_endpoint_only_if_added():
    assert SCRIPT not in Server().endpoints
    server = Server()
    add_script(server, concurrency_limit=3)
    assert server.concurrency_limit_of(SCRIPT) == 3
    with pytest.raises(ValueError, match="choose another name"):
        add_script(server)
