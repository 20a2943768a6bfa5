"""Faulty servers with errors in text generation, such as wrong ends, wrong counts, or ignored members."""

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


@faulty_server("TW-GEN-007", "generation.seeded_generation_is_reproducible")
def seed_ignored(hooks):
    """The seed is ignored."""

    def reseed(exchange):
        if exchange.is_submit and b'"seed":7' in exchange.body:
            hooks.shared["n"] = hooks.shared.get("n", 10) + 1
            exchange.body = exchange.body.replace(b'"seed":7', b'"seed":%d' % hooks.shared["n"])

    hooks.requests.append(reseed)


@faulty_server("TW-GEN-002", "generation.unsupported_input_returns_422")
def excess_top_logprobs_reduced(hooks):
    """`top_logprobs` above the maximum is reduced silently."""
    rewrite_request_body(hooks, b'"top_logprobs":21', b'"top_logprobs":20')


@faulty_server("TW-GEN-018", "generation.finish_reason_and_usage_are_reported")
def usage_without_completion_tokens(hooks):
    """`usage` lacks `completion_tokens`."""
    rewrite_events(hooks, b"completion_tokens", b"tokens_out")


@faulty_server("TW-GEN-008", "generation.samples_become_items")
def n_ignored(hooks):
    """`n` is ignored, and only one sample is generated."""
    change_input(hooks, "n")


@faulty_server("TW-GEN-009", "generation.samples_become_items")
def samples_not_marked_as_batch(hooks):
    """A job with several samples has `batch: false`."""
    hooks.requests.append(take_samples)
    rewrite_body(hooks, b'"batch":true', b'"batch":false')


@faulty_server("TW-GEN-016", "generation.stop_string_is_never_streamed")
def stop_string_prefix_streamed(hooks):
    """Text that may be the beginning of a stop string is streamed too early."""
    table_engine.held_back_length = lambda text, stops: 0


@faulty_server("TW-GEN-016", "generation.stop_string_is_never_streamed")
def stop_string_read_as_characters(hooks):
    """A string in `stop` is treated as a list of characters."""
    change_input(
        hooks, "stop", change=lambda input_value, name: input_value.update(stop=[*input_value[name]])
    )


@faulty_server("TW-GEN-001", "generation.accepted_members_take_effect")
def echo_accepted_but_ignored(hooks):
    """`echo` is accepted but ignored."""
    change_input(hooks, "echo")


@faulty_server("TW-GEN-001", "generation.accepted_members_take_effect")
def unsupported_members_accepted(hooks):
    """Unsupported members of an input are accepted but ignored."""
    change_input(hooks, "token_text", "logprob_token_ids", "ties", "logit_bias")


@faulty_server("TW-GEN-017", "generation.cancelled_generation_reports_reason_and_usage")
def cancelled_item_has_no_finish_reason(hooks):
    """`finish_reason` of a cancelled item is null."""
    pattern = rb'(finish_reason"[,:])"cancelled"'
    rewrite_events(hooks, pattern, rb"\1null")
    rewrite_body(hooks, pattern, rb"\1null")


@faulty_server("TW-GEN-018", "generation.cancelled_generation_reports_reason_and_usage")
def cancelled_job_has_empty_usage(hooks):
    """`usage` of a cancelled job is empty."""
    pattern, less = rb'"status":"cancelled","usage":\{[^}]+\}', b'"status":"cancelled","usage":{}'
    rewrite_events(hooks, pattern, less)
    rewrite_body(hooks, pattern, less)


@faulty_server("TW-GEN-018", "generation.usage_counts_all_items")
def usage_counts_only_last_item(hooks):
    """`usage` of a batch counts only its last item."""
    rewrite_events(hooks, rb'("completion_tokens":)11\b', rb"\g<1>3", within=b"event:done")


@faulty_server("TW-GEN-017", "generation.finish_reason_and_usage_are_reported")
def finish_reason_always_stop(hooks):
    """`finish_reason` is `stop` even if `max_tokens` was reached."""
    hooks.deltas.append(
        lambda delta, request: setattr(delta, "finish_reason", delta.finish_reason and "stop")
    )


@faulty_server("TW-GEN-018", "generation.usage_counts_all_items")
def usage_counts_only_one_prompt(hooks):
    """`prompt_tokens` of a batch counts only one prompt."""
    half = lambda found: found[1] + b"%d" % (int(found[2]) // 2)  # noqa: E731
    hooks.frames.append(
        lambda exchange, frame: (
            re.sub(rb'("prompt_tokens":)(\d+)', half, frame) if b'"completion_tokens":11' in frame else frame
        )
    )


@faulty_server("TW-GEN-007", "generation.seeded_generation_is_reproducible")
def seed_0_treated_as_missing(hooks):
    """The seed 0 is treated as a missing seed, as in `seed or random`."""
    change_input(hooks, "seed", change=lambda input_value, name: input_value[name] or input_value.pop(name))


@faulty_server("TW-GEN-007", "generation.seeded_generation_is_reproducible")
def seed_above_32_bits_ignored(hooks):
    """A seed of more than 32 bits is ignored."""
    change_input(
        hooks, "seed", change=lambda input_value, name: input_value[name] < 2**32 or input_value.pop(name)
    )


@faulty_server("TW-GEN-008", "generation.unsupported_input_returns_422")
def n_ignored_in_a_batch(hooks):
    """`n` is ignored in a batch of several inputs."""
    rewrite_request_body(hooks, rb', ?"n": ?2\b', b"")


@faulty_server("TW-GEN-004", "generation.unsupported_input_returns_422")
def max_tokens_reduced_to_context(hooks):
    """If `max_tokens` exceeds the context length, it is reduced silently."""
    change_input(
        hooks,
        "max_tokens",
        change=lambda input_value, name: input_value.update(max_tokens=min(input_value[name], 4000)),
    )
