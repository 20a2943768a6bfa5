"""Checks for chapter 7: jobs with several inputs."""

import re
from typing import Any

from tidewire_conformance.checks.refused_submits import unfit
from tidewire_conformance.judging.server_probe import SampleRequest
from tidewire_conformance.judging.state_history import Histories, items_of, job_bodies
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text, schema_violation
from tidewire_conformance.session import Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

BATCHES = ["batches"]
MAX_TESTED_BODY = 16 * 2**20
"""Largest body, in bytes, that the suite sends to exceed `max_inputs`."""


def script_input(text: str, *more: dict[str, Any]) -> dict[str, Any]:
    """Build an input for the test endpoint `tidewire.script`.

    The script appends a text, and then executes the steps in `more`.
    """
    return {"script": [{"append": text}, *more]}


@check("TW-BAT-001", "TW-BAT-007", "TW-DIF-002", needs=BATCHES)
async def items_follow_input_order(s: Session) -> None:
    """A job submitted with `inputs` has `"batch": true` and one item for each input, in the order of the inputs."""
    # Use more than ten inputs, so that a server that sorts indexes as strings (`10` before `2`) fails.
    sample = s.batch_sample()
    texts = [f"item {n}" for n in range(max(2, min(11, s.server.max_inputs(sample))))]
    scripts = [script_input(text, {"sleep_ms": 20 * max(0, 5 - n)}) for n, text in enumerate(texts)]
    sample = sample.with_inputs(scripts if s.server.has_script else sample.inputs * len(texts))
    job, history = await s.run_to_end(sample)
    read = await s.read(job)
    items = s.items(read)
    s.at(read).equal(
        ("TW-BAT-001", "TW-DIF-002"), len(items), len(sample.inputs), f"{len(sample.inputs)} items"
    )
    if s.server.has_script:
        values = [item["value"] for item in items]
        s.at(history).equal("TW-BAT-001", values, texts)
    s.at(read).expect("TW-BAT-007", read.member("batch") is True, '"batch": true', read.member("batch"))
    one = await s.submit(sample.with_inputs(sample.inputs[:1]))
    s.at(one.submit).expect("TW-BAT-007", one.submit.member("batch") is True, '"batch": true for one input')
    plain = await s.submit(sample.with_input(sample.inputs[0]))
    s.at(plain.submit).expect(
        "TW-BAT-007", plain.submit.member("batch") is False, '"batch": false for a job with `input`'
    )


@check("TW-BAT-004", "TW-BAT-013", "TW-OVR-020", "TW-DIF-005", needs=BATCHES)
async def failed_item_does_not_affect_others(s: Session) -> None:
    """If one item of a job fails, the other items still succeed, and the job ends as `partially_failed`."""
    inputs = [
        script_input("a"), script_input("b", {"fail": "no such image"}), script_input("c", {"sleep_ms": 60})
    ]  # fmt: skip
    job, history = await s.run_to_end(s.script_sample().with_inputs(inputs))
    read = await s.read(job)
    ends = [item["status"] for item in s.items(read)]
    s.at(history).equal(
        ("TW-BAT-004", "TW-BAT-013"),
        ends,
        ["succeeded", "failed", "succeeded"],
        "succeeded, failed, succeeded",
    )
    s.at(read).equal("TW-OVR-020", read.member("status"), "partially_failed")
    failed = s.items(read)[1]
    s.at(read).expect("TW-DIF-005", "error" in failed, "the member error in the failed item", failed)


@check("TW-BAT-005", needs=BATCHES, seconds=3)
async def items_end_independently(s: Session) -> None:
    """An item of a job ends as soon as its own result is complete, even if other items are still running."""
    sample = s.server.uneven_batch_sample() or s.skip_untested(
        "the check needs the endpoint tidewire.script, or an endpoint with log-probabilities and `batch`"
    )
    _, history = await s.run_to_end(sample, sound=False)
    steps = Histories([history]).streams[0][1]
    seen = [[item["status"] for item in step.after.value["items"]] for step in steps if step.after]
    alone = [ends for ends in seen if ends in (["succeeded", "queued"], ["succeeded", "running"])]
    s.at(history).expect(
        "TW-BAT-005", alone, "a state in which the first item has ended and the second has not", seen[-3:]
    )


@check("TW-BAT-003", "TW-DSC-012", needs=BATCHES)
async def too_many_inputs_return_422(s: Session) -> None:
    """A request with one input too many gets 422 `batch_too_large` with the pointer `/inputs`. A request with two
    inputs is accepted.
    """
    sample = s.batch_sample()
    limit = s.server.max_inputs(sample)
    size = limit * len(str(sample.inputs[0]))
    if size > min(s.server.limits.get("max_body_bytes", 0), MAX_TESTED_BODY):
        s.skip_untested(f"{limit} inputs exceed max_body_bytes, or are too many for the suite to test")
    answer = await s.post(sample, json={"inputs": [sample.inputs[0]] * (limit + 1)})
    s.at(answer).refused(("TW-BAT-003", "TW-DSC-012"), 422, "batch_too_large", f"{limit + 1} inputs")
    s.at(answer).equal("TW-BAT-003", answer.pointer, "/inputs", "the pointer /inputs")
    control = await s.post(sample, json={"inputs": [sample.inputs[0]] * min(2, limit)})
    s.at(control).status("TW-BAT-003", 201, "for two inputs")


@check("TW-JOB-016", "TW-JOB-015", needs=BATCHES)
async def invalid_input_is_reported_with_pointer(s: Session) -> None:
    """If one of several inputs violates the schema, the server rejects the request with a pointer to that input."""
    sample = s.batch_sample()
    bad = next(iter(unfit(s, sample)), s)
    if bad is s:
        s.skip_untested(
            f"null, a number, a list and unknown members are all valid inputs of {sample.endpoint}"
        )
    good = sample.inputs[0]
    answer = await s.post(sample, json={"inputs": [good, bad]})
    s.at(answer).refused("TW-JOB-015", 422, "invalid_input", "one invalid input of two")
    points = re.match("/inputs/1(/|$)", answer.pointer)
    s.at(answer).expect("TW-JOB-016", points, "a pointer to /inputs/1", answer.pointer)


@check("TW-BAT-002", needs=BATCHES)
async def inputs_return_422_without_batch_support(s: Session) -> None:
    """At an endpoint that does not declare `batch`, a request with `inputs` gets 422 `invalid_input` with the pointer
    `/inputs`.
    """
    plain = next((each for each in s.server.endpoints.values() if not each.capability("batch")), None)
    if plain is None:
        s.skip_no_occasion("each endpoint declares `batch`")
    answer = await s.wire.request("POST", plain.submit_to, json={"inputs": [{}]})
    s.at(answer).refused("TW-BAT-002", 422, "invalid_input")
    s.at(answer).equal("TW-BAT-002", answer.pointer, "/inputs", "the pointer /inputs")


@check("TW-BAT-008", "TW-BAT-009", "TW-JOB-014", needs=BATCHES)
async def shared_members_fill_in_missing_members(s: Session) -> None:
    """An input takes its missing members from `shared`. If a member of `shared` is invalid, the request gets 422 with a
    pointer to that member.
    """
    sample = s.batch_sample()
    example = sample.inputs[0]
    if not s.server.has_script:
        if not isinstance(example, dict) or not example:
            s.skip_untested(
                "the check needs the endpoint tidewire.script, or an example that is an object with members"
            )
        _, history = await s.run_to_end(sample.with_inputs([{}, example], shared=example))
        status = history.of_type("done")[0].member("status")
        s.at(history).equal(
            ("TW-BAT-008", "TW-JOB-014"),
            status,
            "succeeded",
            "the status succeeded, although an input has its members only in `shared`",
        )
        return
    shared = {"script": [{"append": "shared"}]}
    whole = sample.with_inputs([script_input("own"), {}], shared=shared)
    answer = await s.post(whole)
    if not s.at(answer).status("TW-BAT-008", 201, "for an input whose missing members are in `shared`"):
        return
    job, _ = await s.run_to_end(whole)
    read = await s.read(job)
    values = [item["value"] for item in s.items(read)]
    s.at(read).equal("TW-BAT-008", values, ["own", "shared"], "the values own, shared")
    answer = await s.post(job.sample, json={"inputs": [script_input("own"), {}], "shared": {"script": 7}})
    s.at(answer).refused("TW-JOB-014", 422, "invalid_input", "an invalid member of shared")
    for own in ({"a": 1}, 0, None):
        for example in ({"inputs": [{"script": [], "initial": own}]}, {"input": {"initial": own}}):
            body = {**example, "shared": {"initial": {"b": 2}, "script": []}}
            taken = await s.post(job.sample, json=body)
            what = "`shared` does not override a member that the input has"
            if s.at(taken).status("TW-JOB-014", 201, f"for {json_text(body)}"):
                value = s.items(taken)[0]["value"]
                s.at(taken).equal("TW-BAT-008", value, own, f"{json_text(own)}: {what}")
    points = answer.pointer.startswith("/shared/script")
    s.at(answer).expect("TW-BAT-009", points, "a pointer to /shared/script", answer.pointer)


@check(
    "TW-JOB-090",
    "TW-JOB-056",
    "TW-JOB-052",
    "TW-JOB-057",
    "TW-JOB-054",
    "TW-JOB-082",
    needs=BATCHES,
    seconds=1,
)
async def item_cancel_does_not_affect_others(s: Session) -> None:
    """If a client cancels one item of a job, that item keeps its current value, and the other items still succeed."""
    if not s.server.has_script:
        await _cancel_generation_item(s)
        return
    first = script_input("a", {"sleep_ms": 700}, {"append": "b"})
    second = script_input("c", {"sleep_ms": 30_000})
    job = await s.submit(s.script_sample().with_inputs([first, second]))
    # On a busy machine, the first item may have ended when the second one starts.
    await s.read_until(job, lambda now: all(item.get("value") for item in items_of(now.members) or [{}]))
    _, read = await _cancel_second_item(s, job)
    ends = [(item["status"], item["value"]) for item in s.items(read)]
    s.at(read).equal(
        ("TW-JOB-090", "TW-JOB-056"), ends[0], ("succeeded", "ab"), "the status succeeded with the value ab"
    )
    s.at(read).equal("TW-JOB-057", ends[1], ("cancelled", "c"), "the status cancelled with the value c")


async def _cancel_second_item(s: Session, job: Job) -> tuple[RecordedExchange, RecordedExchange]:
    """Cancel the second item of a job, and wait until the job has ended. Judge the responses to this and further cancel requests.

    Returns:
        The response to the request to cancel the item, and the job at its end.
    """
    wrong = await s.cancel(job, json={"items": [1, 2]})
    s.at(wrong).refused("TW-JOB-054", 422, "invalid_input", "the index of an item that does not exist")
    answer = await s.cancel(job, json={"items": [1, 1]})
    ended = answer.status == 200 and bool(answer.member("done"))  # both items may have ended before
    wanted = "202, or 200 and a job that has ended"
    s.at(answer).response(("TW-JOB-057", "TW-JOB-082"), answer.status == 202 or ended, wanted)
    read = await s.read_until(job, lambda now: now.member("done"))
    again = await s.cancel(job, json={"items": [0, 1]})
    state = again.status, again.member("status")
    final = read.member("status")
    s.at(again).equal("TW-JOB-052", state, (200, final), f"200 and the final status, unchanged: {final}")
    return answer, read


async def _cancel_generation_item(s: Session) -> None:
    """Submit two text generations in one job, cancel the longer one, and judge the results of both."""
    sample = s.server.uneven_batch_sample(64) or s.skip_untested(
        "the check needs the endpoint tidewire.script, or an endpoint with log-probabilities and `batch`"
    )
    alone = s.items(await s.read((await s.run_to_end(sample.with_input(sample.inputs[0])))[0]))[0]
    job = await s.submit(sample)
    begun = await s.read_until(job, lambda now: "queued" not in [item["status"] for item in s.items(now)])
    answer, read = await _cancel_second_item(s, job)
    items = s.items(read)
    s.skip_unless(len(items) == 2, f"{read} returned {len(items)} items")
    first, second = items
    if second["status"] == "succeeded" and answer.status == 200:
        s.inconclusive("the job had ended before it was cancelled")
    same = first["status"] == alone["status"] and bool(_text(first))
    s.at(read).expect(("TW-JOB-090", "TW-JOB-056"), same, f"the status {alone['status']} and a text", first)
    held = _text(s.items(begun)[1])
    kept = second["status"] == "cancelled" and _text(second).startswith(held)
    s.at(read).expect(
        "TW-JOB-057", kept, f"the status cancelled and a text that begins with {json_text(held)}", second
    )


def _text(item: dict[str, Any]) -> str:
    """Return the generated text of an item, or an empty string if its value has none."""
    value = item["value"]
    return str(value.get("text", "")) if isinstance(value, dict) else ""


@check("TW-BAT-012", "TW-BAT-014", seconds=4)
async def results_do_not_depend_on_batching(s: Session) -> None:
    """If an endpoint is deterministic, an input has the same result alone as in a batch with other inputs."""
    if not any(endpoint.capability("batch") for endpoint in s.server.endpoints.values()):
        s.skip_no_occasion("no endpoint declares `batch`")

    async def items_alone(sample: SampleRequest) -> list[dict[str, Any]]:
        job, _ = await s.run_to_end(sample)
        return s.items(await s.read(job))

    found = []
    for sample in s.server.samples:
        if sample.ended != "succeeded" or not s.server.endpoints[sample.endpoint].capability("batch"):
            continue
        example = sample.inputs[0]
        text_only = bool(s.server.endpoints[sample.endpoint].capability("logprobs")) and isinstance(
            example, dict
        )
        fixed = {**example, "temperature": 0, "max_tokens": 8} if text_only else example
        alone = await s.concurrently(items_alone, [sample.with_input(fixed)] * 2)
        values = [_deterministic_part(items[0]["value"], text_only) for items in alone]
        if values[0] != values[1]:
            continue
        other = {**fixed, "max_tokens": 3} if text_only else _another_input(s, sample, fixed)
        alone = await s.concurrently(items_alone, [sample.with_input(other)] * 2)
        lone, again = (_deterministic_part(items[0]["value"], text_only) for items in alone)
        if lone != again:
            other, lone = fixed, values[0]
        job, history = await s.run_to_end(sample.with_inputs([fixed, other, fixed]))
        items = s.items(await s.read(job))
        s.at(history).equal("TW-BAT-014", len(items), 3, "3 items")
        values_in_batch = [_deterministic_part(item["value"], text_only) for item in items]
        s.at(history).equal("TW-BAT-012", values_in_batch, [values[0], lone, values[0]])
        found.append(sample)
    if not found:
        s.skip_untested("no example returned the same value twice")


def _another_input(s: Session, sample: SampleRequest, example: Any) -> Any:
    """Return a variation of an example input that the endpoint's schema accepts.

    A check needs two different inputs to notice swapped items. If no variation fits the schema, the function returns the
    example unchanged.
    """
    if not isinstance(example, dict):
        return example
    endpoint = s.server.endpoints[sample.endpoint]
    tries = [
        {**example, name: value - 1 if value > 1 else value + 1}
        for name, value in example.items()
        if type(value) is int
    ]
    tries += [{**example, name: f"{value} 2"} for name, value in example.items() if isinstance(value, str)]
    return next((each for each in tries if not endpoint.input_violation(each)), example)


def _deterministic_part(value: Any, text_only: bool) -> Any:
    """Return the part of an item's value that must not depend on the other items of its batch.

    For a text generation, that part is only the text. The log-probabilities vary slightly with the order of
    floating-point sums.
    """
    return value.get("text") if text_only and isinstance(value, dict) else value


@check("TW-BAT-017", whole_run=True)
async def row_is_less_than_batch_size(s: Session) -> None:
    """In the member `batch` of an item, `row` is at least 0 and less than `size`."""
    for exchange in s.wire.record:
        for body in job_bodies(exchange):
            for item in items_of(body):
                batching = item.get("batch", {})
                if {"size", "row"} <= batching.keys():
                    in_batch = 0 <= batching["row"] < batching["size"]
                    s.at(exchange).expect("TW-BAT-017", in_batch, "a row from 0 to size - 1", batching)


@check("TW-FRM-066", "TW-FRM-067", needs=BATCHES)
async def progress_is_sent_for_each_running_item(s: Session) -> None:
    """Each `progress` event of a batch names its item. A new reader gets the latest `progress` of each running item."""
    steps = [
        [{"append": "x"}, {"progress": {"current": n + 1, "total": 7}}, {"sleep_ms": 20_000}]
        for n in range(2)
    ]
    job = await s.submit(s.script_sample().with_inputs([{"script": each} for each in steps]))
    for _ in range(2):
        async with s.follow(job) as stream:
            await stream.until(lambda now: len({block.data for block in now.of_type("progress")}) >= 2, 5)
            last = {
                block.member("item"): block.member("current") for block in stream.exchange.of_type("progress")
            }
            s.at(stream.exchange).expect(
                ("TW-FRM-066", "TW-FRM-067"),
                last == {0: 1, 1: 2},
                "progress 1 for item 0 and 2 for item 1",
                str(last),
            )
    await s.cancel(job)


@check("TW-FRM-053", "TW-OVR-020", "TW-BAT-004", needs=BATCHES)
async def failed_batch_has_an_error(s: Session) -> None:
    """If all items of a job fail, the job ends as `failed`, and its `done` has `error`.

    If only one of them fails, the job ends as `partially_failed`.
    """
    failing = script_input("a", {"fail": "no such image"}), script_input("b", {"fail": "no such text"})
    for inputs, status in ((failing, "failed"), ((failing[0], script_input("b")), "partially_failed")):
        job, history = await s.run_to_end(s.script_sample().with_inputs(inputs))
        done = history.of_type("done")[0].members
        read = await s.read(job)
        for at, found in ((history, done.get("status")), (read, read.member("status"))):
            s.at(at).equal("TW-OVR-020", found, status)
        for at, ended in ((history, done), (read, read.member("done") or {})):
            sound = status != "failed" or not schema_violation("problem", ended.get("error"))
            s.at(at).expect("TW-FRM-053", sound, "the member error in done", ended)
        failed = [item["status"] == "failed" for item in s.items(read)]
        s.at(read).equal("TW-BAT-004", failed, [True, status == "failed"])
