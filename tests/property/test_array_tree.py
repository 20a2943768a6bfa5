"""`ArrayTree` behaves like a list, its copies never change, and a change copies only a small part."""

import random
import tracemalloc

import pytest

from tidewire.protocol.document import Document, array_tree
from tidewire.protocol.document.array_tree import ArrayTree
from tidewire.protocol.document.document import MAX_COPIED


@pytest.mark.parametrize("width", [2, 3, 64])
@pytest.mark.parametrize("growing", [0.3, 0.5, 0.7])
def test_random_changes_have_the_same_result_as_those_of_a_list(width, growing, monkeypatch):
    monkeypatch.setattr(array_tree, "WIDTH", width)
    draw = random.Random(width)
    expected = list(range(50))
    tree = ArrayTree(expected.copy())
    kept = []
    for step in range(1500):
        at = draw.randrange(len(expected)) if expected else 0
        kind = draw.random()
        if kind < growing / 2:
            tree.insert(at, step)
            expected.insert(at, step)
        elif kind < growing:
            more = [step] * draw.choice([0, 1, 1, 5])
            tree.extend(more)
            expected += more
        elif expected and kind < 0.98:
            change = draw.randrange(2)
            if change:
                tree[at] = expected[at] = step
            else:
                del tree[at]
                del expected[at]
        else:
            del tree[at:]
            del expected[at:]
        assert len(tree) == len(expected)
        if step % 10 == 0:
            assert list(tree) == expected
            assert tree[at:] == expected[at:]
            assert tree[at : at + 3] == expected[at : at + 3]
            assert [tree[index] for index in range(len(tree))] == expected
            kept.append((tree.copy(), expected.copy()))
    for copy, elements in kept:
        assert list(copy) == elements


OPS = {
    "set": lambda n: ["s", f"/a/{n // 2}", -1],
    "set a member": lambda n: ["s", f"/a/{n // 3}/x", -1],
    "insert": lambda n: ["i", "/a/0", -1],
    "delete": lambda n: ["d", "/a/1"],
    "truncate": lambda _: ["t", "/a", 1],
    "append": lambda _: ["a", "/a", [1]],
    "row": lambda _: ["r", 1],
}


@pytest.mark.parametrize("op", OPS)
def test_an_op_on_a_large_array_copies_only_a_small_part(op):
    n = 100 * MAX_COPIED
    document = Document({"a": [{"x": 0}] * n}, ["/a"])
    document.apply([["i", "/a/0", 0], ["d", "/a/0"]])
    views = [document.view()]
    tracemalloc.start()
    try:
        document.apply([OPS[op](n)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The references alone take 8 bytes for each element.
    assert peak < n
    assert views[0].value("/a") == [{"x": 0}] * n


def test_many_appends_after_a_change_return_to_an_array_that_grows_in_place():
    n = 2 * MAX_COPIED
    document = Document({"a": [0] * n}, ["/a"])
    document.apply([["s", "/a/0", 1]])
    views = []
    for step in range(n):
        document.grow([[step], [step]])
        if step % 100 == 0:
            views.append(
                (document.view(), [1] + [0] * (n - 1) + [one for one in range(step + 1) for _ in "ab"])
            )
    assert type(document.view().node(("a",))).__name__ == "RopeArray"
    assert all(view.value("/a") == expected for view, expected in views)
