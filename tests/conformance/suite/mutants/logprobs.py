"""Log-probabilities that are none."""

import math

from conformance.suite.mutants import mutant

AGREE = "logprobs.candidates_and_ranks_agree"


def on_candidates(hooks, change):
    def apply(delta, request):
        pairs = [change(ids, found) for ids, found in zip(delta.top_ids, delta.top_logprobs, strict=True)]
        delta.top_ids, delta.top_logprobs = [ids for ids, _ in pairs], [found for _, found in pairs]

    hooks.deltas.append(apply)


@mutant("TW-GEN-030", "logprobs.columns_fit_each_other_at_every_event", "logprobs.candidates_and_ranks_agree")
def candidates_ascending(hooks):
    """Candidates come in ascending order."""
    on_candidates(hooks, lambda ids, found: (ids[::-1], found[::-1]))


@mutant("TW-GEN-022", AGREE)
def probabilities_for_logs(hooks):
    """Probabilities stand where their logarithms should."""
    on_candidates(hooks, lambda ids, found: (ids, [round(math.exp(each), 6) for each in found]))


@mutant("TW-GEN-031", AGREE)
def a_candidate_too_few(hooks):
    """n - 1 candidates."""
    on_candidates(hooks, lambda ids, found: (ids[:-1], found[:-1]))


@mutant("TW-GEN-029", "logprobs.columns_fit_each_other_at_every_event", "logprobs.candidates_and_ranks_agree")
def probabilities_above_one(hooks):
    """The probabilities of a position sum to more than 1, as of logits that were not normalised."""
    on_candidates(
        hooks, lambda ids, found: (ids, [round(each + 3, 6) if each < -3 else -0.001 for each in found])
    )


@mutant("TW-GEN-022", AGREE)
def base_two(hooks):
    """Logarithms to the base 2 for the chosen token."""
    hooks.deltas.append(
        lambda delta, request: setattr(delta, "logprobs", [each / math.log(2) for each in delta.logprobs])
    )


@mutant("TW-GEN-033", AGREE)
def ranks_from_zero(hooks):
    """Ranks are counted from 0."""
    hooks.deltas.append(lambda delta, request: setattr(delta, "ranks", [each + 1 for each in delta.ranks]))


@mutant("TW-GEN-010", "logprobs.what_was_not_asked_for_is_not_there")
def logprobs_unasked(hooks):
    """Log-probabilities come to everybody."""

    def more(talk):
        if talk.is_submit and "generate" in talk.path:
            talk.body = talk.body.replace(b'"logprobs":false,"top_logprobs":0', b'"logprobs":true')
            talk.body = talk.body.replace(b'"top_logprobs":0,"logprobs":false', b'"logprobs":true')
            talk.body = talk.body.replace(b'"logprobs":false', b'"logprobs":true')

    hooks.requests.append(more)


@mutant("TW-GEN-007", "logprobs.a_seed_gives_the_same_tokens_again")
def seeds_are_ignored(hooks):
    """The seed is ignored."""

    def reseed(talk):
        if talk.is_submit and b'"seed":7' in talk.body:
            hooks.shared["n"] = hooks.shared.get("n", 10) + 1
            talk.body = talk.body.replace(b'"seed":7', b'"seed":%d' % hooks.shared["n"])
            talk.set_header("content-length", str(len(talk.body)))

    hooks.requests.append(reseed)


@mutant("TW-GEN-024", AGREE)
def not_rounded(hooks):
    """Log-probabilities are not rounded."""
    hooks.deltas.append(
        lambda delta, request: setattr(delta, "logprobs", [each - 1e-9 / 3 for each in delta.logprobs])
    )


@mutant("TW-GEN-002", "logprobs.what_cannot_be_served_is_refused")
def more_candidates_are_cut_silently(hooks):
    """More candidates than `max_top` are cut silently."""
    hooks.requests.append(
        lambda talk: setattr(talk, "body", talk.body.replace(b'"top_logprobs":21', b'"top_logprobs":20'))
    )


@mutant("TW-GEN-018", "logprobs.an_end_has_its_reason_and_its_count")
def usage_counts_nothing(hooks):
    """`usage` does not count the tokens."""
    hooks.frames.append(lambda talk, frame: frame.replace(b"completion_tokens", b"tokens_out"))


@mutant("TW-GEN-038", "logprobs.the_vocabulary_spells_the_tokens")
def the_vocabulary_is_shifted(hooks):
    """The vocabulary is shifted by one."""

    def shift(talk, status, body):
        import json

        if talk.path.endswith("/vocabulary") and status == 200:
            found = json.loads(body)
            return status, json.dumps(found | {"tokens": [*found["tokens"][1:], found["tokens"][0]]}).encode()
        return None

    hooks.bodies.append(shift)
