"""Align two lists, so that the diff between them is short.

The result is pairs of equal elements, which are in the same order in both lists.

If at most `MAX_EDITS` edits lead from one list to the other, the optimal alignment is found with the greedy algorithm of
Myers ("An O(ND) Difference Algorithm", 1986). It takes time proportional to the length of the lists times the number of
edits. If there are more edits, the lists are split at the elements that occur exactly once in both lists, as in a patience
diff. Each section between two such elements is aligned recursively, up to a depth of `MAX_TURNS`. Sections beyond these
limits are not aligned. The diff is then longer but still correct.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Final

MAX_EDITS: Final = 64
"""Maximum number of insertions and deletions in a section.

For a section with more of them, the alignment is not optimal.
"""

MAX_TURNS: Final = 8
"""Maximum depth of the recursion in which sections are split into smaller sections."""

Matches = list[tuple[int, int]]


def align(old: Sequence[Hashable], new: Sequence[Hashable]) -> Matches:
    """Return the pairs of indexes of matching elements. Both indexes increase strictly from pair to pair."""
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
    """Return a longest common subsequence, or None if more than `MAX_EDITS` edits lead from one list to the other."""
    n, m = len(old), len(new)
    # The names are those of the paper. `furthest` maps a diagonal k (x - y = k) to the largest x that can be reached with the
    # current number of edits. An x beyond the end of a list does no harm, because it is never read as an index.
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
    """Return the largest x on diagonal k after one more edit.

    The edit is an insertion from diagonal k + 1, or a deletion from diagonal k - 1.
    """
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
    """Return a longest common subsequence of the elements that occur exactly once in each list."""
    in_old, in_new = Counter(old), Counter(new)
    places = {element: j for j, element in enumerate(new) if in_new[element] == 1}
    shared = [(i, places[e]) for i, e in enumerate(old) if in_old[e] == 1 and e in places]
    # This is patience sorting. tails[n] is the smallest index in `new` at which an increasing run of n + 1 pairs can end.
    # ends[n] is the pair with this index, and previous[i] is the pair before pair i in its run.
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
