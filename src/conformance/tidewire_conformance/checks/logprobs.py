"""Checks for chapter 8: the log-probabilities of an endpoint are consistent with each other. Any model can be tested."""

import math
from typing import Any

from tidewire_conformance.checks.generation import (
    COLUMNS,
    LOGPROBS,
    MAX_TOKENS,
    columns_of,
    generated,
    generated_each,
    generation,
    is_number_or_null,
    judgeable,
    max_top,
)
from tidewire_conformance.checks.split_characters import vocabulary_of
from tidewire_conformance.judging.state_history import job_of
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Session
from tidewire_conformance.wire import json_violations
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve

SAMPLING_MEMBERS: tuple[dict[str, Any], ...] = (
    {"top_k": 1}, {"top_p": 0.01}, {"repetition_penalty": 3.0}, {"logit_bias": {"0": 50}}
)  # fmt: skip
"""Input members that change the probability of a token in sampling, but not its raw log-probability."""
TOKEN_COLUMNS = (
    "token_ids",
    "logprobs",
    "top_ids",
    "top_logprobs",
    "ranks",
    "tie_counts",
    "scored_logprobs",
    "token_text",
    "top_text",
)
"""Members of a generated value that have one entry for each token (section 8.2)."""
CANDIDATE_COLUMNS = COLUMNS["top_logprobs"]
"""Columns of generated tokens that contain the tokens and their candidates."""
TOP_LOGPROBS = 5
DEFAULT_DECIMALS = 4
"""Number of decimals of log-probabilities if a request does not contain `logprob_decimals` (section 8.1)."""
MAX_DECIMALS = 9
"""Largest value of `logprob_decimals`."""
ARITHMETIC_TOLERANCE = 1e-3
"""Tolerance for floating-point errors in a log-probability or in a sum of probabilities.

Two runs of the same model can differ by such an error, because the order of a sum depends on the other jobs in a batch.
"""
MAX_EXPONENT = 100.0
"""Upper limit for a log-probability before the suite passes it to `math.exp`, which overflows for large wrong values."""
GAP_TOLERANCE = 1e-2
"""Tolerance for floating-point errors in the difference of two log-probabilities that are divided by a temperature."""


def decimals_of(generation_input: Any) -> int:
    """Return the number of decimals that the input of a text generation requests for log-probabilities."""
    found = generation_input.get("logprob_decimals") if isinstance(generation_input, dict) else None
    return found if type(found) is int and 0 <= found <= MAX_DECIMALS else DEFAULT_DECIMALS


def rounding_error(decimals: int) -> float:
    """Return the largest difference between a log-probability and its value rounded to a number of decimals."""
    return 0.5 * 10.0**-decimals


def max_sum(decimals: int) -> float:
    """Return the upper limit for the sum of the probabilities of different tokens, if they were rounded (TW-GEN-029).

    The exact probabilities sum to at most 1. Rounding a log-probability to d decimals adds at most h = 10^-d / 2, which
    multiplies the probability by at most e^h. The sum of the rounded probabilities is therefore at most e^h.
    """
    return math.exp(rounding_error(decimals)) + ARITHMETIC_TOLERANCE


def max_difference(decimals: int) -> float:
    """Return the largest difference between two rounded log-probabilities whose exact values are equal.

    Rounding to d decimals changes each value by at most 10^-d / 2. The exact values may have a floating-point error.
    """
    return 2 * rounding_error(decimals) + ARITHMETIC_TOLERANCE


def differs(one: Any, other: Any, decimals: int) -> bool:
    """Whether two lists of log-probabilities differ by more than rounding. A list may contain null, or further lists."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(differs, one, other, [decimals] * len(one)))
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return bool(one != other)
    return abs(one - other) > max_difference(decimals)


@check("TW-GEN-011", "TW-GEN-013", "TW-GEN-029", "TW-GEN-030", needs=LOGPROBS, whole_run=True)
async def token_columns_stay_aligned(s: Session) -> None:
    """After each event, all lists with one entry per token have the same length. The candidates are in descending order
    of probability.
    """
    decimals = _decimals_of_jobs(s)
    for step in s.histories().steps:
        if step.after is None:
            continue
        for item in step.after.value["items"]:
            value = item.get("value")
            if isinstance(value, dict) and "finish_reason" in value:
                lengths = {
                    name: len(value[name]) if isinstance(value[name], list) else "not a list"
                    for name in TOKEN_COLUMNS
                    if name in value
                }
                s.at(step.exchange, step.block).expect(
                    "TW-GEN-011", len(set(lengths.values())) <= 1, "lists of equal length", lengths
                )
                cut = _truncated(step.block.json)
                sound = "text" not in cut or "token_ids" not in value or "token_ids" in cut
                wanted = "lists of tokens that are truncated together with the text"
                s.at(step.exchange, step.block).expect("TW-GEN-013", sound, wanted, sorted(cut))
                columns = [
                    value[name] for name in ("top_ids", "top_logprobs") if isinstance(value.get(name), list)
                ]
                pairs = zip(*columns, strict=False) if len(columns) == 2 and step.block.type == "done" else ()
                for ids, found in pairs:
                    _judge_candidates(s, ids, found, decimals.get(step.job, DEFAULT_DECIMALS), step.exchange)


def _decimals_of_jobs(s: Session) -> dict[str, int]:
    """Return the number of decimals for each job of the run. If the inputs of a job differ, the lowest number counts."""
    found: dict[str, int] = {}
    for exchange in s.wire.record:
        sent = (
            json_violations.read(exchange.sent).value if exchange.method == "POST" and exchange.sent else None
        )
        if isinstance(sent, dict) and (job := job_of(exchange)):
            inputs = sent["inputs"] if isinstance(sent.get("inputs"), list) else [sent.get("input")]
            shared = sent["shared"] if isinstance(sent.get("shared"), dict) else {}
            wholes = ({**shared, **each} if isinstance(each, dict) else each for each in inputs)
            found[job] = min(map(decimals_of, wholes), default=DEFAULT_DECIMALS)
    return found


def _truncated(data: Any) -> set[str]:
    """Return the names of the members that a diff truncates."""
    ops = data.get("ops", ()) if isinstance(data, dict) else data if isinstance(data, list) else ()
    return {str(op[1]).rpartition("/")[2] for op in ops if op and op[0] == "t" and op[2]}


def _judge_candidates(s: Session, ids: Any, found: Any, decimals: int, at: RecordedExchange) -> None:
    numbers = all(isinstance(row, list) and all(map(is_number_or_null, row)) for row in (ids, found))
    if not s.at(at).expect("TW-GEN-011", numbers, "lists of numbers", [ids, found]):
        return
    s.at(at).expect(
        "TW-GEN-011", len(ids) == len(found), f"{len(ids)} log-probabilities of candidates", len(found)
    )
    order = [-each if each is not None else math.inf for each in found]
    s.at(at).expect("TW-GEN-030", order == sorted(order), "log-probabilities in descending order", found)
    s.at(at).expect("TW-GEN-030", len(set(ids)) == len(ids), "no candidate twice", ids)
    _judge_sum(s, found, decimals, at)


def _judge_sum(s: Session, found: list[float | None], decimals: int, at: RecordedExchange) -> float:
    """Judge the sum of the probabilities of different tokens, and return the sum."""
    whole = sum(math.exp(min(each, MAX_EXPONENT)) for each in found if each is not None)
    most = max_sum(decimals)
    wanted = f"probabilities that sum to at most 1, or to {most:.5g} if rounded to {decimals} decimals"
    s.at(at).expect("TW-GEN-029", whole <= most, wanted, round(whole, 5))
    return whole


@check("TW-GEN-010", "TW-GEN-006", "TW-GEN-012", needs=LOGPROBS, seconds=1)
async def logprobs_are_sent_only_on_request(s: Session) -> None:
    """A generation has log-probabilities only if the request asks for them.

    If the request asks for log-probabilities, the job's `columns` begin with `text`.
    """
    members = {"logprobs": False, "top_logprobs": 0}
    plain, history = await generated(s, **members)
    extra = {name for name in plain if name in TOKEN_COLUMNS[1:] or "logprob" in name}
    if s.server.endpoints[generation(s).endpoint].continues:
        extra.discard("token_ids")  # After a restart, the endpoint needs the ids to continue the text.
    s.at(history).expect("TW-GEN-010", not extra, "no column that was not requested", sorted(extra))
    s.at(history).expect(
        "TW-GEN-006", not extra, "no log-probabilities without a request for them", sorted(extra)
    )
    value, history = await generated(s, logprobs=True, top_logprobs=0)
    sound = {"logprobs", "token_ids"} <= value.keys() and value.keys().isdisjoint({"top_ids", "ranks"})
    wanted = "logprobs and token_ids without candidates and ranks"
    s.at(history).expect("TW-GEN-010", sound, wanted, sorted(value))
    columns = history.logged[0].typed.validated["columns"]
    s.at(history).expect(
        "TW-GEN-012", not columns or columns[0].endswith("/text"), "`text` as the first column", columns
    )
    named = {column.rpartition("/")[2] for column in columns}
    sound = not columns or {"token_ids", "logprobs"} <= named
    s.at(history).expect("TW-GEN-012", sound, "columns for token_ids and logprobs", columns)


@check(
    "TW-GEN-022",
    "TW-GEN-023",
    "TW-GEN-024",
    "TW-GEN-031",
    "TW-GEN-034",
    "TW-GEN-033",
    "TW-GEN-028",
    "TW-GEN-001",
    needs=LOGPROBS,
    seconds=2,
)
async def candidates_match_chosen_tokens(s: Session) -> None:
    """Each token has as many candidates as `top_logprobs` requests, sorted by probability.

    The rank and the log-probability of the chosen token match its place among the candidates.
    """
    decimals = 6
    all_numbers: list[float] = []
    value, history = await generated(
        s, top_logprobs=TOP_LOGPROBS, ranks=True, logprob_decimals=decimals, logprobs_mode="raw"
    )
    s.at(history).equal("TW-GEN-028", value.get("logprobs_mode"), "raw", "logprobs_mode raw")
    for token, logprob, ids, found, rank in columns_of(value, *CANDIDATE_COLUMNS, "ranks"):
        s.at(history).expect(
            ("TW-GEN-031", "TW-GEN-034"),
            len(ids) == len(found) == TOP_LOGPROBS,
            f"{TOP_LOGPROBS} candidates",
            len(ids),
        )
        numbers = [each for each in [logprob, *found] if each is not None]
        s.at(history).expect(
            "TW-GEN-022", all(each <= 0 for each in numbers), "log-probabilities of at most 0", numbers
        )
        s.at(history).expect(
            "TW-GEN-023", all(math.isfinite(each) for each in numbers), "null for a probability of 0", numbers
        )
        all_numbers += numbers
        rounded = all(abs(each - round(each, decimals)) < 1e-12 for each in numbers)
        wanted = f"log-probabilities rounded to {decimals} decimals"
        s.at(history).expect("TW-GEN-024", rounded, wanted, numbers)
        if token in ids:
            at = ids.index(token)
            sound = rank <= at + 1 and (rank == at + 1 or found[rank - 1] == found[at])
            s.at(history).expect("TW-GEN-033", sound, f"rank {at + 1}", rank)
            wanted = f"{found[at]}, which is the log-probability of this token among the candidates"
            s.at(history).equal("TW-GEN-022", logprob, found[at], wanted)
        else:
            sound = rank > TOP_LOGPROBS or found[-1] == logprob
            s.at(history).expect("TW-GEN-033", sound, f"a rank above {TOP_LOGPROBS}", rank)
            sound = found[-1] is None or logprob is None or logprob <= found[-1]
            wanted = f"a log-probability of at most {found[-1]} for a token outside the candidates"
            s.at(history).expect("TW-GEN-031", sound, wanted, logprob)
    sound = any(each != round(each, decimals - 2) for each in all_numbers)
    wanted = f"log-probabilities with all {decimals} decimals"
    s.at(history).expect("TW-GEN-024", sound, wanted, all_numbers[:6])

    # At a temperature of 0 and with one candidate per token, each chosen token must be that candidate or tie with it.
    value, history = await generated(
        s, top_logprobs=1, temperature=0, max_tokens=2 * MAX_TOKENS, logprob_decimals=MAX_DECIMALS
    )
    s.at(history).expect(
        "TW-GEN-034", all(len(row) == 1 for row in value["top_ids"]), "1 candidate", value["top_ids"]
    )
    for token, logprob, ids, found in columns_of(value, *CANDIDATE_COLUMNS):
        tied = logprob is not None and [logprob] == found[:1]
        wanted = f"the most probable token {ids[:1]} at a temperature of 0, or one with the log-probability {found[:1]}"
        s.at(history).expect("TW-GEN-001", [token] == ids[:1] or tied, wanted, [token, logprob])
    value, history = await generated(s, logprobs=True, logprob_decimals=0)
    whole = all(each is None or each == round(each) for each in value["logprobs"])
    s.at(history).expect(
        "TW-GEN-024", whole, "log-probabilities without decimals for logprob_decimals 0", value["logprobs"]
    )


@check("TW-GEN-033", needs=LOGPROBS, seconds=1)
async def ranks_match_candidate_positions(s: Session) -> None:
    """Even at a high temperature, the rank of each chosen token is its place among the candidates."""
    top = min(max_top(s), 20)
    value, history = await generated(
        s, top_logprobs=top, ranks=True, temperature=3.0, max_tokens=4 * MAX_TOKENS
    )
    for token, logprob, ids, found, rank in columns_of(value, *CANDIDATE_COLUMNS, "ranks"):
        # A chosen token that is not a candidate may have the same log-probability as the last candidate.
        place = ids.index(token) if token in ids else top
        tied = token in ids and 0 < rank <= place and found[rank - 1] == found[place]
        sound = rank > top or found[-1:] == [logprob] if place == top else rank == place + 1 or tied
        s.at(history).expect("TW-GEN-033", sound, f"rank {place + 1}", rank)


@check("TW-GEN-022", "TW-GEN-029", "TW-GEN-031", needs=LOGPROBS, seconds=1)
async def logprobs_are_normalized_over_the_vocabulary(s: Session) -> None:
    """The probabilities of the candidates sum to at most 1, and do not depend on how many candidates were requested."""
    top = min(max_top(s), 20)
    if top < 2:
        s.skip_untested(f"max_top is {top}")
    decimals = decimals_of(generation(s).inputs[0])
    many, history = await generated(s, top_logprobs=top, temperature=0)
    few, _ = await generated(s, top_logprobs=2, temperature=0)
    same = not differs(many["top_logprobs"][0][:2], few["top_logprobs"][0], decimals)
    wanted = "the same log-probabilities, whether two or more candidates were requested"
    got = [few["top_logprobs"][0], many["top_logprobs"][0][:2]]
    s.at(history).expect("TW-GEN-022", same, wanted, got)
    for ids, found, first in zip(many["top_ids"], many["top_logprobs"], few["top_ids"], strict=False):
        whole = _judge_sum(s, found, decimals, history)
        s.at(history).expect("TW-GEN-022", whole > 1e-6, "log-probabilities in nats", round(whole, 8))
        s.at(history).expect("TW-GEN-031", ids[:2] == first, (ids[:2],), first)


@check("TW-GEN-025", "TW-GEN-026", needs=LOGPROBS, seconds=2)
async def only_processed_logprobs_depend_on_sampling_options(s: Session) -> None:
    """Temperature and other sampling members change the `processed` log-probabilities of the first token, but not the
    `raw` ones.
    """
    decimals = decimals_of(generation(s).inputs[0])
    found: dict[tuple[str, float], Any] = {}
    cases = [(mode, temperature) for mode in ("raw", "processed") for temperature in (0.5, 2.0)]
    fixed = {"top_logprobs": 2, "max_tokens": 1}
    inputs = ({**fixed, "temperature": each, "logprobs_mode": mode} for mode, each in cases)
    for case, (value, each) in zip(cases, await generated_each(s, inputs), strict=True):
        found[case], history = value["top_logprobs"][0], each
    low, high = found["raw", 0.5], found["raw", 2.0]
    s.at(history).expect("TW-GEN-025", not differs(low, high, decimals), (low, "at every temperature"), high)

    async def judge(member: dict[str, Any]) -> None:
        sample = generation(s, top_logprobs=2, max_tokens=1, temperature=2.0, logprobs_mode="raw", **member)
        answer = await s.post(sample)
        if answer.status != 201:
            return  # the endpoint does not support the member
        job = s.job(sample, answer)
        history = await s.history(job)
        item = s.items(await s.read(job))[0]
        rows = judgeable(s, item["value"], {"top_logprobs": 2})["top_logprobs"]
        same = not differs(rows[:1], [high], decimals)
        s.at(history).expect("TW-GEN-025", same, (high, "unchanged by", member), rows)

    await s.concurrently(judge, SAMPLING_MEMBERS)
    cold, hot, raw = found["processed", 0.5], found["processed", 2.0], found["raw", 0.5]
    gaps = [each[0] - each[1] for each in (cold, hot, raw) if len(each) == 2 and None not in each]
    # Two processed values have one rounding error each. The two raw values are divided by 0.5, so their errors count twice.
    most = 6 * rounding_error(decimals) + GAP_TOLERANCE
    sound = len(gaps) < 3 or (abs(gaps[0] - 2 * gaps[2]) <= most and abs(gaps[1] - gaps[2] / 2) <= most)
    wanted = "gaps between the raw log-probabilities of two candidates, divided by the temperature"
    s.at(history).expect("TW-GEN-026", sound, wanted, gaps)


@check("TW-GEN-025", "TW-GEN-022", "TW-GEN-029", "TW-GEN-033", needs=LOGPROBS)
async def chosen_tokens_have_raw_logprobs(s: Session) -> None:
    """Without `logprobs_mode`, the log-probabilities of chosen tokens are raw, at every temperature and position.

    The log-probability of a chosen token equals that of the same token among the candidates, whatever the temperature is.
    """
    top, decimals = min(max_top(s), 20), 6
    first: dict[float, Any] = {}
    fixed = {"top_logprobs": top, "ranks": True, "logprob_decimals": decimals}
    temperatures = (0.5, 2.0)
    results = await generated_each(s, ({**fixed, "temperature": each} for each in temperatures))
    for temperature, (value, history) in zip(temperatures, results, strict=True):
        first[temperature] = [value["top_logprobs"][0]]
        for token, logprob, ids, found, rank in columns_of(value, *CANDIDATE_COLUMNS, "ranks"):
            if token in ids:
                own = found[ids.index(token)]
                wanted = f"{own}, the raw log-probability of this token among the candidates"
                s.at(history).expect("TW-GEN-025", not differs([logprob], [own], decimals), wanted, logprob)
                place = ids.index(token) + 1
                s.at(history).expect("TW-GEN-033", rank <= place, f"a rank of at most {place}", rank)
            _judge_sum(s, found, decimals, history)
    same = not differs(first[0.5], first[2.0], decimals)
    wanted = f"{first[0.5]}, the raw log-probabilities at a temperature of 0.5"
    s.at(history).expect(("TW-GEN-025", "TW-GEN-022"), same, wanted, first[2.0])


@check("TW-GEN-020", "TW-GEN-027", "TW-GEN-030", needs=LOGPROBS, seconds=1)
async def first_prompt_token_has_no_logprob(s: Session) -> None:
    """The first token of the prompt has the log-probability null and the candidates `[]`.

    The temperature does not change the log-probabilities of the prompt.
    """
    found = []
    decimals = decimals_of(generation(s).inputs[0])
    for temperature in (0.3, 1.7):
        value, history = await generated(
            s, prompt_logprobs=2, temperature=temperature, logprobs_mode="processed"
        )
        if not value.get("prompt_token_ids"):
            s.inconclusive("the prompt of the example has no tokens")
        columns: list[Any] = [value.get("prompt_logprobs"), value.get("prompt_top_logprobs")]
        sound = all(isinstance(each, list) and each for each in columns)
        if not s.at(history).expect("TW-GEN-020", sound, "one element for each token of the prompt", columns):
            return
        first = columns[0][0], columns[1][0]
        s.at(history).equal("TW-GEN-020", first, (None, []), "null and []")
        found.append(columns[0])
        for row in (each for each in columns[1][1:] if isinstance(each, list)):
            known = [each for each in row if isinstance(each, int | float)]
            sound = known == sorted(known, reverse=True)
            s.at(history).expect("TW-GEN-030", sound, "prompt candidates in descending order", row)
    same = not differs(found[0], found[1], decimals)
    wanted = "raw log-probabilities, independent of the temperature"
    s.at(history).expect("TW-GEN-027", same, wanted, found[1])


@check("TW-GEN-037", "TW-GEN-038", "TW-GEN-041", needs=LOGPROBS)
async def vocabulary_decodes_the_tokens(s: Session) -> None:
    """With the vocabulary of an endpoint, a client can decode the token ids to the generated text.

    The description of the endpoint links to the vocabulary. The vocabulary is valid against its schema, and the
    response that contains it has a strong `ETag`.
    """
    sample = generation(s, logprobs=True)
    endpoint = s.server.endpoints[sample.endpoint]
    link = endpoint.description.get("links", {}).get("vocabulary")
    if not s.at(endpoint.described).expect("TW-GEN-037", isinstance(link, str), "a link `vocabulary`", link):
        return
    answer = await s.get(resolve(endpoint.described, link))
    if not s.at(answer).body("TW-GEN-037", 200, "vocabulary"):
        return
    etag = answer.response_header("etag")
    wanted = f'"{answer.validated["hash"]}"'
    s.at(answer).equal("TW-GEN-041", etag, wanted, f"ETag {wanted}")
    again = await s.get(resolve(endpoint.described, link), header={"If-None-Match": etag})
    s.at(again).status("TW-GEN-041", 304, "for a matching If-None-Match")
    several = await s.get(resolve(endpoint.described, link), header={"If-None-Match": f'"another", {etag}'})
    s.at(several).status("TW-GEN-041", 304, "if one of several entity tags matches")
    other = await s.get(resolve(endpoint.described, link), header={"If-None-Match": '"another"'})
    s.at(other).status("TW-GEN-041", 200, "for an If-None-Match that does not match")
    value, history = await generated(s, logprobs=True)
    spelled = vocabulary_of(answer).spelled(value["token_ids"]).decode("utf-8", "replace")
    sound = spelled.startswith(value["text"])
    s.at(history).expect(
        "TW-GEN-038", sound, f"a text that begins with {json_text(value['text'])}", json_text(spelled)
    )
