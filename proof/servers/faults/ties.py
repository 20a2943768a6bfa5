"""Faulty servers with errors in the order of candidates and in ties.

The logits of the model have few values, so that many of them are equal.
"""

from proof.servers import table_engine
from proof.servers.faults import fault


def many_ties(hooks=None):
    """Round all logits, so that many of them are equal."""
    inner = table_engine.logits_after
    table_engine.logits_after = lambda token: [round(2 * each) / 2 for each in inner(token)]


def with_ties(name, change):
    """Return a hook that makes many logits equal and replaces a function of the engine."""

    def install(hooks):
        many_ties()
        setattr(table_engine, name, change(getattr(table_engine, name)))

    return install


def _highest_id_first(ordered):
    return lambda scores, decimals: sorted(
        range(len(scores)), key=lambda each: (scores[each], each), reverse=True
    )


def _rounded_first(ordered):
    return lambda scores, decimals: ordered([round(each, decimals) for each in scores], decimals)


def _places(rank_of):
    return lambda scores, token: 1 + table_engine.ordered(scores, 9).index(token)


def _counts(change):
    def replace(candidates):
        def changed(scores, order, request):
            top, tied = candidates(scores, order, request)
            return change(top, tied, order, request)

        return changed

    return replace


# fmt: off
fault("tied_candidates_in_any_order", "TW-GEN-030", "ties.equal_log_probabilities_are_ties",
      "Candidates with equal log-probabilities are ordered by descending id.",
      install=with_ties("ordered", _highest_id_first))
fault("tied_tokens_have_different_ranks", "TW-GEN-033", "ties.equal_log_probabilities_are_ties",
      "Tokens with equal logits have different ranks.",
      install=with_ties("rank_of", _places),
      also_run="logprobs.ranks_match_candidate_positions")
fault("candidates_ordered_after_rounding", "TW-GEN-032", "ties.candidates_are_ordered_before_rounding",
      "Log-probabilities are rounded before the candidates are ordered.",
      install=lambda hooks: setattr(table_engine, "ordered", _rounded_first(table_engine.ordered)),
      also_fails={"the first candidates depend on the number of decimals": "logprobs.*"})
fault("ties_not_counted", "TW-GEN-035", "ties.ties_are_cut_counted_or_sent",
      "With `ties: count`, the tie counts are always 0.",
      install=with_ties("candidates", _counts(lambda top, tied, order, request: (top, 0))))
fault("tie_count_includes_the_candidate", "TW-GEN-035", "ties.ties_are_cut_counted_or_sent",
      "With `ties: count`, the tie counts include the last candidate.",
      install=with_ties("candidates", _counts(lambda top, tied, order, request:
          (top, tied + 1 if request.ties == "count" else tied))))
fault("tied_candidates_not_sent", "TW-GEN-036", "ties.ties_are_cut_counted_or_sent",
      "With `ties: all`, the candidates that tie with the last one are only counted.",
      install=with_ties("candidates", _counts(lambda top, tied, order, request:
          (top[:request.top_logprobs], tied + max(0, len(top) - request.top_logprobs)))))
# fmt: on
