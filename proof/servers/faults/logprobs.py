"""Faulty servers with wrong log-probabilities, candidates, ranks or vocabularies."""

import functools
import math

from proof.servers import table_engine
from proof.servers.expected_side_failures import WRONG_EVENT
from proof.servers.fault_helpers import change_input, change_json, rewrite_events, set_request_header
from proof.servers.faults import fault, faulty_server

PROMPT_CANDIDATES = {"prompt_top_ids", "prompt_top_logprobs"}


def change_candidates(change):
    """Change the ids and log-probabilities of the candidates at each position."""

    @functools.wraps(change)
    def apply(delta, request):
        pairs = [change(ids, found) for ids, found in zip(delta.top_ids, delta.top_logprobs, strict=True)]
        delta.top_ids, delta.top_logprobs = [ids for ids, _ in pairs], [found for _, found in pairs]

    return apply


def change_delta(name, change):
    """Change each element of one list in the engine's deltas."""

    def apply(delta, request):
        setattr(delta, name, [change(each, request) for each in getattr(delta, name) or ()])

    return apply


def change_logprobs_mode(mode):
    """Score all tokens in one mode, whichever mode the request asks for."""
    inner = table_engine.scored
    table_engine.scored = lambda token, request: inner(
        token, request.model_copy(update={"logprobs_mode": mode})
    )


def processed_by_default():
    """Score all tokens of a request without `logprobs_mode` after the temperature."""
    inner = table_engine.scored

    def scored(token, request):
        mode = request.logprobs_mode if "logprobs_mode" in request.model_fields_set else "processed"
        return inner(token, request.model_copy(update={"logprobs_mode": mode}))

    table_engine.scored = scored


def change_prompt_columns(change):
    """Change the columns of the prompt's tokens."""
    inner = table_engine.prompt_columns

    def columns(request):
        found = inner(request)
        return found | change(found) if found else found

    table_engine.prompt_columns = columns


# fmt: off
fault("candidates_ascending", "TW-GEN-030", "logprobs.token_columns_stay_aligned",
      "Candidate tokens are sorted by ascending probability.",
      deltas=change_candidates(lambda ids, found: (ids[::-1], found[::-1])),
      also_run="logprobs.candidates_match_chosen_tokens",
      also_fails={"checks of ties and of split characters read the same candidates":
          "ties.* split_characters.text_of_tokens_is_decoded_separately"})
fault("probabilities_sum_above_1", "TW-GEN-029", "logprobs.token_columns_stay_aligned",
      "The probabilities at a position add up to more than 1, as if they were not normalized.",
      deltas=change_candidates(
          lambda ids, found: (ids, [round(each + 3, 6) if each < -3 else -0.001 for each in found])),
      also_run="logprobs.candidates_match_chosen_tokens",
      also_fails={"the wrong log-probabilities are equal":
          "ties.*"})
fault("rollback_keeps_logprobs", "TW-GEN-013", "logprobs.token_columns_stay_aligned",
      "When text is retracted, the text is truncated, but not the lists of tokens and log-probabilities.",
      frames=rewrite_events(rb'data:\[(\["r",.*\])\]', rb'data:[\1,["t","/items/0/value/text",1]]'),
      also_run="logprobs.candidates_match_chosen_tokens",
      also_fails=WRONG_EVENT | {"truncated text has a check":
          "state.* text_checks_due.* discovery.text_is_never_retracted_without_rollback"})

fault("probabilities_instead_of_logprobs", "TW-GEN-022", "logprobs.candidates_match_chosen_tokens",
      "Candidates have probabilities instead of log-probabilities.",
      deltas=change_candidates(lambda ids, found: (ids, [round(math.exp(each), 6) for each in found])))
fault("candidate_missing", "TW-GEN-031", "logprobs.candidates_match_chosen_tokens",
      "One candidate is missing.",
      deltas=change_candidates(lambda ids, found: (ids[:-1], found[:-1])),
      also_fails={"checks of ties and of split characters read the same candidates":
          "ties.* split_characters.text_of_tokens_is_decoded_separately"})
fault("logprobs_in_base_2", "TW-GEN-022", "logprobs.candidates_match_chosen_tokens",
      "The chosen token's log-probability is a logarithm to base 2.",
      deltas=lambda delta, request: setattr(delta, "logprobs", [each / math.log(2) for each in delta.logprobs]))
fault("ranks_one_too_high", "TW-GEN-033", "logprobs.candidates_match_chosen_tokens",
      "Ranks are one too high.",
      deltas=lambda delta, request: setattr(delta, "ranks", [each + 1 for each in delta.ranks]))
fault("logprobs_not_rounded", "TW-GEN-024", "logprobs.candidates_match_chosen_tokens",
      "Log-probabilities are not rounded.",
      deltas=lambda delta, request: setattr(delta, "logprobs", [each - 1e-9 / 3 for each in delta.logprobs]))
fault("logprob_decimals_0_treated_as_default", "TW-GEN-024", "logprobs.candidates_match_chosen_tokens",
      "`logprob_decimals: 0` is treated as the default, as `value or 4` does.",
      requests=change_input("logprob_decimals",
          change=lambda input_value, name: input_value[name] or input_value.pop(name)))
fault("temperature_0_treated_as_default", "TW-GEN-001", "logprobs.candidates_match_chosen_tokens",
      "`temperature: 0` is treated as the default, as `value or 1` does.",
      requests=change_input("temperature",
          change=lambda input_value, name: input_value[name] or input_value.pop(name)))

fault("ranks_capped_at_6", "TW-GEN-033", "logprobs.ranks_match_candidate_positions",
      "Ranks are never greater than 6.",
      deltas=change_delta("ranks", lambda rank, request: min(rank, 6)))

fault("raw_logprobs_after_top_k", "TW-GEN-025", "logprobs.only_processed_logprobs_depend_on_sampling_options",
      "Raw log-probabilities are computed after `top_k` was applied.",
      deltas=change_delta("top_logprobs",
          lambda row, request: [0.0, *[None] * (len(row) - 1)] if request.top_k else row))
fault("raw_logprobs_after_temperature", "TW-GEN-025", "logprobs.only_processed_logprobs_depend_on_sampling_options",
      "Raw log-probabilities are computed after the temperature was applied.",
      install=lambda hooks: change_logprobs_mode("processed"))
fault("chosen_logprobs_after_temperature", "TW-GEN-025", "logprobs.chosen_tokens_have_raw_logprobs",
      "The log-probabilities of chosen tokens are computed after the temperature was applied, and those of the candidates before.",
      deltas=lambda delta, request: setattr(delta, "logprobs",
          [round(each / (request.temperature or 1), request.logprob_decimals) for each in delta.logprobs]))
fault("logprobs_are_processed_by_default", "TW-GEN-025", "logprobs.chosen_tokens_have_raw_logprobs",
      "Without `logprobs_mode`, log-probabilities are computed after the temperature was applied.",
      install=lambda hooks: processed_by_default())
fault("processed_logprobs_before_temperature", "TW-GEN-026",
      "logprobs.only_processed_logprobs_depend_on_sampling_options",
      "Processed log-probabilities are computed before the temperature is applied.",
      install=lambda hooks: change_logprobs_mode("raw"))

fault("if_none_match_with_several_tags_ignored", "TW-GEN-041", "logprobs.vocabulary_decodes_the_tokens",
      "`If-None-Match` with several tags never matches.",
      requests=set_request_header("if-none-match", '"x"',
          lambda exchange: "," in exchange.header("if-none-match")))
fault("vocabulary_shifted_by_one", "TW-GEN-038", "logprobs.vocabulary_decodes_the_tokens",
      "The vocabulary is shifted by one token.",
      bodies=change_json(".*/vocabulary", lambda found: found | {"tokens": [*found["tokens"][1:], found["tokens"][0]]}),
      also_fails={"the vocabulary decodes each token":
          "split_characters.text_of_tokens_is_decoded_separately"})

fault("first_prompt_token_has_logprob_0", "TW-GEN-020", "logprobs.first_prompt_token_has_no_logprob",
      "The first prompt token has log-probability 0 instead of null.",
      install=lambda hooks: change_prompt_columns(
          lambda found: {"prompt_logprobs": [0.0, *found["prompt_logprobs"][1:]]}))
fault("prompt_candidates_ascending", "TW-GEN-030", "logprobs.first_prompt_token_has_no_logprob",
      "Candidates of prompt tokens are sorted by ascending probability.",
      install=lambda hooks: change_prompt_columns(
          lambda found: {name: [row[::-1] for row in found[name]] for name in PROMPT_CANDIDATES & found.keys()}))
# fmt: on


@faulty_server("TW-GEN-010", "logprobs.logprobs_are_sent_only_on_request", hook="requests")
def unrequested_logprobs_sent(exchange):
    """Log-probabilities are sent without being requested."""
    if exchange.is_submit and "generate" in exchange.path:
        exchange.body = exchange.body.replace(b'"logprobs":false,"top_logprobs":0', b'"logprobs":true')
        exchange.body = exchange.body.replace(b'"top_logprobs":0,"logprobs":false', b'"logprobs":true')
        exchange.body = exchange.body.replace(b'"logprobs":false', b'"logprobs":true')


@faulty_server("TW-GEN-022", "logprobs.logprobs_are_normalized_over_the_vocabulary", hook="deltas")
@change_candidates
def logprobs_normalized_over_candidates(ids, found):
    """Log-probabilities are normalized over the candidates instead of the whole vocabulary."""
    whole = math.log(sum(math.exp(each) for each in found))
    return ids, [round(each - whole, 6) for each in found]


@faulty_server(
    "TW-GEN-031",
    "logprobs.candidates_match_chosen_tokens",
    hook="deltas",
    also_fails={
        "checks of ties and of split characters read the same candidates": "ties.* split_characters.text_of_tokens_is_decoded_separately"
    },
)
def chosen_token_missing_from_candidates(delta, request):
    """The chosen token is missing from the candidates."""
    for row, token in enumerate(delta.token_ids if delta.top_ids else ()):
        if token in delta.top_ids[row]:
            at = delta.top_ids[row].index(token)
            delta.top_ids[row][at] = (
                (token + 1) % 22 if (token + 1) % 22 not in delta.top_ids[row] else (token + 2) % 22
            )


@faulty_server("TW-GEN-024", "logprobs.candidates_match_chosen_tokens", hook="deltas")
def logprob_decimals_ignored(delta, request):
    """`logprob_decimals` is ignored, and log-probabilities have four decimals."""
    change_delta("logprobs", lambda each, request: round(each, 4))(delta, request)
    change_candidates(lambda ids, found: (ids, [round(each, 4) for each in found]))(delta, request)


@faulty_server("TW-GEN-041", "logprobs.vocabulary_decodes_the_tokens", hook="bodies")
def any_if_none_match_gets_304(exchange, status, body):
    """Every request with `If-None-Match` is answered with 304."""
    asks = exchange.path.endswith("/vocabulary") and exchange.header("if-none-match")
    return (304, b"") if asks else None


@faulty_server("TW-GEN-034", "logprobs.candidates_match_chosen_tokens", hook="deltas")
def two_candidates_instead_of_one(delta, request):
    """Two candidates are sent even if only one was requested."""
    if request.top_logprobs == 1 and delta.top_ids:
        delta.top_ids = [[one, (one + 1) % 22] for (one,) in delta.top_ids]
        delta.top_logprobs = [[one, -20.0] for (one,) in delta.top_logprobs]
