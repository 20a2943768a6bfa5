"""Log-probabilities that are none."""

import math
import re

from conformance.suite import table_engine
from conformance.suite.mutants import mutant
from conformance.suite.mutants.unusual import take_samples

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


@mutant("TW-GEN-007", "generation.a_seed_gives_the_same_tokens_again")
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


@mutant("TW-GEN-002", "generation.what_cannot_be_served_is_refused")
def more_candidates_are_cut_silently(hooks):
    """More candidates than `max_top` are cut silently."""
    hooks.requests.append(
        lambda talk: setattr(talk, "body", talk.body.replace(b'"top_logprobs":21', b'"top_logprobs":20'))
    )


@mutant("TW-GEN-018", "generation.an_end_has_its_reason_and_its_count")
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


@mutant("TW-GEN-022", "logprobs.the_distribution_is_that_of_the_whole_vocabulary")
def the_candidates_are_the_vocabulary(hooks):
    """The distribution is that of the candidates alone, which sum to 1."""

    def alone(ids, found):
        whole = math.log(sum(math.exp(each) for each in found))
        return ids, [round(each - whole, 6) for each in found]

    on_candidates(hooks, alone)


@mutant("TW-GEN-025", "logprobs.raw_is_before_and_processed_after_what_was_asked_for")
def raw_after_the_temperature(hooks):
    """Raw log-probabilities are those after the temperature."""
    inner = table_engine.scored

    def scored(token, request):
        return inner(token, request.model_copy(update={"logprobs_mode": "processed"}))

    table_engine.scored = scored


@mutant("TW-GEN-026", "logprobs.raw_is_before_and_processed_after_what_was_asked_for")
def processed_before_the_temperature(hooks):
    """Processed log-probabilities are the raw ones."""
    inner = table_engine.scored
    table_engine.scored = lambda token, request: inner(
        token, request.model_copy(update={"logprobs_mode": "raw"})
    )


@mutant("TW-GEN-020", "logprobs.the_first_token_of_the_prompt_has_no_logprob")
def the_first_token_of_the_prompt_is_sure(hooks):
    """The first token of the prompt has the probability 1."""
    inner = table_engine.prompt_columns

    def columns(request):
        found = inner(request)
        return found | {"prompt_logprobs": [0.0, *found["prompt_logprobs"][1:]]} if found else found

    table_engine.prompt_columns = columns


@mutant("TW-GEN-008", "generation.samples_are_items")
def one_sample_whatever_n_says(hooks):
    """One sample comes, whatever `n` says."""
    hooks.requests.append(
        lambda talk: talk.is_submit and setattr(talk, "body", talk.body.replace(b'"n":3', b'"n":1'))
    )


@mutant("TW-GEN-009", "generation.samples_are_items")
def samples_are_no_batch(hooks):
    """The job of several samples does not say `batch`."""
    hooks.requests.append(take_samples)
    hooks.bodies.append(lambda talk, status, body: (status, body.replace(b'"batch":true', b'"batch":false')))


@mutant("TW-GEN-031", AGREE)
def the_chosen_token_is_no_candidate(hooks):
    """The chosen token is left out of the candidates, where it belongs among them."""

    def leave_out(delta, request):
        for row, token in enumerate(delta.token_ids if delta.top_ids else ()):
            if token in delta.top_ids[row]:
                at = delta.top_ids[row].index(token)
                delta.top_ids[row][at] = (
                    (token + 1) % 22 if (token + 1) % 22 not in delta.top_ids[row] else (token + 2) % 22
                )

    hooks.deltas.append(leave_out)


@mutant("TW-GEN-013", "logprobs.columns_fit_each_other_at_every_event", "logprobs.candidates_and_ranks_agree")
def a_rollback_leaves_its_logprobs(hooks):
    """A truncation of the text leaves its tokens and log-probabilities behind."""
    hooks.frames.append(
        lambda talk, frame: re.sub(
            rb'data:\[(\["r",.*\])\]', rb'data:[\1,["t","/items/0/value/text",1]]', frame
        )
    )


@mutant("TW-GEN-016", "generation.a_stop_string_ends_the_text_before_it")
def the_beginning_of_a_stop_string_is_shown(hooks):
    """What could become a stop string is shown before it is known to be none."""
    table_engine.held_back = lambda text, stops: 0
