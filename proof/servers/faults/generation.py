"""Faulty servers with errors in text generation, such as wrong ends, wrong counts, or ignored members."""

from proof.servers import table_engine
from proof.servers.expected_side_failures import READ_DIFFERS
from proof.servers.fault_helpers import (
    change_input,
    rewrite_body,
    rewrite_events,
    rewrite_request_body,
    take_samples,
)
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("excess_top_logprobs_reduced", "TW-GEN-002", "generation.unsupported_input_returns_422",
      "`top_logprobs` above the maximum is reduced silently.",
      requests=rewrite_request_body(b'"top_logprobs":21', b'"top_logprobs":20'))
fault("n_ignored_in_a_batch", "TW-GEN-008", "generation.unsupported_input_returns_422",
      "`n` is ignored in a batch of several inputs.",
      requests=rewrite_request_body(rb', ?"n": ?2\b', b""))
fault("max_tokens_reduced_to_context", "TW-GEN-004", "generation.unsupported_input_returns_422",
      "If `max_tokens` exceeds the context length, it is reduced silently.",
      requests=change_input("max_tokens",
          change=lambda input_value, name: input_value.update(max_tokens=min(input_value[name], 4000))))

fault("usage_without_completion_tokens", "TW-GEN-044", "generation.finish_reason_and_usage_are_reported",
      "`usage` lacks `completion_tokens`.",
      frames=rewrite_events(b"completion_tokens", b"tokens_out"),
      also_fails=READ_DIFFERS)
fault("finish_reason_always_stop", "TW-GEN-017", "generation.finish_reason_and_usage_are_reported",
      "`finish_reason` is `stop` even if `max_tokens` was reached.",
      deltas=lambda delta, request: setattr(delta, "finish_reason", delta.finish_reason and "stop"))

fault("n_ignored", "TW-GEN-008", "generation.samples_become_items",
      "`n` is ignored, and only one sample is generated.",
      requests=change_input("n"))
fault("samples_not_marked_as_batch", "TW-GEN-009", "generation.samples_become_items",
      "A job with several samples has `batch: false`.",
      requests=take_samples, bodies=rewrite_body(b'"batch":true', b'"batch":false'),
      also_fails={"no job has `batch: true`": "batch.*"})

fault("stop_string_read_as_characters", "TW-GEN-016", "generation.stop_string_is_never_streamed",
      "A string in `stop` is treated as a list of characters.",
      requests=change_input("stop",
          change=lambda input_value, name: input_value.update(stop=[*input_value[name]])))

fault("echo_accepted_but_ignored", "TW-GEN-001", "generation.accepted_members_take_effect",
      "`echo` is accepted but ignored.",
      requests=change_input("echo"))
fault("unsupported_members_accepted", "TW-GEN-001", "generation.accepted_members_take_effect",
      "Unsupported members of an input are accepted but ignored.",
      requests=change_input("token_text", "logprob_token_ids", "ties", "logit_bias"),
      also_fails={"other checks use these members":
          "split_characters.text_of_tokens_is_decoded_separately ties.* logprobs.*"})

fault("cancelled_item_has_no_finish_reason", "TW-GEN-017", "generation.cancelled_generation_reports_reason_and_usage",
      "`finish_reason` of a cancelled item is null.",
      frames=rewrite_events(rb'(finish_reason"[,:])"cancelled"', rb"\1null"),
      bodies=rewrite_body(rb'(finish_reason"[,:])"cancelled"', rb"\1null"),
      also_fails=READ_DIFFERS)
fault("cancelled_job_has_empty_usage", "TW-GEN-044", "generation.cancelled_generation_reports_reason_and_usage",
      "`usage` of a cancelled job is empty.",
      frames=rewrite_events(rb'("status":"cancelled","usage"):\{[^}]+\}', rb"\1:{}"),
      bodies=rewrite_body(rb'("status":"cancelled","usage"):\{[^}]+\}', rb"\1:{}"),
      also_fails=READ_DIFFERS)

fault("usage_counts_only_last_item", "TW-GEN-044", "generation.usage_counts_all_items",
      "`usage` of a batch counts only its last item.",
      frames=rewrite_events(rb'("completion_tokens":)11\b', rb"\g<1>3", within=b"event:done"),
      also_fails=READ_DIFFERS)
fault("usage_counts_only_one_prompt", "TW-GEN-044", "generation.usage_counts_all_items",
      "`prompt_tokens` of a batch counts only one prompt.",
      frames=rewrite_events(rb'("prompt_tokens":)(\d+)', lambda found: found[1] + b"%d" % (int(found[2]) // 2),
          within=b'"completion_tokens":11'),
      also_fails=READ_DIFFERS)

fault("seed_0_treated_as_missing", "TW-GEN-007", "generation.seeded_generation_is_reproducible",
      "The seed 0 is treated as a missing seed, as in `seed or random`.",
      requests=change_input("seed",
          change=lambda input_value, name: input_value[name] or input_value.pop(name)))
fault("seed_above_32_bits_ignored", "TW-GEN-007", "generation.seeded_generation_is_reproducible",
      "A seed of more than 32 bits is ignored.",
      requests=change_input("seed",
          change=lambda input_value, name: input_value[name] < 2**32 or input_value.pop(name)))
# fmt: on


@faulty_server("TW-GEN-007", "generation.seeded_generation_is_reproducible", hook="requests")
def seed_ignored(exchange):
    """The seed is ignored."""
    if exchange.is_submit and b'"seed":7' in exchange.body:
        exchange.shared["n"] = exchange.shared.get("n", 10) + 1
        exchange.body = exchange.body.replace(b'"seed":7', b'"seed":%d' % exchange.shared["n"])


@faulty_server("TW-GEN-016", "generation.stop_string_is_never_streamed")
def stop_string_prefix_streamed(hooks):
    """Text that may be the beginning of a stop string is streamed too early."""
    table_engine.held_back_length = lambda text, stops: 0
