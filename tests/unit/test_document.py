"""`tidewire.protocol.document`: growing texts and arrays, views, atomic diffs, text changes, `stable`."""

import tracemalloc
from random import Random
from typing import Any
from zlib import crc32

import pytest

from support.nested_arrays import nested
from support.random_json import canonical_text, random_value
from support.spec_vectors import for_each_vector
from tidewire.protocol import strict_json
from tidewire.protocol.diff import DiffError, IntegrityError, StableError, UnknownOpError, apply
from tidewire.protocol.document import Document
from tidewire.protocol.document.document import TextChange
from tidewire.protocol.document.json_pointer import PointerError
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, MAX_VALUE_DEPTH
from tidewire.protocol.document.versioned_text_and_arrays import Rope

OUTCOMES = {
    "malformed": DiffError,
    "unknown": UnknownOpError,
    "unstable": StableError,
    "check": IntegrityError,
}

TEXT = "/items/0/value/text"
COLUMNS = [TEXT, "/items/0/value/ids", "/items/0/value/top"]


def state(text="", ids=(), top=()):
    value = {"text": text, "ids": list(ids), "top": list(top)}
    return {"status": "running", "items": [{"status": "running", "value": value}]}


def test_trusted_appends_mix_with_diffs():
    document = Document({"a": [], "b": ""}, ["/a", "/b"])
    document.append_each([[1], "x"])
    view = document.view()
    document.append("/a", [2])
    assert document.text_changes == ()
    document.append("/b", "y")
    assert document.text_changes == (TextChange("/b", 0, "y"),)
    document.apply([["d", "/a/0"], ["t", "/b", 1]])
    document.append("/b", "z")
    document.append_each([[3, 4], "!?"])
    assert document.text_changes == (TextChange("/b", 0, "!?"),)
    assert document.value() == {"a": [2, 3, 4], "b": "xz!?"}
    assert view.value() == {"a": [1], "b": "x"}


@pytest.mark.parametrize(
    ("pointer", "addition", "message"),
    [
        ("/t", [1], "only a string can be appended to a text, not an array"),
        ("/n", "x", "only an array can be appended to an array, not a text"),
        ("/o", "x", "cannot append to an object"),
        ("/q", "x", "no member 'q'"),
        ("t", "x", "must be empty or begin with"),
    ],
)
def test_trusted_append_of_the_wrong_kind_is_refused(pointer, addition, message):
    document = Document({"t": "", "n": [], "o": {}})
    with pytest.raises(DiffError, match=message):
        document.append(pointer, addition)
    assert document.value() == {"t": "", "n": [], "o": {}}


# --- test vectors


@for_each_vector("diff/apply")
def test_diff_of_each_vector_is_applied(vector):
    document = Document(vector["before"], vector.get("columns", ()))
    kept = document.view()
    document.apply(vector["diff"])
    assert canonical_text(document.value()) == canonical_text(vector["after"])
    assert canonical_text(kept.value()) == canonical_text(vector["before"])


@for_each_vector("diff/refused")
def test_refused_diff_leaves_the_document_unchanged(vector):
    columns = vector.get("columns", ())
    document = Document(vector["before"], columns)
    kept = document.view()
    kind = OUTCOMES[vector["outcome"]]
    for _ in range(2):
        with pytest.raises(kind) as refusal:
            document.apply(vector["diff"])
        assert type(refusal.value) is kind
        assert (
            canonical_text(document.value())
            == canonical_text(kept.value())
            == canonical_text(vector["before"])
        )
        assert document.text_changes == ()
    for column in columns:
        text = vector["before"].get(column[1:])
        if isinstance(text, str):
            assert (document.text_length(column), document.text_crc(column)) == (
                len(text),
                crc32(text.encode()),
            )
        if isinstance(text, list):
            assert document.array_length(column) == len(text)


# --- growing texts and arrays


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000])
def test_bare_strings_extend_the_only_column(size):
    document = Document(state("x" * size), [TEXT])
    for piece in (" world", "", "é🎉", "!"):
        document.apply(piece)
    assert document.value(TEXT) == "x" * size + " worldé🎉!"


@pytest.mark.parametrize("bad", ["\ud83d", "a\udc00b"])
def test_lone_surrogate_in_a_bare_string_is_refused(bad):
    document = Document({"t": ""}, ["/t"])
    for piece in ("first", "second"):
        with pytest.raises(DiffError, match="surrogate"):
            document.apply(bad)
        document.apply(piece)
    assert document.value() == {"t": "firstsecond"}


@pytest.mark.heavy
def test_rows_extend_all_columns_at_once():
    document = Document(state(), COLUMNS)
    for n in range(1500):
        document.apply([["r", f"t{n} ", n, [[n, -0.5]]]])
    expected = state("".join(f"t{n} " for n in range(1500)), range(1500), [[[n, -0.5]] for n in range(1500)])
    assert document.value() == expected


def test_column_may_be_created_after_it_was_declared():
    document = Document({"items": [{"value": None}]}, [TEXT])
    with pytest.raises(DiffError, match="null has no members"):
        document.apply("x")
    document.apply([["s", "/items/0/value", {"text": "a"}]])
    document.apply("b")
    assert document.value(TEXT) == "ab"


def test_column_may_be_deleted_and_created_again_with_another_type():
    document = Document({"t": "a"}, ["/t"])
    document.apply("b")
    document.apply([["d", "/t"]])
    with pytest.raises(DiffError, match="no member 't'"):
        document.apply("c")
    document.apply([["s", "/t", [1]]])
    with pytest.raises(DiffError, match="only an array can be appended to an array"):
        document.apply("c")
    document.apply([["r", 2]])
    assert document.value() == {"t": [1, 2]}


@pytest.mark.parametrize(
    "ops", [[["t", "/t", 1]], [["s", "/t", "ab"]], [["s", "", {"t": "ab"}]], [["s", "/x", 1]]]
)
def test_column_grows_after_other_ops_changed_it(ops):
    document = Document({"t": "ab"}, ["/t"])
    document.apply("c")
    before = document.view()
    document.apply(ops)
    document.apply("d")
    assert document.value("/t") == ("abcd" if ops[0][1] == "/x" else "abd")
    assert before.value() == {"t": "abc"}


def test_array_changed_and_extended_in_one_diff_does_not_affect_kept_views():
    document = Document({"n": [1, 2, 3], "t": ""}, ["/n"])
    document.apply([["t", "/n", 1], ["r", 9]])
    kept = document.view()
    document.apply([["r", 10]])
    document.apply([["a", "/n", [11]]])
    assert kept.value("/n") == [1, 2, 9]
    assert document.value("/n") == [1, 2, 9, 10, 11]


def test_texts_inside_growing_arrays_can_be_extended_and_replaced():
    document = Document({"rows": []}, ["/rows"])
    views = []
    for n in range(50):
        document.apply([["r", {"content": ""}]])
        for piece in ("a", "b"):
            document.apply([["a", f"/rows/{n}/content", piece]])
            views.append((n, piece, document.view()))
        document.apply([["s", f"/rows/{n // 2}/mark", n]])
    for n, piece, view in views:
        rows = view.value("/rows")
        assert len(rows) == n + 1
        assert rows[n]["content"] == ("a" if piece == "a" else "ab")
    assert document.value("/rows/10") == {"content": "ab", "mark": 21}


def test_memory_is_proportional_to_the_document():
    document = Document(state(), [TEXT])
    tracemalloc.start()
    try:
        for _ in range(100_000):
            document.append(TEXT, "token ")
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert document.text_length(TEXT) == 600_000
    assert used < 3 * 600_000


# --- views


def test_kept_view_is_unchanged_by_later_diffs():
    document = Document(state("a", [1], [[0]]), COLUMNS)
    seen = []
    for diff in (
        [["r", "b", 2, [1]]],
        [["r", "c", 3, [2]], ["r", "d", 4, [3]]],
        [["t", TEXT, 2], ["t", COLUMNS[1], 2], ["t", COLUMNS[2], 2]],
        [["r", "e", 5, [4]]],
        [["s", "/items/0/value/ids/0", "first"]],
        [["a", "/items/0/value/top/0", [7]]],
        [["i", "/items/0", {"value": None}], ["d", "/items/0"]],
        [["s", "/status", "almost"], ["a", TEXT, "f"]],
        [["s", "/items/0/value", {"text": "x", "ids": [], "top": []}]],
        [["r", "y", 1, None]],
        [["s", "", state("z")]],
        [["r", "!", 2, 3]],
    ):
        seen.append((document.view(), canonical_text(document.value())))
        document.apply(diff)
    for view, expected in seen:
        assert canonical_text(view.value()) == expected
    assert document.value("/items/0/value") == {"text": "z!", "ids": [2], "top": [3]}


def test_values_that_were_read_are_independent_copies():
    given = {"rows": [[1]], "t": "a"}
    document = Document(given, ["/t"])
    given["rows"][0].append(2)
    view = document.view()
    for read in (view.value, document.value):
        read()["rows"][0].append(3)
        read("/rows").clear()
    brought = {"x": [1]}
    document.apply([["s", "/new", brought], ["a", "/rows", [brought["x"]]]])
    brought["x"].append(2)
    assert view.value() == {"rows": [[1]], "t": "a"}
    assert document.value() == {"rows": [[1], [1]], "t": "a", "new": {"x": [1]}}


def test_value_is_read_by_its_pointer():
    document = Document({"a": [{"b/c": "x"}], "t": ""}, ["/t"])
    document.apply([["a", "/a", [1, 2]]])
    view = document.view()
    document.apply([["a", "/a", [3]]])
    assert view.value("/a/0/b~1c") == "x"
    assert view.value("/a/2") == 2
    assert document.value("/a/3") == 3
    for missing in ("/a/3", "/q", "/a/-", "/a/0/b~1c/0", "/a/01"):
        with pytest.raises(LookupError, match="nothing at"):
            view.value(missing)
    with pytest.raises(PointerError):
        view.value("a")


# --- text changes


@pytest.mark.parametrize(
    ("diff", "changes"),
    [
        ([["r", "!", 1, 1]], [(TEXT, 0, "!")]),
        ([["r", "!", 1, 1], ["r", "?", 2, 2]], [(TEXT, 0, "!?")]),
        ([["r", "", 1, 1]], []),
        ([["a", TEXT, "!"]], [(TEXT, 0, "!")]),
        ([["t", TEXT, 3]], [(TEXT, 3, "")]),
        ([["t", TEXT, 3], ["a", TEXT, "lo"]], [(TEXT, 3, "lo")]),
        ([["t", TEXT, 3], ["a", TEXT, "ped"]], []),
        ([["t", TEXT, 3], ["a", TEXT, "per"]], [(TEXT, 1, "r")]),
        ([["a", TEXT, "!!"], ["t", TEXT, 1]], [(TEXT, 0, "!")]),
        ([["s", TEXT, "Hello"]], [(TEXT, 3, "lo")]),
        ([["s", TEXT, "Helped out"]], [(TEXT, 0, " out")]),
        ([["s", TEXT, "Helped"]], []),
        ([["s", TEXT, None]], [(TEXT, 6, "")]),
        ([["d", TEXT]], [(TEXT, 6, "")]),
        ([["s", "/items/0/value", {"text": "He", "ids": [], "top": []}]], [(TEXT, 4, "")]),
        ([["s", "/items/0/value", None]], [(TEXT, 6, "")]),
        ([["s", "/items/0", {"value": {"text": "Help!"}}]], [(TEXT, 2, "!")]),
        ([["s", "/items", []]], [(TEXT, 6, "")]),
        ([["s", "", state("Helped it")]], [(TEXT, 0, " it")]),
        ([["d", "/items/0"]], [(TEXT, 6, "")]),
        ([["i", "/items/0", {"value": {"text": "New"}}]], [(TEXT, 6, "New")]),
        ([["s", "/items/0/status", "succeeded"]], []),
        ([["s", "/status", "succeeded"]], []),
        ([["a", COLUMNS[1], [1, 2]]], []),
        ([], []),
        ({"ops": [["a", TEXT, "!"]], "check": [[TEXT, 7, crc32(b"Helped!")]]}, [(TEXT, 0, "!")]),
    ],
)
@pytest.mark.parametrize("grown", [False, True], ids=["as it came", "grown"])
def test_text_changes_report_deleted_and_added_text(diff, changes, grown):
    document = Document(state("Hel" if grown else "Helped", [5], [6]), COLUMNS)
    if grown:
        document.apply([["a", TEXT, "ped"]])
    document.apply(diff)
    assert document.text_changes == tuple(TextChange(*change) for change in changes)
    assert document.text_changes == tuple(TextChange(*change) for change in changes)


def test_each_bare_string_is_a_separate_change():
    document = Document({"t": ""}, ["/t"])
    for piece, changes in (("a", [TextChange("/t", 0, "a")]), ("bé", [TextChange("/t", 0, "bé")]), ("", [])):
        document.apply(piece)
        assert list(document.text_changes) == changes


@pytest.mark.parametrize("truncated_before", [False, True], ids=["first", "again"])
def test_truncation_does_not_copy_the_text(truncated_before):
    document = Document({"t": ""}, ["/t"])
    for _ in range(20_000):
        document.apply("x" * 100)
    if truncated_before:
        document.apply([["t", "/t", 1]])
    tracemalloc.start()
    try:
        document.apply([["a", "/t", "yz"], ["t", "/t", 5], ["a", "/t", "xb"]])
        changes = document.text_changes
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert changes == (TextChange("/t", 2, "b"),)
    assert most < 1_000_000


def test_only_texts_touched_by_a_diff_are_reported_as_changed():
    value = {"items": [{"value": {"text": f"item {n}", "n": 0}} for n in range(5)]}
    columns = [f"/items/{n}/value/text" for n in range(5)]
    document = Document(value, columns)
    document.apply([["a", columns[3], "!"], ["s", "/items/1/value/n", 1], ["t", columns[0], 1]])
    assert document.text_changes == (TextChange(columns[0], 1, ""), TextChange(columns[3], 0, "!"))
    document.apply([["d", "/items/2"]])
    assert document.text_changes == (
        TextChange(columns[2], 1, "3!"),
        TextChange(columns[3], 2, "4"),
        TextChange(columns[4], 6, ""),
    )


def test_first_snapshot_reports_each_text_as_added():
    assert Document(state("Hel"), COLUMNS).changes_since(None) == (TextChange(TEXT, 0, "Hel"),)
    assert Document(state(""), COLUMNS).changes_since(None) == ()


def test_snapshot_with_other_columns_reports_texts_of_dropped_columns_as_deleted():
    old = Document({"a": "one", "b": "two"}, ["/a"])
    new = Document({"a": "one", "b": "two"}, ["/b"])
    assert new.changes_since(old) == (TextChange("/b", 0, "two"), TextChange("/a", 3, ""))


# --- lengths and checksums


def test_lengths_and_checksums_follow_each_diff():
    document = Document(state("é", [1]), COLUMNS)
    whole = "é"
    for n in range(200):
        document.apply([["r", "🎉a", n, None]])
        whole += "🎉a"
        if n % 50 == 7:
            document.apply([["t", TEXT, 5]])
            whole = whole[:-5]
        assert document.text_length(TEXT) == len(whole)
        assert document.text_crc(TEXT) == crc32(whole.encode())
        assert document.array_length(COLUMNS[1]) == n + 2


def test_length_and_checksum_of_other_types_raise_lookup_error():
    document = Document({"t": "a", "n": [], "x": 1})
    for measure, pointer in (
        (document.text_length, "/n"),
        (document.text_crc, "/x"),
        (document.text_crc, "/q"),
        (document.array_length, "/t"),
        (document.array_length, "/n/0"),
    ):
        with pytest.raises(LookupError):
            measure(pointer)


def test_failed_check_rolls_back_the_ops_before_it():
    document = Document(state("a"), COLUMNS)
    document.apply([["r", "b", 1, 1]])
    with pytest.raises(IntegrityError):
        document.apply({"ops": [["r", "c", 2, 2], ["t", TEXT, 1]], "check": [[TEXT, 3, 0]]})
    assert document.value() == state("ab", [1], [1])
    assert document.text_changes == (TextChange(TEXT, 0, "b"),)
    document.apply([["r", "c", 2, 2]])
    assert document.value() == state("abc", [1, 2], [1, 2])


# --- limits


def test_value_of_an_item_is_accepted_up_to_the_depth_limit():
    document = Document({"items": [{"value": None}]})
    document.apply([["s", "/items/0/value", nested(MAX_VALUE_DEPTH)]])
    with pytest.raises(DiffError, match="nested deeper"):
        document.apply([["s", "/items/0/value", nested(MAX_VALUE_DEPTH + 1)]])
    with pytest.raises(DiffError, match="nested deeper"):
        document.apply([["s", "/items/0/value" + "/0" * MAX_VALUE_DEPTH, []]])
    assert document.value("/items/0/value") == nested(MAX_VALUE_DEPTH)


def test_depth_limit_holds_across_many_small_diffs():
    document = Document([])
    for depth in range(1, MAX_STATE_DEPTH):
        document.apply([["a", "/0" * (depth - 1), [[]]]])
    with pytest.raises(DiffError, match="nested deeper"):
        document.apply([["a", "/0" * (MAX_STATE_DEPTH - 1), [[]]]])
    with pytest.raises(DiffError, match="nested deeper"):
        document.apply([["s", "/0" * MAX_STATE_DEPTH, []]])


@pytest.mark.parametrize(
    "bad",
    [float("nan"), "\ud83d", {"\ud83d": 1}, 2**53 + 1, nested(MAX_STATE_DEPTH), nested(100_000)],
    ids=type,
)
def test_state_that_is_not_json_is_refused(bad):
    with pytest.raises(DiffError):
        Document({"x": bad})


def test_invalid_column_pointer_is_refused():
    with pytest.raises(DiffError, match="column 'items'"):
        Document({}, ["items"])


def test_many_truncations_in_one_diff_do_not_copy_a_large_text():
    document = Document({"t": "x" * 4_000_000}, ["/t"])
    document.apply([["t", "/t", 2], ["a", "/t", "y"]] * 10_000)
    assert document.text_length("/t") == 3_990_000
    assert document.value("/t") == "x" * 3_989_999 + "y"


def test_many_ops_in_one_diff_copy_a_large_array_once():
    document = Document({"n": list(range(200_000))}, ["/n"])
    document.apply([["s", "/n/0", 0], ["a", "/n", [1]], ["t", "/n", 2]] * 5_000)
    assert document.array_length("/n") == 195_000


def test_many_checks_of_a_large_text_compute_its_crc_once():
    text = "x" * 4_000_000
    document = Document({"t": text})
    document.apply({"ops": [], "check": [["/t", len(text), crc32(text.encode())]] * 10_000})
    # The first check replaced the plain string by a `Rope`, which caches the CRC.
    assert isinstance(document.view().node(("t",)), Rope)


# --- stable


def test_stable_length_binds_texts_that_have_grown():
    item = {"value": {"text": "Hel"}, "stable": {"/text": 3}}
    document = Document({"items": [item]}, [TEXT])
    document.apply("ped")
    document.apply([["s", "/items/0/stable/~1text", 5]])
    kept = document.view()
    with pytest.raises(
        StableError, match="the first 5 code points at '/text', which `stable` had declared final"
    ):
        document.apply([["t", TEXT, 2]])
    document.apply([["t", TEXT, 1], ["a", TEXT, "r"]])
    assert document.value(TEXT) == "Helper"
    assert kept.value(TEXT) == "Helped"


def random_change_of_text(random, text):
    """Return random ops on the text, and the text after these ops."""
    added = "".join(random.choice("ab") for _ in range(random.randrange(5)))
    kind = random.randrange(4)
    if kind == 0:
        new = text[: random.randrange(len(text) + 1)] + added
        return [["s", TEXT, new]], new
    dropped = min(len(text), random.choice([0, 1, 3, len(text) // 2])) if kind > 1 else 0
    return [["t", TEXT, dropped], ["a", TEXT, added]], text[: len(text) - dropped] + added


def test_diff_is_refused_exactly_if_it_changes_the_stable_prefix():
    random, outcomes = Random(3), []
    for _ in range(100):
        document, text, stable = Document(state(), COLUMNS), "", 0
        for step in range(40):
            if step % 6 == 5:
                stable = random.randrange(stable, max(stable, len(text)) + 1)
                document.apply([["s", "/items/0/stable", {"/text": stable}]])
            ops, after = random_change_of_text(random, text)
            outcomes.append(after.startswith(text[:stable]))
            if outcomes[-1]:
                document.apply(ops)
                text = after
            else:
                with pytest.raises(StableError):
                    document.apply(ops)
            assert document.value(TEXT) == text
    assert 100 < outcomes.count(False) < len(outcomes) - 100


def test_stable_length_of_a_missing_text_applies_once_the_text_exists():
    document = Document({"items": [{"value": None, "stable": {"/text": 2}}]}, [TEXT])
    document.apply([["s", "/items/0/value", {"text": "ab"}]])
    with pytest.raises(StableError):
        document.apply([["t", TEXT, 1]])


def test_stable_has_no_effect_outside_of_items():
    document = Document({"stable": {"": 3}, "value": "abc", "items": "none"})
    document.apply([["t", "/value", 3], ["s", "/stable", 5], ["t", "/items", 4]])
    assert document.value() == {"stable": 5, "value": "", "items": ""}


def test_size_of_a_document_is_that_of_its_json():
    random = Random(4)
    for _ in range(300):
        document = Document(
            {"grown": "é\n", "list": [0.5], "value": random_value(random)}, ["/grown", "/list"]
        )
        document.apply(
            [["r", 'a "b" \u2028\t', random_value(random)], ["a", "/grown", "🎉\x01" * random.randrange(3)]]
        )
        assert document.json_bytes() == len(strict_json.dumps(document.value()).encode())
    document.apply([["s", "", [True, False, None, {}, [], 1e22, "x" * 70_000]]])
    assert document.json_bytes() == len(strict_json.dumps(document.value()).encode())


def _random_op(draw: Random, value: Any) -> list[Any]:
    """Draw an op at a path that mostly exists. Paths repeat, so that consecutive ops often change the same object."""
    path, node = "", value
    while isinstance(node, dict | list) and node and draw.random() < 0.7:
        key = draw.choice([*node] if isinstance(node, dict) else [*range(len(node))])
        path, node = f"{path}/{key}", node[key]
    new = draw.choice([1, "x", [], {"a": 1}, {"a": {"b": [1, {"c": 2}]}}, [{"a": 1}, {"b": "t"}]])
    match draw.choice("sssssaid"):
        case "s":
            return ["s", path if draw.random() < 0.5 else f"{path}/{draw.choice(['a', 'b', '0', '1'])}", new]
        case "a":
            return ["a", path, "y" if isinstance(node, str) else [new]]
        case letter:
            return [letter, path, new][: 3 if letter == "i" else 2]


@pytest.mark.parametrize("seed", range(40))
def test_ops_in_one_diff_have_the_effect_of_the_same_ops_in_separate_diffs(seed):
    draw = Random(seed)
    value: Any = {"a": {"a": {"b": "t"}, "b": 1}, "b": [{"a": 1}, {"a": "t", "b": {}}]}
    ops: list[Any] = []
    changed = value
    while len(ops) < 60:
        op = _random_op(draw, changed)
        try:
            changed = apply(changed, [op])
        except DiffError:
            continue
        ops.append(op)
    document = Document(value)
    document.apply(ops)
    assert document.value() == changed
    assert apply(value, ops) == changed
