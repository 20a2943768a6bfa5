"""`ObjectTree` behaves like a dict, its copies never change, and a change copies only a small part."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewire.protocol.document import Document, object_tree
from tidewire.protocol.document.digests import digest
from tidewire.protocol.document.document import MAX_COPIED
from tidewire.protocol.document.object_tree import ObjectTree

names = st.integers(0, 30).map(str)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(names, st.none()), st.lists(st.tuples(st.booleans(), names), max_size=60), st.sampled_from([1, 3, 16])
)  # fmt: skip
def test_any_changes_have_the_same_result_as_those_of_a_dict(expected, steps, most):
    usual, object_tree.MAX_MEMBERS = object_tree.MAX_MEMBERS, most
    try:
        tree, kept = ObjectTree(expected), []
        for step, (sets, name) in enumerate(steps):
            kept.append((tree.copy(), expected.copy()))
            if sets:
                tree[name] = expected[name] = step
            elif name in expected:
                del tree[name], expected[name]
            assert (name in tree, tree.get(name), len(tree)) == (
                name in expected,
                expected.get(name),
                len(expected),
            )
        for copy, members in [*kept, (tree, expected)]:
            assert [*copy.members().items()] == [*members.items()]
            assert [copy[name] for name in members] == [*members.values()]
    finally:
        object_tree.MAX_MEMBERS = usual


OPS = [
    ["s", "/o/7", {"x": 1}],
    ["s", "/o/new", -1],
    ["s", "/o/7/x", -1],
    ["d", "/o/7"],
    ["a", "/o/8/t", "word"],
]


def test_an_op_on_a_large_object_copies_only_a_small_part():
    n = 20 * MAX_COPIED
    first = {str(at): {"x": 0, "t": ""} for at in range(n)}
    document = Document({"o": first})
    document.apply([["s", "/o/0", 0]])
    first["0"] = 0
    before = document.view()
    for op in OPS:
        tracemalloc.start()
        try:
            document.apply([op])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # The references alone take 8 bytes for each member.
        assert peak < n, op
    assert before.value("/o") == first
    assert document.node("/o/9") is before.node(("o", "9"))


def test_values_are_dicts_with_the_members_in_the_order_in_which_they_were_set():
    names = [f"m{at}" for at in range(2 * MAX_COPIED)]
    document = Document({"o": {}})
    document.apply([["s", f"/o/{name}", 0] for name in names])
    for op in (["d", "/o/m5"], ["s", "/o/m7", 1], ["s", "/o/m5", 2]):
        document.apply([op])
    expected = {name: 0 for name in names if name != "m5"} | {"m7": 1, "m5": 2}
    assert type(document.node("/o")) is ObjectTree
    found = document.value("/o")
    assert type(found) is dict
    assert json.dumps(found) == json.dumps(expected)
    assert document.json_bytes() == len(json.dumps({"o": expected}, separators=(",", ":")))
    assert digest([document.node("/o")]) == digest([expected])
    with pytest.raises(ValueError, match="no member 'x'"):
        document.apply([["s", "/o/m1", 5], ["d", "/o/x"]])
    with pytest.raises(ValueError, match="cannot append to an object"):
        document.apply([["a", "/o", [1]]])
    assert document.value("/o") == expected
    assert not document.view().has_more_nodes_than(2 * MAX_COPIED + 2)
    assert document.view().has_more_nodes_than(2 * MAX_COPIED + 1)
