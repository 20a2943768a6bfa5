import random
from itertools import pairwise

import pytest

from tidewire.protocol.document.match_list_elements import MAX_EDITS, align


def longest_common(old, new):
    """Length of the longest common subsequence, by dynamic programming."""
    row = [0] * (len(new) + 1)
    for a in old:
        above = row
        row = [0]
        for j, b in enumerate(new):
            row.append(above[j] + 1 if a == b else max(above[j + 1], row[j]))
    return row[-1]


def check(old, new, matches):
    assert all(old[i] == new[j] for i, j in matches)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(matches))


@pytest.mark.parametrize("alphabet", [2, 4, 30])
def test_lists_with_few_edits_have_an_optimal_alignment(alphabet):
    draw = random.Random(alphabet)
    for _ in range(300):
        old = [draw.randrange(alphabet) for _ in range(draw.randrange(MAX_EDITS // 2))]
        new = [draw.randrange(alphabet) for _ in range(draw.randrange(MAX_EDITS // 2))]
        matches = align(old, new)
        check(old, new, matches)
        assert len(matches) == longest_common(old, new)


def test_lists_with_many_edits_are_aligned_at_their_unique_elements():
    draw = random.Random(1)
    old = list(range(5000))
    new = [n for n in old if draw.random() > 0.3]
    for _ in range(1000):
        new.insert(draw.randrange(len(new)), -draw.randrange(50))
    matches = align(old, new)
    check(old, new, matches)
    assert len(matches) == sum(new.count(n) == 1 for n in set(new) & set(old))


def test_repeated_elements_are_aligned_between_unique_elements():
    old = [x for n in range(500) for x in (f"once {n}", "often", "often", f"old {n}")]
    new = [x for n in range(500) for x in (f"new {n}", f"once {n}", "often", "other", "often")]
    matches = align(old, new)
    check(old, new, matches)
    assert len(matches) == 1500


def test_many_edits_without_unique_elements_are_not_aligned():
    assert align(["a", "b"] * MAX_EDITS, ["c", "d"] * MAX_EDITS) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["a"] * 20_000, ["b"] * 20_000),
        (["a", "b"] * 10_000, ["b", "b", "a"] * 7_000),
        (list(range(20_000)), list(range(20_000))[::-1]),
        (list(range(20_000)), list(range(10_000, 30_000))),
        ([n % 100 for n in range(20_000)], [n % 101 for n in range(20_000)]),
    ],
    ids=["disjoint", "repeating", "reversed", "shifted", "out-of-step"],
)
def test_long_lists_are_aligned_in_bounded_time(old, new):
    check(old, new, align(old, new))


def test_reordered_elements_keep_their_longest_common_order():
    old = list(range(1000))
    new = old[500:] + old[:500]
    assert len(align(old, new)) == 500


def test_empty_or_disjoint_lists_have_no_alignment():
    assert align([], []) == align([], [1]) == align([1], []) == align([1], [2]) == []
