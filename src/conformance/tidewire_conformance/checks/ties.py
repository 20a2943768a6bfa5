"""Checks for section 8.4: the order of candidates, ranks and ties, judged by log-probabilities with nine decimals."""

from itertools import pairwise
from typing import Any

from tidewire_conformance.checks.generation import (
    LOGPROBS,
    MAX_TOKENS,
    generated,
    generated_each,
    max_top,
)
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

DECIMALS = 9
"""Largest value of `logprob_decimals`. Tokens whose log-probabilities agree in all decimals count as tied."""
MAX_CANDIDATES = 20
MIN_GAP = 1e-3
"""Minimum difference of two log-probabilities that cannot be a floating-point error between two runs of a model."""
TIES = {"cut": "TW-GEN-034", "count": "TW-GEN-035", "all": "TW-GEN-036"}
"""Requirement for each value of the member `ties`."""
COUNTS = (1, 2, 5)
"""Numbers of candidates for which the check compares the ties with a longer list of candidates."""

Row = list[tuple[int, float]]
"""Candidates at a position: pairs of a token id and its log-probability."""


def _most(s: Session) -> int:
    most = min(max_top(s), MAX_CANDIDATES)
    if most < 2:
        s.skip_untested(f"max_top is {max_top(s)}")
    return most


def _rows(value: dict[str, Any]) -> list[Row]:
    """Return the candidates at each position, without those whose probability is 0."""
    pairs = zip(value["top_ids"], value["top_logprobs"], strict=True)
    return [[pair for pair in zip(*each, strict=False) if pair[1] is not None] for each in pairs]


@check("TW-GEN-030", "TW-GEN-033", needs=LOGPROBS, seconds=1)
async def equal_log_probabilities_are_ties(s: Session) -> None:
    """Candidates with equal log-probabilities are ordered by their ids, and have the same rank."""
    most = _most(s)
    fixed = {
        "top_logprobs": most,
        "ranks": True,
        "logprob_decimals": DECIMALS,
        "max_tokens": 2 * MAX_TOKENS,
    }
    for value, history in await generated_each(s, [{**fixed, "temperature": each} for each in (0, 1.0, 3.0)]):
        columns = zip(value["token_ids"], _rows(value), value["ranks"], strict=True)
        for token, row, rank in columns:
            order = [(-logprob, candidate) for candidate, logprob in row]
            wanted = "candidates with equal log-probabilities in ascending order of their ids"
            s.at(history).expect("TW-GEN-030", order == sorted(order), wanted, row)
            own = next((logprob for candidate, logprob in row if candidate == token), None)
            if own is not None:
                place = 1 + sum(logprob > own for _, logprob in row)
                wanted = f"rank {place}, because only candidates with a greater log-probability count"
                s.at(history).equal("TW-GEN-033", rank, place, wanted)


@check("TW-GEN-032", "TW-GEN-024", needs=LOGPROBS, seconds=1)
async def candidates_are_ordered_before_rounding(s: Session) -> None:
    """The order of the candidates does not depend on the number of decimals."""
    members = {"top_logprobs": _most(s), "temperature": 0}
    inputs = [{**members, "logprob_decimals": decimals} for decimals in (DECIMALS, 0, 1)]
    (exact, _), *others = await generated_each(s, inputs)
    for decimals, (rounded, history) in zip((0, 1), others, strict=True):
        for at, row in enumerate(_rows(exact)):
            if rounded["token_ids"][:at] != exact["token_ids"][:at] or at >= len(rounded["top_ids"]):
                break
            known = dict(row)
            found = [known[each] for each in rounded["top_ids"][at] if each in known]
            sound = all(one >= other - MIN_GAP for one, other in pairwise(found))
            wanted = (
                f"the same order with {decimals} decimals as with {DECIMALS}: {[each for each, _ in row]}"
            )
            s.at(history).expect(("TW-GEN-032", "TW-GEN-024"), sound, wanted, rounded["top_ids"][at])


@check("TW-GEN-034", "TW-GEN-035", "TW-GEN-036", needs=LOGPROBS, seconds=2)
async def ties_are_cut_counted_or_sent(s: Session) -> None:
    """With `ties: count`, the further candidates that tie with the last one are counted. With `ties: all`, they are sent,
    up to `max_top` candidates.

    A longer list of candidates for the same text shows which candidates tie.
    """
    most = _most(s)
    members = {"temperature": 0, "logprob_decimals": DECIMALS}
    long, _ = await generated(s, **members, top_logprobs=most)
    rows = _rows(long)
    cases = [(ties, count) for ties in TIES for count in COUNTS if count < most]
    inputs = ({**members, "top_logprobs": count, "ties": ties} for ties, count in cases)
    results = await generated_each(s, inputs)
    for (ties, count), (value, history) in zip(cases, results, strict=True):
        for at, (row, found) in enumerate(zip(rows, _rows(value), strict=False)):
            if value["token_ids"][:at] != long["token_ids"][:at]:
                break
            if len(row) <= count or row[count - 1][1] - row[-1][1] < MIN_GAP:
                continue  # The longer list may not contain all ties.
            last = row[count - 1][1]
            tied = sum(logprob == last for _, logprob in row[count:])
            if any(0 < abs(logprob - last) < MIN_GAP for _, logprob in row):
                continue  # Floating-point errors could make these candidates tie, or reorder them.
            sent = [each for each, _ in row[: count + tied * (ties == "all")]]
            s.at(history).equal(TIES[ties], [each for each, _ in found], sent)
            if ties != "cut":
                counts = value.get("tie_counts")
                got = counts[at] if isinstance(counts, list) and at < len(counts) else counts
                wanted = f"the tie count {0 if ties == 'all' else tied} at position {at}"
                s.at(history).equal(TIES[ties], got, 0 if ties == "all" else tied, wanted)
    if not s.assertions:
        s.skip_no_occasion("the lists of candidates did not show which candidates tie")
