"""Chapter 8 beside its log-probabilities: what is counted, how an end is told, and whether what is taken is served."""

from typing import Any

from tidewire_conformance.checks.logprobs import LOGPROBS, generation
from tidewire_conformance.probe import LONG_TOKENS
from tidewire_conformance.registry import check
from tidewire_conformance.session import Job, Session


@check("TW-GEN-018", needs=LOGPROBS)
async def usage_counts_all_items(s: Session) -> None:
    """`completion_tokens` of a job of several inputs is the sum of what its items gave."""
    work = generation(s, logprobs=True, temperature=0)
    if s.server.limits_of_batch(work) < 2 or "batches" not in s.server.capabilities:
        s.no_occasion(f"{work.endpoint} takes one input")
    job, history = await s.ended(work.with_inputs([work.inputs[0], {**work.inputs[0], "max_tokens": 3}]))
    items = [item["value"] for item in (await s.read(job)).json["state"]["items"]]
    count = sum(len(value["token_ids"]) for value in items)
    told = history.of_type("done")[0].json.get("usage", {}).get("completion_tokens", 0)
    s.expect(
        "TW-GEN-018", count <= told <= count + len(items), f"{count} completion tokens", told, at=history
    )


@check("TW-GEN-017", "TW-GEN-018", needs=LOGPROBS)
async def a_generation_that_is_cancelled_says_so(s: Session) -> None:
    """`finish_reason` of an item that was cancelled while it ran is `cancelled`, and what it read and gave is counted."""
    work = generation(s, logprobs=True, temperature=0, max_tokens=LONG_TOKENS)
    job = await s.submit(work)
    async with s.follow(job, "0-0") as stream:
        await stream.until(lambda now: len(now.logged) >= 4, 30)
        await s.wire.ask("POST", f"{job.path}/cancel")
        await stream.until(lambda now: now.of_type("done"), 10)
        history = stream.exchange
    item = (await s.read(job)).json["state"]["items"][0]
    if item["status"] != "cancelled":
        s.unclear(f"the job was {item['status']} before it was cancelled")
    reason = item["value"].get("finish_reason")
    s.expect("TW-GEN-017", reason == "cancelled", "cancelled", reason, at=history)
    done = history.of_type("done")
    usage = done[0].json.get("usage", {}) if done else {}
    s.expect("TW-GEN-018", {"prompt_tokens", "completion_tokens"} <= usage.keys(), "prompt_tokens and completion_tokens",
             usage, at=history)  # fmt: skip
    count = len(item["value"]["token_ids"])
    s.expect(
        "TW-GEN-018",
        usage.get("completion_tokens", 0) >= count,
        f"at least {count} completion tokens",
        usage,
        at=history,
    )


SHOWN: list[tuple[dict[str, Any], str]] = [
    ({"ranks": True}, "ranks"),
    ({"token_text": True}, "token_text"),
    ({"logprob_token_ids": [0]}, "scored_logprobs"),
    ({"top_logprobs": 2, "ties": "count"}, "tie_counts"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"echo": True}, "text"),
    ({"logit_bias": {"0": 1000}}, "token_ids"),
]
"""Members of the input, and the member of the value that shows whether they were served."""


@check("TW-GEN-001", needs=LOGPROBS)
async def what_is_taken_is_served(s: Session) -> None:
    """A member of the input is refused with a pointer to it, or what it asks for is there."""
    prompt = "it was a long day"
    for members, shown in SHOWN:
        work = generation(s, prompt=prompt, logprobs=True, temperature=0, max_tokens=4, **members)
        answer = await s.wire.ask("POST", work.submit_to, json=work.body)
        if answer.status == 422:
            pointer = str(answer.json.get("pointer", "")).removeprefix("/input/")
            s.expect(
                "TW-GEN-001", pointer in members, f"a pointer to one of {sorted(members)}", pointer, at=answer
            )
            continue
        s.need(answer.status == 201, f"{answer}: {answer.status} {answer.code}")
        job = Job(answer.json["id"], work, answer)
        history = await s.history(job)
        value = (await s.read(job)).json["state"]["items"][0]["value"]
        s.expect(
            "TW-GEN-001",
            _is_served(value, members, shown, prompt),
            f"{members} in {shown}, or 422",
            value,
            at=history,
        )


def _is_served(value: Any, members: dict[str, Any], shown: str, prompt: str) -> bool:
    if "echo" in members:
        return str(value[shown]).startswith(prompt)
    if "logit_bias" in members:
        return {*value[shown]} <= {0}
    return shown in value
