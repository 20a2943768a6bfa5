"""Generations that count, round, rank and end in a way of their own, and take what they do not serve."""

import json
import re

from conformance.suite.mutants import mutant

RANKS = "logprobs.ranks_are_places_among_all_candidates"
AGREE = "logprobs.candidates_and_ranks_agree"
SERVED = "generation.what_is_taken_is_served"
CANCELLED = "generation.a_generation_that_is_cancelled_says_so"


def changed(hooks, name, change):
    """Change one list of what the engine says of a block of tokens."""

    def hook(delta, request):
        if getattr(delta, name):
            setattr(delta, name, [change(each, request) for each in getattr(delta, name)])
        return delta

    hooks.deltas.append(hook)


def of_the_input(hooks, *names, change=lambda given, name: given.pop(name)):
    """Change members of the input of `generate`, where they are there."""

    def hook(talk):
        found = talk.json if talk.is_submit and "generate" in talk.path else None
        given = found.get("input") if isinstance(found, dict) else None
        known = [name for name in names if isinstance(given, dict) and name in given]
        for name in known:
            change(given, name)
        talk.body = json.dumps(found).encode() if known else talk.body

    hooks.requests.append(hook)


@mutant("TW-GEN-024", AGREE)
def four_decimals_whatever_is_asked_for(hooks):
    """Log-probabilities have four decimals, whatever `logprob_decimals` says."""
    changed(hooks, "logprobs", lambda each, request: round(each, 4))
    changed(hooks, "top_logprobs", lambda row, request: [round(each, 4) for each in row])


@mutant("TW-GEN-033", RANKS)
def ranks_end_after_a_few(hooks):
    """A rank is looked for among the first six tokens alone."""
    changed(hooks, "ranks", lambda rank, request: min(rank, 6))


@mutant("TW-GEN-025", "logprobs.raw_is_before_and_processed_after_what_was_asked_for")
def raw_after_what_was_cut(hooks):
    """Raw log-probabilities are those of the tokens that `top_k` left."""
    left = lambda row, request: [0.0, *[None] * (len(row) - 1)] if request.top_k else row  # noqa: E731
    changed(hooks, "top_logprobs", left)


@mutant("TW-GEN-016", "generation.a_stop_string_ends_the_text_before_it")
def a_stop_string_is_a_list_of_letters(hooks):
    """A `stop` that is a string is taken for a list of its letters."""
    of_the_input(hooks, "stop", change=lambda given, name: given.update(stop=[*given[name]]))


@mutant("TW-GEN-041", "logprobs.the_vocabulary_spells_the_tokens")
def any_tag_fits(hooks):
    """Every `If-None-Match` is answered with 304."""
    asks = lambda talk: talk.path.endswith("/vocabulary") and talk.header("if-none-match")  # noqa: E731
    hooks.heads.append(lambda talk, status, headers: 304 if asks(talk) else None)
    hooks.bodies.append(lambda talk, status, body: (304, b"") if asks(talk) else None)


@mutant("TW-GEN-001", SERVED)
def echo_is_taken_and_forgotten(hooks):
    """`echo` is taken, and the text begins without the prompt."""
    of_the_input(hooks, "echo")


@mutant("TW-GEN-001", SERVED)
def what_is_not_served_is_taken(hooks):
    """Members that are not served are taken and forgotten, as by a model that ignores what it does not know."""
    of_the_input(hooks, "token_text", "logprob_token_ids", "ties", "logit_bias")


@mutant("TW-GEN-017", CANCELLED)
def a_cancel_leaves_no_reason(hooks):
    """`finish_reason` of an item that was cancelled stays null."""
    pattern = rb'(finish_reason"[,:])"cancelled"'
    hooks.frames.append(lambda talk, frame: re.sub(pattern, rb"\1null", frame))
    hooks.bodies.append(lambda talk, status, body: (status, re.sub(pattern, rb"\1null", body)))


@mutant("TW-GEN-018", CANCELLED)
def a_cancel_costs_nothing(hooks):
    """`usage` of a job that was cancelled is empty."""
    pattern, less = rb'"status":"cancelled","usage":\{[^}]+\}', b'"status":"cancelled","usage":{}'
    hooks.frames.append(lambda talk, frame: re.sub(pattern, less, frame))
    hooks.bodies.append(lambda talk, status, body: (status, re.sub(pattern, less, body)))


@mutant("TW-GEN-018", "generation.usage_counts_all_items")
def usage_is_that_of_the_last_item(hooks):
    """`usage` of a job of several inputs is that of its last item."""
    hooks.frames.append(
        lambda talk, frame: (
            re.sub(rb'("completion_tokens":)11\b', rb"\g<1>3", frame) if b"event:done" in frame else frame
        )
    )
