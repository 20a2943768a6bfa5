"""Checks for chapter 8 except log-probabilities: parameters, finish reasons, token usage and seeds of text generation."""

from collections.abc import Iterable, Iterator
from typing import Any

from tidewire_conformance.judging.server_probe import LONG_TOKENS, SampleRequest
from tidewire_conformance.judging.state_history import Histories, value_has_grown
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

LOGPROBS = ["logprobs"]
"""Capabilities that a server must declare for the checks of text generation."""
MAX_TOKENS = 8
"""Default value of `max_tokens` in these checks."""
TOO_MANY_TOKENS = 10**8
"""Value of `max_tokens` that exceeds the context length of every model."""
STOP_TOKENS = (48, 192)
"""Values of `max_tokens` for a text with a stop string. The check tries the second value if the first text is too short,
because a token may be a single character or even a single byte.
"""
STOP_LENGTH = 9
"""Length of the stop string in characters. Most tokens are shorter, so the stop string spans several tokens."""
MIN_STOP_LENGTH = 2
"""Minimum length of the stop string in characters, for a model that ends its text early."""
OUTPUT_MEMBERS = frozenset(
    {"logprobs", "top_logprobs", "ranks", "ties", "token_text", "logprob_token_ids", "prompt_logprobs", "logprobs_mode",
     "echo", "n"}
)  # fmt: skip
"""Input members that add something to the output. The checks remove them from an example, and set only those that they test."""
COLUMNS = {
    "logprobs": ("token_ids", "logprobs"),
    "top_logprobs": ("token_ids", "logprobs", "top_ids", "top_logprobs"),
    "ranks": ("ranks",),
}
"""Input members, each with the columns that it requests. A column has one entry per generated token (section 8.2)."""
MEMBER_EFFECTS: list[tuple[dict[str, Any], str]] = [
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": True}, "token_ids"),
    ({"top_logprobs": 2}, "top_ids"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"ranks": True}, "ranks"),
    ({"token_text": True}, "token_text"),
    ({"logprob_token_ids": [0]}, "scored_logprobs"),
    ({"top_logprobs": 2, "ties": "count"}, "tie_counts"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"echo": True}, "text"),
    ({"logit_bias": {"0": 1000}}, "token_ids"),
]
"""Groups of input members, each with the output member that shows whether the endpoint applied the group."""


def generation(s: Session, **members: Any) -> SampleRequest:
    """Build a text-generation request, with these input members, to an endpoint that returns log-probabilities."""
    sample = s.server.logprobs_sample() or s.skip_untested(
        "no example of an endpoint with `logprobs` succeeded"
    )
    example = {name: value for name, value in sample.inputs[0].items() if name not in OUTPUT_MEMBERS}
    return sample.with_input({**example, "max_tokens": MAX_TOKENS, "seed": 7, **members})


async def generate(s: Session, **members: Any) -> Job:
    """Submit a text-generation job.

    Skip the check if the endpoint does not support a member of the input (TW-GEN-001).
    """
    sample = generation(s, **members)
    answer = await s.post(sample)
    member = answer.pointer.removeprefix("/input/")
    if answer.code == "invalid_input" and member in members:
        s.skip_no_occasion(f"{sample.endpoint} does not support {member}")
    return s.job(sample, answer)


async def generated(s: Session, **members: Any) -> tuple[dict[str, Any], RecordedExchange]:
    """Run a text-generation job and return its value and its recorded stream."""
    job = await generate(s, **members)
    history = await s.history(job)
    item = s.items(await s.read(job))[0]
    s.skip_unless(item["status"] == "succeeded", f"the generation ended as {item['status']}")
    return judgeable(s, item["value"], members), history


async def generated_each(
    s: Session, inputs: Iterable[dict[str, Any]]
) -> list[tuple[dict[str, Any], RecordedExchange]]:
    """Run a text-generation job for each input, as `generated` does, a few at the same time."""
    return await s.concurrently(lambda members: generated(s, **members), inputs)


def judgeable(s: Session, value: Any, members: dict[str, Any]) -> dict[str, Any]:
    """Return the value of a generation. If a column that the input members request cannot be read, skip the check.

    Other checks report a column that is missing or has another length than the others (TW-GEN-001, TW-GEN-011).
    """
    columns = dict.fromkeys(name for member in COLUMNS if members.get(member) for name in COLUMNS[member])
    fault = "" if isinstance(value, dict) and isinstance(value.get("text"), str) else "there is no text"
    fault = fault or next((why for name in columns if (why := _column_fault(name, value.get(name)))), "")
    lengths = {name: len(value[name]) for name in columns} if not fault else {}
    s.skip_unless(not fault, f"the value of the generation cannot be judged: {fault}")
    s.skip_unless(len({*lengths.values()}) <= 1, f"the columns have different lengths: {lengths}")
    if 0 in lengths.values():
        s.inconclusive("the model generated no token")
    found: dict[str, Any] = value
    return found


def _column_fault(name: str, column: Any) -> str:
    if not isinstance(column, list):
        return f"there is no list {name}"
    rows = column if name.startswith("top_") else [column]
    sound = all(isinstance(row, list) and all(map(is_number_or_null, row)) for row in rows)
    return "" if sound else f"{name} contains something other than numbers"


def is_number_or_null(value: Any) -> bool:
    """Whether a value has the type of a log-probability or of a token id."""
    return value is None or isinstance(value, int | float)


def columns_of(value: dict[str, Any], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the elements of several columns for each generated token."""
    return zip(*(value[name] for name in names), strict=True)


def tokens_in(usage: Any, name: str) -> int:
    """Return the number of tokens that a job's `usage` has under a name, or -1 if there is none."""
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if isinstance(found, int) else -1


def max_top(s: Session) -> int:
    """Return `max_top` of the endpoint, the maximum number of candidates per token."""
    sample = generation(s)
    return int(s.server.endpoints[sample.endpoint].capability("logprobs").get("max_top", 0))


@check("TW-GEN-002", "TW-GEN-001", "TW-GEN-003", "TW-GEN-004", "TW-GEN-008", needs=LOGPROBS)
async def unsupported_input_returns_422(s: Session) -> None:
    """A generation request gets 422 if it has too many candidates, both a prompt and messages, or unknown members."""
    sample, most = generation(s), max_top(s)
    example = sample.inputs[0]
    prompt = {"prompt": example.get("prompt", "a")}
    for name in ("top_logprobs", "prompt_logprobs"):
        answer = await s.post(sample, json={"input": {**example, name: most + 1}})
        if name == "prompt_logprobs" and answer.code == "invalid_input":
            continue  # The endpoint may report instead that it does not support `prompt_logprobs` (TW-ERR-010).
        s.at(answer).refused("TW-GEN-002", 422, "top_logprobs_too_large", f"{name} {most + 1}")
        problem = answer.members if answer.status == 422 else {}
        sound = problem.get("pointer") == f"/input/{name}" and str(most) in str(problem.get("detail"))
        s.at(answer).expect("TW-GEN-002", sound, f"a pointer to {name}, and {most} in the detail", problem)
    wrong = [
        ("TW-GEN-003", {**example, **prompt, "messages": [{"role": "user", "content": "b"}]}),
        ("TW-GEN-001", {**example, "foresight": True}),
        ("TW-GEN-003", {**(example | prompt), "echo": True, "messages": [{"role": "user", "content": "b"}]}),
        ("TW-GEN-003", {"messages": [{"role": "user", "content": "b"}], "echo": True}),
    ]
    for requirement, body in wrong:
        answer = await s.post(sample, json={"input": body})
        s.at(answer).refused(requirement, 422, "invalid_input", json_text(body)[:60])
    answer = await s.post(sample, json={"input": {**example, "max_tokens": TOO_MANY_TOKENS}})
    sound = answer.status == 422 and answer.code in {"input_too_long", "invalid_input"}
    s.at(answer).response("TW-GEN-004", sound, f"422 input_too_long for {TOO_MANY_TOKENS} tokens")
    if answer.status == 201:
        await s.wire.request("POST", f"/v1/jobs/{answer.member('id')}/cancel")
    if s.server.max_inputs(sample) > 1 and "batches" in s.server.capabilities:
        answer = await s.post(sample, json={"inputs": [{**example, "n": 2}, example]})
        s.at(answer).refused("TW-GEN-008", 422, "invalid_input", "n of 2 with several inputs")
    control = await s.post(sample, json={"input": {**example, "top_logprobs": most}})
    s.at(control).status("TW-GEN-002", 201, f"for {most} candidates")


@check("TW-GEN-001", needs=LOGPROBS, seconds=2)
async def accepted_members_take_effect(s: Session) -> None:
    """An endpoint either applies an input member or rejects the request with a pointer to that member."""
    prompt = "it was a long day"

    async def judge(effect: tuple[dict[str, Any], str]) -> None:
        members, shown = effect
        fixed = {"prompt": prompt, "logprobs": True, "temperature": 0, "max_tokens": 4}
        sample = generation(s, **{**fixed, **members})
        answer = await s.post(sample)
        if answer.status == 422:
            pointer = answer.pointer.removeprefix("/input/")
            s.at(answer).expect(
                "TW-GEN-001", pointer in members, f"a pointer to one of {json_text(sorted(members))}", pointer
            )
            return
        job = s.job(sample, answer)
        history = await s.history(job)
        value = s.items(await s.read(job))[0]["value"]
        served = _is_served(value, members, shown, prompt)
        wanted = f"a value whose {shown} reflects {json_text(members)}, or a 422 response"
        s.at(history).expect("TW-GEN-001", served, wanted, value)

    await s.concurrently(judge, MEMBER_EFFECTS)


def _is_served(value: Any, members: dict[str, Any], shown: str, prompt: str) -> bool:
    if not isinstance(value, dict) or shown not in value:
        return False
    if "echo" in members:
        return str(value[shown]).startswith(prompt)
    return "logit_bias" not in members or (isinstance(value[shown], list) and not any(value[shown]))


def _judge_usage(
    s: Session, history: RecordedExchange, usage: dict[str, Any], *, known: bool = False
) -> bool:
    """Judge whether `usage` contains both numbers of tokens. Return False if the server does not count tokens.

    Args:
        s: The session.
        history: The stream with the usage.
        usage: Member `usage` of the job.
        known: Whether the server reports both numbers for other jobs.
    """
    numbers = {"prompt_tokens", "completion_tokens"}
    if not known and numbers.isdisjoint(usage):
        return False
    s.at(history).expect("TW-GEN-044", numbers <= usage.keys(), "prompt_tokens and completion_tokens", usage)
    return True


@check("TW-GEN-017", "TW-GEN-044", needs=LOGPROBS)
async def finish_reason_and_usage_are_reported(s: Session) -> None:
    """A generation that reaches `max_tokens` has the `finish_reason` `length`. The `usage` of each generation counts
    prompt and completion tokens.
    """
    value, history = await generated(s, logprobs=True)
    count, reason = len(value["token_ids"]), value.get("finish_reason")
    s.at(history).expect(
        "TW-GEN-017", reason in {"stop", "length"}, "the finish_reason stop or length", reason
    )
    sound = (reason == "length") == (count == MAX_TOKENS) or reason == "stop"
    wanted = f"the finish_reason length at {MAX_TOKENS} tokens"
    s.at(history).expect("TW-GEN-017", sound, wanted, f"{reason} at {count}")
    if count > 1:
        # The model generated more than count - 1 tokens. If `max_tokens` is count - 1, the reason must be `length`.
        less, cut = await generated(s, logprobs=True, max_tokens=count - 1)
        reason = less.get("finish_reason")
        sound = reason == "length" or less["token_ids"] != value["token_ids"][:-1]
        wanted = f"the finish_reason length at {count - 1} of {count} tokens"
        s.at(cut).expect("TW-GEN-017", sound, wanted, reason)
    usage = history.of_type("done")[0].member("usage", {})
    if not _judge_usage(s, history, usage):
        return
    sound = count <= tokens_in(usage, "completion_tokens") <= count + 1
    s.at(history).expect("TW-GEN-044", sound, f"{count} completion tokens", usage)


@check("TW-GEN-044", needs=LOGPROBS, seconds=1)
async def usage_counts_all_items(s: Session) -> None:
    """The `usage` of a job with several inputs is the sum of the prompt and completion tokens of all items."""
    sample = generation(s, logprobs=True, temperature=0)
    if s.server.max_inputs(sample) < 2 or "batches" not in s.server.capabilities:
        s.skip_no_occasion(f"{sample.endpoint} accepts only one input")
    job, history = await s.run_to_end(
        sample.with_inputs([sample.inputs[0], {**sample.inputs[0], "max_tokens": 3}])
    )
    items = [judgeable(s, item["value"], {"logprobs": True}) for item in s.items(await s.read(job))]
    count = sum(len(value["token_ids"]) for value in items)
    usage = history.of_type("done")[0].member("usage", {})
    _, alone = await s.run_to_end(sample.with_input(sample.inputs[0]))
    if not _judge_usage(s, alone, alone.of_type("done")[0].member("usage", {})):
        s.skip_no_occasion(f"{sample.endpoint} reports no numbers of tokens")
    counted = tokens_in(usage, "completion_tokens")
    s.at(history).expect(
        "TW-GEN-044", count <= counted <= count + len(items), f"{count} completion tokens", counted
    )
    read = tokens_in(alone.of_type("done")[0].member("usage"), "prompt_tokens")
    counted = tokens_in(usage, "prompt_tokens")
    s.at(history).equal("TW-GEN-044", counted, len(items) * read, f"{len(items)} times {read} prompt tokens")


@check("TW-GEN-017", "TW-GEN-044", needs=LOGPROBS)
async def cancelled_generation_reports_reason_and_usage(s: Session) -> None:
    """A cancelled generation has the `finish_reason` `cancelled`, and its `usage` counts the tokens generated so far."""
    _, complete = await generated(s, logprobs=True)
    known = "completion_tokens" in complete.of_type("done")[0].member("usage", {})
    sample = generation(s, logprobs=True, temperature=0, max_tokens=LONG_TOKENS)
    job = await s.submit(sample)
    async with s.follow(job, "0-0") as stream:
        await stream.until(value_has_grown, 30)
        await s.cancel(job)
        await stream.until(lambda now: now.of_type("done"), 10)
        history = stream.exchange
    item = s.items(await s.read(job))[0]
    if item["status"] != "cancelled":
        s.inconclusive(f"the job ended as {item['status']} before it was cancelled")
    value = judgeable(s, item["value"], {"logprobs": True})
    reason = value.get("finish_reason")
    s.at(history).equal("TW-GEN-017", reason, "cancelled")
    done = history.of_type("done")
    usage = done[0].member("usage", {}) if done else {}
    if not _judge_usage(s, history, usage, known=known):
        return
    count = len(value["token_ids"])
    sound = tokens_in(usage, "completion_tokens") >= count
    s.at(history).expect("TW-GEN-044", sound, f"at least {count} completion tokens", usage)


@check("TW-GEN-016", "TW-GEN-017", needs=LOGPROBS, after="generation", seconds=3)
async def stop_string_is_never_streamed(s: Session) -> None:
    """A generation ends before its stop string, and no event shows any part of the stop string."""
    text, members = "", dict[str, Any]()
    for tokens in STOP_TOKENS:
        if len(text) < 2 * STOP_LENGTH:
            members = {"temperature": 0.9, "max_tokens": tokens}
            whole, _ = await generated(s, **members)
            text = whole["text"]
    middle = len(text) // 2
    stop = text[middle : middle + STOP_LENGTH]
    if len(stop) < MIN_STOP_LENGTH:
        s.inconclusive(f"the generated text {json_text(text)} is too short for a stop string")
    wanted = text[: text.index(stop)]
    alone, history = await generated(s, **members, stop=stop)
    s.at(history).equal(
        "TW-GEN-016",
        alone["text"],
        wanted,
        f"{json_text(wanted)} for {json_text(stop)} as a single stop string",
    )
    value, history = await generated(s, **members, stop=[stop])
    if not value["text"].startswith(wanted) and not wanted.startswith(value["text"]):
        s.inconclusive(
            f"the same seed gave two different texts, {json_text(text)} and {json_text(value['text'])}"
        )
    s.at(history).expect(
        "TW-GEN-016",
        value["text"] == wanted,
        f"{json_text(wanted)} for the stop string {json_text(stop)}",
        json_text(value["text"]),
    )
    s.at(history).equal("TW-GEN-017", value.get("finish_reason"), "stop")
    for step in Histories([history]).steps:
        shown = step.after.value["items"][0].get("value") if step.after else None
        partial = str(shown.get("text", "")) if isinstance(shown, dict) else ""
        sound = wanted.startswith(partial)
        at_most = f"at most the text {json_text(wanted)} after every event"
        s.at(history, step.block).expect("TW-GEN-016", sound, at_most, json_text(partial))


@check("TW-GEN-008", "TW-GEN-009", needs=LOGPROBS)
async def samples_become_items(s: Session) -> None:
    """A request for `n` samples of one input creates a job with `n` items and `"batch": true`."""
    job = await generate(s, n=3)
    await s.history(job)
    read = await s.read(job)
    s.at(read).equal("TW-GEN-008", len(s.items(read)), 3, "3 items")
    s.at(read).expect("TW-GEN-009", read.member("batch") is True, '"batch": true', read.member("batch"))


@check("TW-GEN-007", "TW-BAT-012", needs=LOGPROBS, seconds=2)
async def seeded_generation_is_reproducible(s: Session) -> None:
    """The same input with the same seed gives the same tokens, both alone and in a batch."""
    members = {"logprobs": True, "temperature": 0.9}
    (one, _), (two, history) = await generated_each(s, [members] * 2)
    s.at(history).expect(
        "TW-GEN-007", one["token_ids"] == two["token_ids"], (one["token_ids"],), two["token_ids"]
    )
    for seed in (0, 2**53 - 1):
        (one_way, _), (other, history) = await generated_each(s, [{**members, "seed": seed}] * 2)
        again = one_way["token_ids"], f"for the seed {seed} again"
        s.at(history).equal("TW-GEN-007", other["token_ids"], one_way["token_ids"], again)
    sample = generation(s, logprobs=True, temperature=0.9)
    if s.server.max_inputs(sample) >= 3 and "batches" in s.server.capabilities:
        job, history = await s.run_to_end(
            sample.with_inputs([sample.inputs[0], {**sample.inputs[0], "seed": 8}, sample.inputs[0]])
        )
        items = [judgeable(s, item["value"], {"logprobs": True}) for item in s.items(await s.read(job))]
        same = [items[0]["token_ids"], items[2]["token_ids"]]
        s.at(history).equal("TW-BAT-012", same, [one["token_ids"]] * 2, (one["token_ids"],))
