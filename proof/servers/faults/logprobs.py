"""Faulty servers with wrong log-probabilities, candidates, ranks or vocabularies."""

import json
import math

from proof.servers import table_engine
from proof.servers.fault_helpers import change_input, rewrite_events, set_request_header
from proof.servers.faults import faulty_server


def change_candidates(hooks, change):
    def apply(delta, request):
        pairs = [change(ids, found) for ids, found in zip(delta.top_ids, delta.top_logprobs, strict=True)]
        delta.top_ids, delta.top_logprobs = [ids for ids, _ in pairs], [found for _, found in pairs]

    hooks.deltas.append(apply)


def change_delta(hooks, name, change):
    """Change each element of one list in the engine's deltas."""

    def hook(delta, request):
        if getattr(delta, name):
            setattr(delta, name, [change(each, request) for each in getattr(delta, name)])
        return delta

    hooks.deltas.append(hook)


@faulty_server("TW-GEN-030", "logprobs.token_columns_stay_aligned", "logprobs.candidates_match_chosen_tokens")
def candidates_ascending(hooks):
    """Candidate tokens are sorted by ascending probability."""
    change_candidates(hooks, lambda ids, found: (ids[::-1], found[::-1]))


@faulty_server("TW-GEN-022", "logprobs.candidates_match_chosen_tokens")
def probabilities_instead_of_logprobs(hooks):
    """Candidates have probabilities instead of log-probabilities."""
    change_candidates(hooks, lambda ids, found: (ids, [round(math.exp(each), 6) for each in found]))


@faulty_server("TW-GEN-031", "logprobs.candidates_match_chosen_tokens")
def candidate_missing(hooks):
    """One candidate is missing."""
    change_candidates(hooks, lambda ids, found: (ids[:-1], found[:-1]))


@faulty_server("TW-GEN-029", "logprobs.token_columns_stay_aligned", "logprobs.candidates_match_chosen_tokens")
def probabilities_sum_above_1(hooks):
    """The probabilities at a position add up to more than 1, as if they were not normalized."""
    change_candidates(
        hooks, lambda ids, found: (ids, [round(each + 3, 6) if each < -3 else -0.001 for each in found])
    )


@faulty_server("TW-GEN-022", "logprobs.candidates_match_chosen_tokens")
def logprobs_in_base_2(hooks):
    """The chosen token's log-probability is a logarithm to base 2."""
    hooks.deltas.append(
        lambda delta, request: setattr(delta, "logprobs", [each / math.log(2) for each in delta.logprobs])
    )


@faulty_server("TW-GEN-033", "logprobs.candidates_match_chosen_tokens")
def ranks_one_too_high(hooks):
    """Ranks are one too high."""
    hooks.deltas.append(lambda delta, request: setattr(delta, "ranks", [each + 1 for each in delta.ranks]))


@faulty_server("TW-GEN-010", "logprobs.logprobs_are_sent_only_on_request")
def unrequested_logprobs_sent(hooks):
    """Log-probabilities are sent without being requested."""

    def more(exchange):
        if exchange.is_submit and "generate" in exchange.path:
            exchange.body = exchange.body.replace(b'"logprobs":false,"top_logprobs":0', b'"logprobs":true')
            exchange.body = exchange.body.replace(b'"top_logprobs":0,"logprobs":false', b'"logprobs":true')
            exchange.body = exchange.body.replace(b'"logprobs":false', b'"logprobs":true')

    hooks.requests.append(more)


@faulty_server("TW-GEN-024", "logprobs.candidates_match_chosen_tokens")
def logprobs_not_rounded(hooks):
    """Log-probabilities are not rounded."""
    hooks.deltas.append(
        lambda delta, request: setattr(delta, "logprobs", [each - 1e-9 / 3 for each in delta.logprobs])
    )


@faulty_server("TW-GEN-038", "logprobs.vocabulary_decodes_the_tokens")
def vocabulary_shifted_by_one(hooks):
    """The vocabulary is shifted by one token."""

    def shift(exchange, status, body):

        if exchange.path.endswith("/vocabulary") and status == 200:
            found = json.loads(body)
            return status, json.dumps(found | {"tokens": [*found["tokens"][1:], found["tokens"][0]]}).encode()
        return None

    hooks.bodies.append(shift)


@faulty_server("TW-GEN-022", "logprobs.logprobs_are_normalized_over_the_vocabulary")
def logprobs_normalized_over_candidates(hooks):
    """Log-probabilities are normalized over the candidates instead of the whole vocabulary."""

    def alone(ids, found):
        whole = math.log(sum(math.exp(each) for each in found))
        return ids, [round(each - whole, 6) for each in found]

    change_candidates(hooks, alone)


@faulty_server("TW-GEN-025", "logprobs.only_processed_logprobs_depend_on_sampling_options")
def raw_logprobs_after_temperature(hooks):
    """Raw log-probabilities are computed after the temperature was applied."""
    inner = table_engine.scored

    def scored(token, request):
        return inner(token, request.model_copy(update={"logprobs_mode": "processed"}))

    table_engine.scored = scored


@faulty_server("TW-GEN-026", "logprobs.only_processed_logprobs_depend_on_sampling_options")
def processed_logprobs_before_temperature(hooks):
    """Processed log-probabilities are computed before the temperature is applied."""
    inner = table_engine.scored
    table_engine.scored = lambda token, request: inner(
        token, request.model_copy(update={"logprobs_mode": "raw"})
    )


@faulty_server("TW-GEN-020", "logprobs.first_prompt_token_has_no_logprob")
def first_prompt_token_has_logprob_0(hooks):
    """The first prompt token has log-probability 0 instead of null."""
    inner = table_engine.prompt_columns

    def columns(request):
        found = inner(request)
        return found | {"prompt_logprobs": [0.0, *found["prompt_logprobs"][1:]]} if found else found

    table_engine.prompt_columns = columns


@faulty_server("TW-GEN-031", "logprobs.candidates_match_chosen_tokens")
def chosen_token_missing_from_candidates(hooks):
    """The chosen token is missing from the candidates."""

    def leave_out(delta, request):
        for row, token in enumerate(delta.token_ids if delta.top_ids else ()):
            if token in delta.top_ids[row]:
                at = delta.top_ids[row].index(token)
                delta.top_ids[row][at] = (
                    (token + 1) % 22 if (token + 1) % 22 not in delta.top_ids[row] else (token + 2) % 22
                )

    hooks.deltas.append(leave_out)


@faulty_server("TW-GEN-013", "logprobs.token_columns_stay_aligned", "logprobs.candidates_match_chosen_tokens")
def rollback_keeps_logprobs(hooks):
    """When text is retracted, the text is truncated, but not the lists of tokens and log-probabilities."""
    rewrite_events(hooks, rb'data:\[(\["r",.*\])\]', rb'data:[\1,["t","/items/0/value/text",1]]')


@faulty_server("TW-GEN-024", "logprobs.candidates_match_chosen_tokens")
def logprob_decimals_ignored(hooks):
    """`logprob_decimals` is ignored, and log-probabilities have four decimals."""
    change_delta(hooks, "logprobs", lambda each, request: round(each, 4))
    change_delta(hooks, "top_logprobs", lambda row, request: [round(each, 4) for each in row])


@faulty_server("TW-GEN-033", "logprobs.ranks_match_candidate_positions")
def ranks_capped_at_6(hooks):
    """Ranks are never greater than 6."""
    change_delta(hooks, "ranks", lambda rank, request: min(rank, 6))


@faulty_server("TW-GEN-025", "logprobs.only_processed_logprobs_depend_on_sampling_options")
def raw_logprobs_after_top_k(hooks):
    """Raw log-probabilities are computed after `top_k` was applied."""
    left = lambda row, request: [0.0, *[None] * (len(row) - 1)] if request.top_k else row  # noqa: E731
    change_delta(hooks, "top_logprobs", left)


@faulty_server("TW-GEN-041", "logprobs.vocabulary_decodes_the_tokens")
def any_if_none_match_gets_304(hooks):
    """Every request with `If-None-Match` is answered with 304."""
    asks = lambda exchange: exchange.path.endswith("/vocabulary") and exchange.header("if-none-match")  # noqa: E731
    hooks.heads.append(lambda exchange, status, headers: 304 if asks(exchange) else None)
    hooks.bodies.append(lambda exchange, status, body: (304, b"") if asks(exchange) else None)


@faulty_server("TW-GEN-024", "logprobs.candidates_match_chosen_tokens")
def logprob_decimals_0_treated_as_default(hooks):
    """`logprob_decimals: 0` is treated as the default, as `value or 4` does."""
    change_input(
        hooks, "logprob_decimals", change=lambda input_value, name: input_value[name] or input_value.pop(name)
    )


@faulty_server("TW-GEN-041", "logprobs.vocabulary_decodes_the_tokens")
def if_none_match_with_several_tags_ignored(hooks):
    """`If-None-Match` with several tags never matches."""
    set_request_header(
        hooks, "if-none-match", '"x"', lambda exchange: "," in exchange.header("if-none-match")
    )


@faulty_server("TW-GEN-034", "logprobs.candidates_match_chosen_tokens")
def two_candidates_instead_of_one(hooks):
    """Two candidates are sent even if only one was requested."""

    def two(delta, request):
        if request.top_logprobs == 1 and delta.top_ids:
            delta.top_ids = [[one, (one + 1) % 22] for (one,) in delta.top_ids]
            delta.top_logprobs = [[one, -20.0] for (one,) in delta.top_logprobs]

    hooks.deltas.append(two)


@faulty_server("TW-GEN-001", "logprobs.candidates_match_chosen_tokens")
def temperature_0_treated_as_default(hooks):
    """`temperature: 0` is treated as the default, as `value or 1` does."""
    change_input(
        hooks, "temperature", change=lambda input_value, name: input_value[name] or input_value.pop(name)
    )


@faulty_server("TW-GEN-030", "logprobs.first_prompt_token_has_no_logprob")
def prompt_candidates_ascending(hooks):
    """Candidates of prompt tokens are sorted by ascending probability."""
    inner = table_engine.prompt_columns

    def columns(request):
        found = inner(request)
        names = [name for name in ("prompt_top_ids", "prompt_top_logprobs") if name in found]
        return found | {name: [row[::-1] for row in found[name]] for name in names}

    table_engine.prompt_columns = columns
