"""Faulty servers with errors in text generation: wrong ends and counts, or unsupported members accepted."""

import re

from proof.servers import table_engine
from proof.servers.fault_helpers import (
    change_input,
    rewrite_body,
    rewrite_events,
    rewrite_request_body,
    take_samples,
)
from proof.servers.faults import faulty_server


@faulty_server("TW-GEN-007", "generation.a_seed_gives_the_same_tokens_again")
def seeds_are_ignored(hooks):
    """The seed is ignored."""

    def reseed(exchange):
        if exchange.is_submit and b'"seed":7' in exchange.body:
            hooks.shared["n"] = hooks.shared.get("n", 10) + 1
            exchange.body = exchange.body.replace(b'"seed":7', b'"seed":%d' % hooks.shared["n"])

    hooks.requests.append(reseed)


@faulty_server("TW-GEN-002", "generation.what_cannot_be_served_is_refused")
def more_candidates_are_cut_silently(hooks):
    """`top_logprobs` above the maximum is reduced silently."""
    rewrite_request_body(hooks, b'"top_logprobs":21', b'"top_logprobs":20')


@faulty_server("TW-GEN-018", "generation.an_end_has_its_reason_and_its_count")
def usage_counts_nothing(hooks):
    """`usage` lacks `completion_tokens`."""
    rewrite_events(hooks, b"completion_tokens", b"tokens_out")


@faulty_server("TW-GEN-008", "generation.samples_are_items")
def one_sample_whatever_n_says(hooks):
    """`n` is ignored, and only one sample is generated."""
    rewrite_request_body(hooks, b'"n":3', b'"n":1')


@faulty_server("TW-GEN-009", "generation.samples_are_items")
def samples_are_no_batch(hooks):
    """A job with several samples has `batch: false`."""
    hooks.requests.append(take_samples)
    rewrite_body(hooks, b'"batch":true', b'"batch":false')


@faulty_server("TW-GEN-016", "generation.a_stop_string_ends_the_text_before_it")
def the_beginning_of_a_stop_string_is_shown(hooks):
    """The beginning of a possible stop string is streamed too early."""
    table_engine.held_back_length = lambda text, stops: 0


@faulty_server("TW-GEN-016", "generation.a_stop_string_ends_the_text_before_it")
def a_stop_string_is_a_list_of_letters(hooks):
    """A string in `stop` is treated as a list of characters."""
    change_input(
        hooks, "stop", change=lambda input_value, name: input_value.update(stop=[*input_value[name]])
    )


@faulty_server("TW-GEN-001", "generation.what_is_taken_is_served")
def echo_is_taken_and_forgotten(hooks):
    """`echo` is accepted but ignored."""
    change_input(hooks, "echo")


@faulty_server("TW-GEN-001", "generation.what_is_taken_is_served")
def what_is_not_served_is_taken(hooks):
    """Unsupported members of an input are accepted but ignored."""
    change_input(hooks, "token_text", "logprob_token_ids", "ties", "logit_bias")


@faulty_server("TW-GEN-017", "generation.a_generation_that_is_cancelled_says_so")
def a_cancel_leaves_no_reason(hooks):
    """`finish_reason` of a cancelled item is null."""
    pattern = rb'(finish_reason"[,:])"cancelled"'
    rewrite_events(hooks, pattern, rb"\1null")
    rewrite_body(hooks, pattern, rb"\1null")


@faulty_server("TW-GEN-018", "generation.a_generation_that_is_cancelled_says_so")
def a_cancel_costs_nothing(hooks):
    """`usage` of a cancelled job is empty."""
    pattern, less = rb'"status":"cancelled","usage":\{[^}]+\}', b'"status":"cancelled","usage":{}'
    rewrite_events(hooks, pattern, less)
    rewrite_body(hooks, pattern, less)


@faulty_server("TW-GEN-018", "generation.usage_counts_all_items")
def usage_is_that_of_the_last_item(hooks):
    """`usage` of a batch counts only its last item."""
    rewrite_events(hooks, rb'("completion_tokens":)11\b', rb"\g<1>3", within=b"event:done")


@faulty_server("TW-GEN-017", "generation.an_end_has_its_reason_and_its_count")
def each_end_is_a_stop(hooks):
    """`finish_reason` is `stop` even when `max_tokens` was reached."""
    hooks.deltas.append(
        lambda delta, request: setattr(delta, "finish_reason", delta.finish_reason and "stop")
    )


@faulty_server("TW-GEN-018", "generation.usage_counts_all_items")
def one_prompt_is_counted(hooks):
    """`prompt_tokens` of a batch counts only one prompt."""
    half = lambda found: found[1] + b"%d" % (int(found[2]) // 2)  # noqa: E731
    hooks.frames.append(
        lambda exchange, frame: (
            re.sub(rb'("prompt_tokens":)(\d+)', half, frame) if b'"completion_tokens":11' in frame else frame
        )
    )


@faulty_server("TW-GEN-007", "generation.a_seed_gives_the_same_tokens_again")
def a_seed_of_0_is_none(hooks):
    """Seed 0 is treated as no seed, as `seed or random` does."""
    change_input(hooks, "seed", change=lambda input_value, name: input_value[name] or input_value.pop(name))


@faulty_server("TW-GEN-007", "generation.a_seed_gives_the_same_tokens_again")
def a_large_seed_is_none(hooks):
    """A seed above 32 bits is ignored."""
    change_input(
        hooks, "seed", change=lambda input_value, name: input_value[name] < 2**32 or input_value.pop(name)
    )


@faulty_server("TW-GEN-008", "generation.what_cannot_be_served_is_refused")
def samples_of_several_inputs_are_one_each(hooks):
    """`n` is ignored in a batch of several inputs."""
    rewrite_request_body(hooks, rb'"n": ?2\b', b'"n":1')


@faulty_server("TW-GEN-004", "generation.what_cannot_be_served_is_refused")
def what_does_not_fit_is_cut(hooks):
    """`max_tokens` beyond the context is reduced silently."""
    change_input(
        hooks,
        "max_tokens",
        change=lambda input_value, name: input_value.update(max_tokens=min(input_value[name], 4000)),
    )
