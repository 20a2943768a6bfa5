"""`tidewire.protocol.diff`: the specification's vectors, the shape of diffs, and refused input."""

import json
from itertools import product

import pytest

from support.nested_arrays import nested
from support.random_json import canonical_text
from support.spec_vectors import for_each_vector, load_vectors
from support.tables import for_each_case
from tidewire.protocol.diff import DiffError, IntegrityError, UnknownOpError, apply, diff
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH

REFUSED = load_vectors("diff/refused")["vectors"]
OUTCOMES = {"malformed": DiffError, "unknown": UnknownOpError, "check": IntegrityError}


# --- test vectors


@for_each_vector("diff/apply")
def test_diff_of_each_vector_is_applied(vector):
    before = canonical_text(vector["before"])
    after = apply(vector["before"], vector["diff"], columns=vector.get("columns", ()))
    assert canonical_text(after) == canonical_text(vector["after"])
    assert canonical_text(vector["before"]) == before


@for_each_case(
    ((v,) for v in REFUSED if v["outcome"] in OUTCOMES and "stable" not in v["name"]),
    ids=lambda vector: vector["name"],
)
def test_diff_of_each_refused_vector_is_refused(vector):
    before = canonical_text(vector["before"])
    kind = OUTCOMES[vector["outcome"]]
    with pytest.raises(kind) as refusal:
        apply(vector["before"], vector["diff"], columns=vector.get("columns", ()))
    assert type(refusal.value) is kind
    assert canonical_text(vector["before"]) == before


@for_each_vector("diff/apply")
def test_diff_is_computed_for_each_vector(vector):
    ops = diff(vector["before"], vector["after"])
    assert canonical_text(apply(vector["before"], ops)) == canonical_text(vector["after"])


# --- error messages


@pytest.mark.parametrize(
    ("ops", "op", "path", "message"),
    [
        ([["a", "/t", "x"], ["d", "/q"]], 1, "/q", "op 1: at '/q': there is no member 'q'"),
        ([["t", "/t", 9]], 0, "/t", "op 0: at '/t': cannot drop 9 from a length of 3"),
        ([["a", "/t", 1]], 0, "/t", "op 0: at '/t': only a string can be appended to a text, not a number"),
        ([["i", "/n/5", 0]], 0, "/n/5", "op 0: at '/n/5': index 5 is beyond the end of an array of 2"),
        ([["s", "n", 0]], 0, "n", "op 0: at 'n': a JSON Pointer must be empty or begin with '/'"),
        ([["r", "x"]], 0, None, "op 0: a row has 1 members, but there are 2 columns"),
        (
            [["r", "x", 1], ["r", 5, 1]],
            1,
            None,
            "op 1: column 0 ('/t'): only a string can be appended to a text, not a number",
        ),
        (
            [["s", "/x", {"y": float("nan")}]],
            0,
            "/x",
            "op 0: at '/x': at '/y': nan is not a JSON number; send null or a string",
        ),
        ("x", None, None, "a diff that is a string requires exactly one column, but there are 2"),
    ],
)
def test_error_names_the_op_the_path_and_the_fault(ops, op, path, message):
    with pytest.raises(DiffError) as refusal:
        apply({"t": "abc", "n": [1, 2]}, ops, columns=["/t", "/n"])
    error = refusal.value
    assert (error.op, error.path, str(error)) == (op, path, message)


def test_error_truncates_a_long_path():
    with pytest.raises(DiffError) as refusal:
        apply({}, [["d", "/" + "x" * 1_000_000]])
    assert len(str(refusal.value)) < 500


def test_invalid_column_pointer_is_refused():
    with pytest.raises(DiffError, match="column 't'"):
        apply({"t": ""}, "x", columns=["t"])


# --- values outside the protocol's JSON


@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        2**53 + 1,
        -(2**53) - 1,
        "\ud83d",
        {"\ud83d": 1},
        {1: 1},
        (1,),
        {1},
        b"x",
        object(),
    ],
    # `repr` of an object contains its address, which differs between the processes of a parallel test run.
    ids=lambda bad: "object" if type(bad) is object else repr(bad),
)
@pytest.mark.parametrize("shape", ["value", "element", "member"])
def test_value_that_is_not_json_is_refused(bad, shape):
    value = {"value": bad, "element": [0, bad], "member": {"a": bad}}[shape]
    for ops in ([["s", "/x", value]], [["i", "/n/0", value]], [["a", "/n", [value]]], [["r", value]]):
        with pytest.raises(DiffError):
            apply({"n": []}, ops, columns=["/n"])
    with pytest.raises(DiffError):
        diff({"n": []}, {"n": [value]})


@pytest.mark.parametrize("bad", ["\ud83d", "a\udc00b"])
def test_lone_surrogate_is_refused_in_texts_and_paths(bad):
    for ops in (bad, [["a", "/t", bad]], [["r", bad]], [["s", "/" + bad, 1]], [["d", "/" + bad]]):
        with pytest.raises(DiffError, match="surrogate"):
            apply({"t": ""}, ops, columns=["/t"])
    for old, new in (("", bad), ({}, {bad: 1}), ({bad: 1}, {}), ("a", "a" + bad)):
        with pytest.raises(DiffError):
            diff(old, new)


def test_nesting_is_accepted_up_to_the_depth_limit():
    limit = MAX_STATE_DEPTH
    deepest = nested(limit)
    assert apply(0, [["s", "", deepest]]) == deepest
    assert apply(nested(limit - 1), [["s", "/0" * (limit - 1), [1]]]) == nested(limit, 1)
    assert diff(0, deepest) == [["s", "", deepest]]
    assert apply(deepest, diff(deepest, nested(limit, 1))) == nested(limit, 1)
    for value, ops in (
        (0, [["s", "", nested(limit + 1)]]),
        ([], [["a", "", nested(limit + 1)]]),
        (nested(limit - 1), [["s", "/0" * (limit - 1), [[1]]]]),
        (deepest, [["s", "/0" * limit, [1]]]),
        ([], [["i", "/0", nested(limit)]]),
    ):
        with pytest.raises(DiffError, match="nested deeper"):
            apply(value, ops)
    with pytest.raises(DiffError, match="nested deeper"):
        diff(0, nested(limit + 1))


@pytest.mark.heavy
@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}], ids=["array", "object"])
def test_nesting_of_100_000_levels_raises_an_error_without_overflowing(wrap):
    deep, other = 0, 1
    for _ in range(100_000):
        deep, other = wrap(deep), wrap(other)
    for ops in (
        [["s", "/x", deep]],
        [["a", "/n", [deep]]],
        [["i", "/n/0", deep]],
        [["r", deep]],
        deep,
        [deep],
    ):
        with pytest.raises(DiffError):
            apply({"n": []}, ops, columns=["/n"])
    for old, new in ((0, deep), (deep, other), ([deep, 1], [other, 2]), ([1, deep, 2], [3, other, 4, 5])):
        with pytest.raises(DiffError, match="nested deeper"):
            diff(old, new)
    with pytest.raises(DiffError, match="nested deeper"):
        apply([deep, 1], [["s", "/1", 2]])
    assert diff(deep, 0) == [["s", "", 0]]


# --- purity


def test_apply_leaves_the_old_value_unchanged():
    value = {"a": {"x": [1]}, "b": {"y": [2]}}
    after = apply(value, [["s", "/a/x/0", 9]])
    assert after == {"a": {"x": [9]}, "b": {"y": [2]}}
    after["b"]["y"].append(3)
    assert value == {"a": {"x": [1]}, "b": {"y": [2]}}


def test_stable_prefixes_bind_documents_only():
    """`apply(a, diff(a, b))` equals b for any two values, also for those that look like the state of a job."""
    value = {"items": [{"value": "abc", "stable": {"": 3}}]}
    assert apply(value, [["t", "/items/0/value", 3]])["items"][0]["value"] == ""


def test_results_do_not_share_mutable_values_with_their_inputs():
    brought = {"x": [1]}
    ops = [["s", "/a", brought], ["a", "/n", [brought]]]
    after = apply({"n": []}, ops)
    after["a"]["x"].append(2)
    after["n"][0]["x"].append(3)
    assert brought == {"x": [1]}
    new = {"a": brought}
    found = diff({}, new)
    brought["x"].append(2)
    assert found[0][2] in ({"a": {"x": [1]}}, {"x": [1]})


def test_list_that_occurs_twice_is_changed_in_one_place_only():
    row = [0]
    assert apply([row, row], [["s", "/0/0", 1], ["a", "/0", [2]]]) == [[1, 2], [0]]
    assert row == [0]


# --- shape of diffs


@pytest.mark.parametrize(
    ("old", "new", "ops"),
    [
        ({"t": "Hel"}, {"t": "Hello"}, [["a", "/t", "lo"]]),
        ({"t": ""}, {"t": "Hello"}, [["a", "/t", "Hello"]]),
        ({"t": "Hello"}, {"t": "Hel"}, [["t", "/t", 2]]),
        ({"t": "Hello"}, {"t": ""}, [["t", "/t", 5]]),
        (
            {"t": "It is a long text, helped"},
            {"t": "It is a long text, hello"},
            [["t", "/t", 3], ["a", "/t", "lo"]],
        ),
        ({"t": "🎉🎉é"}, {"t": "🎉"}, [["t", "/t", 2]]),
        (
            {"t": "abc", "x": "long enough to stay"},
            {"t": "xyz", "x": "long enough to stay"},
            [["s", "/t", "xyz"]],
        ),
        ("Hel", "Hello", [["a", "", "lo"]]),
        ([1], [1, 2, [3]], [["a", "", [2, [3]]]]),
        ([], [1], [["a", "", [1]]]),
        ([1, 2, 3], [1], [["t", "", 2]]),
        (["first row", "second row", "third row"], ["second row", "third row"], [["d", "/0"]]),
        (["first row", "third row"], ["first row", "second row", "third row"], [["i", "/1", "second row"]]),
        (["row one", "row two"], ["row zero", "row one", "row two"], [["i", "/0", "row zero"]]),
        ({"a": 1, "long name": "long value"}, {"long name": "long value"}, [["d", "/a"]]),
        ({"long name": "long value"}, {"a": 1, "long name": "long value"}, [["s", "/a", 1]]),
        ({"a/b": {"c~d": "x" * 40}}, {"a/b": {"c~d": "x" * 41}}, [["a", "/a~1b/c~0d", "x"]]),
        (
            [["user", "hi"], ["bot", "x" * 40]],
            [["user", "hi"], ["bot", "x" * 40 + "y"]],
            [["a", "/1/1", "y"]],
        ),
        ({"text": "a", "other": [1, 2, 3, 4, 5, 6]}, 5, [["s", "", 5]]),
        ([1, 2, 3], [4, 5, 6], [["s", "", [4, 5, 6]]]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    ],
)
def test_diff_is_minimal_for_common_changes(old, new, ops):
    assert diff(old, new) == ops
    assert canonical_text(apply(old, ops)) == canonical_text(new)


@for_each_case(product([1, 1.0, True, 0, 0.0, -0.0, False, None, "", "0", [], {}, [1], [True]], repeat=2))
def test_values_of_different_types_differ(one, other):
    for old, new in (
        (one, other),
        ([one], [other]),
        ({"a": one}, {"a": other}),
        ([0, one, 9], [0, other, 9]),
    ):
        ops = diff(old, new)
        assert (ops == []) == (canonical_text(old) == canonical_text(new))
        assert canonical_text(apply(old, ops)) == canonical_text(new)


def history(rows):
    return [{"role": "user" if n % 2 else "assistant", "content": f"message number {n}"} for n in range(rows)]


@pytest.mark.parametrize("rows", [1, 1000, 10_000])
def test_text_growing_in_the_last_row_costs_one_op(rows):
    old, new = history(rows), history(rows)
    new[-1]["content"] += " more"
    assert diff(old, new) == [["a", f"/{rows - 1}/content", " more"]]


def test_distant_changes_in_a_history_cost_one_op_each():
    old = history(10_000)
    new = [{"role": "system", "content": "new"}, *history(10_000)]
    del new[5001:5003]
    new[100] = {**new[100], "content": new[100]["content"] + "!"}
    new[-1] = {**new[-1], "content": "message number none"}
    ops = diff(old, new)
    assert len(ops) <= 7
    assert apply(old, ops) == new


def test_row_changed_in_place_is_addressed_by_its_member():
    old, new = history(1000), history(1000)
    new[0]["content"] += "!"
    new[500]["role"] = "system"
    new.append({"role": "user", "content": "next"})
    assert diff(old, new) == [
        ["a", "/0/content", "!"],
        ["s", "/500/role", "system"],
        ["a", "", [{"role": "user", "content": "next"}]],
    ]


def test_shifted_rows_are_not_rewritten():
    old = history(1000)
    new = [*old[1:], {"role": "user", "content": "next"}]
    assert diff(old, new) == [["d", "/0"], ["a", "", [{"role": "user", "content": "next"}]]]


def test_diff_is_not_larger_than_setting_the_whole_value():
    old, new = history(300), [{"role": "x", "content": str(n)} for n in range(300, 0, -1)]
    assert len(json.dumps(diff(old, new))) <= len(json.dumps([["s", "", new]]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([0, 1] * 10_000, [1, 1, 0] * 7_000),
        (list(range(20_000)), list(range(20_000))[::-1]),
        ([[n] for n in range(20_000)], [[n, n] for n in range(20_000)]),
        ("ab" * 500_000, "ab" * 400_000 + "ba" * 100_000),
        ({str(n): n for n in range(20_000)}, {str(n): n + 1 for n in range(0, 40_000, 2)}),
    ],
    ids=["repeating", "reversed", "rows", "text", "object"],
)
def test_large_values_that_differ_everywhere_are_compared_in_bounded_time(old, new):
    assert apply(old, diff(old, new)) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [([[1, 2], [1, 2]], [[1], [1]]), ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2], [4, 5], [7, 8]])],
)
def test_known_faults_of_another_widely_used_diff_are_absent(old, new):
    assert apply(old, diff(old, new)) == new
