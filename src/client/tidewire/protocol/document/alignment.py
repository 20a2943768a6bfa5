"""Which elements of two lists are the same ones.

Few edits are found exactly, by the greedy walk of Myers ("An O(ND) Difference Algorithm", 1986), which costs the
length of the lists times the edits. Where there are more, the lists are split along elements that stand exactly once
in both, as a patience diff does, and each stretch between two of these is aligned in turn. Edits and turns are
bounded; what is beyond them stays unaligned, which costs bytes in a diff and never its truth.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Final

MAX_EDITS: Final = 64
"""Insertions and deletions in one stretch that are found exactly."""

MAX_TURNS: Final = 8
"""How often a stretch is split again."""

Matches = list[tuple[int, int]]


def align(old: Sequence[Hashable], new: Sequence[Hashable]) -> Matches:
    """Pair equal elements of two lists, both indexes strictly rising."""
    matches: Matches = []
    stretches = [(0, len(old), 0, len(new), MAX_TURNS)]
    while stretches:
        i, i_end, j, j_end, turns = stretches.pop()
        part, other = old[i:i_end], new[j:j_end]
        found = _few_edits(part, other)
        if found is None and turns:
            found = _anchors(part, other)
            corners = [(-1, -1), *found, (len(part), len(other))] if found else []
            for (a, b), (a_end, b_end) in pairwise(corners):
                if a_end - a > 1 and b_end - b > 1:
                    stretches.append((i + a + 1, i + a_end, j + b + 1, j + b_end, turns - 1))
        matches.extend((i + a, j + b) for a, b in found or ())
    return sorted(matches)


def _few_edits(old: Sequence[Hashable], new: Sequence[Hashable]) -> Matches | None:
    """The longest common subsequence, if at most `MAX_EDITS` edits lead from one list to the other."""
    n, m = len(old), len(new)
    # On diagonal k, where x - y = k: the furthest x that is reached with the edits so far. It may lie beyond the end
    # of a list, but then a way to both ends with fewer edits was found before.
    furthest: dict[int, int] = {}
    earlier: list[dict[int, int]] = []
    for edits in range(min(MAX_EDITS, n + m) + 1):
        earlier.append(furthest.copy())
        for k in range(max(-edits, -m), min(edits, n) + 1):
            if (k - edits) % 2:
                continue
            x = _step(furthest, k) if edits else 0
            while x < n and x - k < m and old[x] == new[x - k]:
                x += 1
            furthest[k] = x
            if x == n and x - k == m:
                return _walk_back(earlier, n, m)
    return None


def _step(furthest: dict[int, int], k: int) -> int:
    """Where one more edit enters diagonal k: by an insertion from the one above or a deletion from the one below."""
    return max(furthest.get(k + 1, -1), furthest.get(k - 1, -2) + 1)


def _walk_back(earlier: list[dict[int, int]], n: int, m: int) -> Matches:
    matches: Matches = []
    x, k = n, n - m
    for edits in range(len(earlier) - 1, -1, -1):
        before = earlier[edits]
        entered = _step(before, k) if edits else 0
        matches.extend((at, at - k) for at in range(entered, x))
        if before.get(k + 1, -1) == entered:
            x, k = entered, k + 1
        else:
            x, k = entered - 1, k - 1
    return matches


def _anchors(old: Sequence[Hashable], new: Sequence[Hashable]) -> Matches:
    """Elements that stand once in both lists: of those, a longest run whose order is common to both."""
    in_old, in_new = Counter(old), Counter(new)
    places = {element: j for j, element in enumerate(new) if in_new[element] == 1}
    shared = [(i, places[e]) for i, e in enumerate(old) if in_old[e] == 1 and e in places]
    # tails[n] ends a rising run of n + 1 places of `new` with the smallest last place; each pair knows the one before.
    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for at, (_, j) in enumerate(shared):
        rank = bisect_left(tails, j)
        previous.append(ends[rank - 1] if rank else -1)
        tails[rank : rank + 1] = [j]
        ends[rank : rank + 1] = [at]
    run: Matches = []
    at = ends[-1] if ends else -1
    while at >= 0:
        run.append(shared[at])
        at = previous[at]
    return run[::-1]
