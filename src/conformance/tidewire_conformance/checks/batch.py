"""Chapter 7: jobs of several inputs."""

import re
from typing import Any

from jsonschema import Draft202012Validator

from tidewire_conformance.checks.jobs import has_started
from tidewire_conformance.checks.refused_submits import unfit
from tidewire_conformance.judging.server_probe import Work
from tidewire_conformance.judging.state_history import Histories, job_bodies
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

BATCHES = ["batches"]


def _batch(s: Session, *values: Any, **more: Any) -> Work:
    """Work of several inputs: those given where there is `tidewire.script`, else examples."""
    work = s.batching()
    if s.server.has_script and values:
        return work.with_inputs(values, **more)
    return work.with_inputs([work.inputs[0]] * max(2, len(values)))


def says(text: str, *more: dict[str, Any]) -> dict[str, Any]:
    """An input of `tidewire.script`."""
    return {"script": [{"append": text}, *more]}


@check("TW-BAT-001", "TW-BAT-007", "TW-DIF-002", needs=BATCHES)
async def each_input_becomes_an_item_in_its_place(s: Session) -> None:
    """Values stand in the order of their inputs; the job says `"batch": true`, also for one input."""
    # More than ten: by their names `10` comes before `2`.
    count = max(2, min(11, s.server.limits_of_batch(s.batching())))
    texts = [f"item {n}" for n in range(count)]
    work = _batch(s, *(says(text, {"sleep_ms": 20 * max(0, 5 - n)}) for n, text in enumerate(texts)))
    job, history = await s.ended(work)
    read = await s.read(job)
    items = read.json["state"]["items"]
    s.expect("TW-BAT-001", len(items) == len(work.inputs), f"{len(work.inputs)} items", len(items), at=read)
    s.expect("TW-DIF-002", len(items) == len(work.inputs), f"{len(work.inputs)} items", len(items), at=read)
    if s.server.has_script:
        values = [item["value"] for item in items]
        s.expect("TW-BAT-001", values == texts, f"{texts}", values, at=history)
    s.expect("TW-BAT-007", read.json.get("batch") is True, '"batch": true', read.json.get("batch"), at=read)
    one = await s.submit(work.with_inputs(work.inputs[:1]))
    s.expect("TW-BAT-007", one.submit.json.get("batch") is True, '"batch": true for one input', at=one.submit)
    plain = await s.submit(work.with_input(work.inputs[0]))
    s.expect(
        "TW-BAT-007", plain.submit.json.get("batch") is False, '"batch": false for `input`', at=plain.submit
    )


@check("TW-BAT-004", "TW-OVR-020", "TW-DIF-005", needs=BATCHES)
async def an_item_fails_alone(s: Session) -> None:
    """One item fails, the others succeed, and the job is `partially_failed`."""
    if not s.server.has_script:
        s.untested("needs tidewire.script")
    job, history = await s.ended(
        _batch(s, says("a"), says("b", {"fail": "no such image"}), says("c", {"sleep_ms": 60}))
    )
    read = await s.read(job)
    ends = [item["status"] for item in read.json["state"]["items"]]
    s.expect(
        "TW-BAT-004", ends == ["succeeded", "failed", "succeeded"], "one item that failed", ends, at=history
    )
    s.expect(
        "TW-OVR-020",
        read.json.get("status") == "partially_failed",
        "partially_failed",
        read.json.get("status"),
        at=read,
    )
    failed = read.json["state"]["items"][1]
    s.expect(
        "TW-DIF-005",
        failed.get("error", {}).get("detail") == "no such image" or "error" in failed,
        "an error",
        failed,
        at=read,
    )


@check("TW-BAT-005", needs=BATCHES, slow=True)
async def items_end_one_by_one(s: Session) -> None:
    """An item that is complete ends while others still run."""
    work = s.server.uneven() or s.untested(
        "needs tidewire.script, or an endpoint that generates as many tokens as are asked for"
    )
    _, history = await s.ended(work)
    steps = Histories([history]).streams[0][1]
    seen = [[item["status"] for item in step.after.value["items"]] for step in steps if step.after]
    alone = [ends for ends in seen if ends in (["succeeded", "queued"], ["succeeded", "running"])]
    s.expect(
        "TW-BAT-005",
        alone,
        "a state in which the first has ended and the second has not",
        seen[-3:],
        at=history,
    )


@check("TW-BAT-003", "TW-DSC-012", needs=BATCHES)
async def too_many_inputs_are_refused(s: Session) -> None:
    """One more than the limit gets 422 `batch_too_large` at `/inputs`; two are taken."""
    work = s.batching()
    limit = s.server.limits_of_batch(work)
    if limit * len(str(work.inputs[0])) > s.server.limits.get("max_body_bytes", 0):
        s.untested(f"{limit} inputs do not fit a body")
    answer = await s.wire.ask("POST", work.submit_to, json={"inputs": [work.inputs[0]] * (limit + 1)})
    for sentence in ("TW-BAT-003", "TW-DSC-012"):
        s.expect_refused(sentence, answer, 422, "batch_too_large", f"{limit + 1} inputs")
    pointer = answer.json.get("pointer") if answer.status == 422 else ""
    s.expect("TW-BAT-003", pointer == "/inputs", "the pointer /inputs", pointer, at=answer)
    twin = await s.wire.ask("POST", work.submit_to, json={"inputs": [work.inputs[0]] * min(2, limit)})
    s.expect("TW-BAT-003", twin.status == 201, "201 for two inputs", f"{twin.status} {twin.code}", at=twin)


@check("TW-JOB-016", "TW-JOB-015", needs=BATCHES)
async def a_wrong_input_is_named_by_its_place(s: Session) -> None:
    """One input of several breaks the schema: the submit is refused as a whole, and the pointer leads to that input."""
    work = s.batching()
    bad = next(iter(unfit(s, work)), s)
    if bad is s:
        s.untested(f"{work.endpoint} refuses neither null nor a number, a list or an unknown member")
    good = work.inputs[0]
    answer = await s.wire.ask("POST", work.submit_to, json={"inputs": [good, bad]})
    s.expect_refused("TW-JOB-015", answer, 422, "invalid_input", "one wrong input")
    pointer = str(answer.json.get("pointer", "")) if answer.status == 422 else ""
    s.expect("TW-JOB-016", re.match("/inputs/1(/|$)", pointer), "a pointer to /inputs/1", pointer, at=answer)


@check("TW-BAT-002", needs=BATCHES)
async def an_endpoint_without_batches_takes_none(s: Session) -> None:
    """`inputs` for an endpoint that declares no `batch` gets 422 `invalid_input` at `/inputs`."""
    plain = next((each for each in s.server.endpoints.values() if not each.capability("batch")), None)
    if plain is None:
        s.no_occasion("each endpoint declares `batch`")
    answer = await s.wire.ask("POST", plain.submit_to, json={"inputs": [{}]})
    s.expect_refused("TW-BAT-002", answer, 422, "invalid_input")
    s.expect(
        "TW-BAT-002",
        answer.json.get("pointer") == "/inputs",
        "the pointer /inputs",
        answer.json.get("pointer"),
        at=answer,
    )


@check("TW-BAT-008", "TW-BAT-009", "TW-JOB-014", needs=BATCHES)
async def shared_members_complete_each_input(s: Session) -> None:
    """`shared` fills in what an input does not have; a wrong member of it is named there."""
    work = s.batching()
    given = work.inputs[0]
    if not s.server.has_script:
        if not isinstance(given, dict) or not given:
            s.untested("needs tidewire.script, or an example that is an object with members")
        _, history = await s.ended(work.with_inputs([{}, given], shared=given))
        status = history.of_type("done")[0].json.get("status")
        for sentence in ("TW-BAT-008", "TW-JOB-014"):
            s.expect(
                sentence, status == "succeeded", "an input that is whole by `shared`", status, at=history
            )
        return
    shared = {"script": [{"append": "shared"}]}
    whole = _batch(s, says("own"), {}, shared=shared)
    answer = await s.wire.ask("POST", whole.submit_to, json=whole.body)
    if not s.expect("TW-BAT-008", answer.status == 201, "201 for an input that is whole by `shared`",
                    f"{answer.status} {answer.code}", at=answer):  # fmt: skip
        return
    job, _ = await s.ended(whole)
    read = await s.read(job)
    values = [item["value"] for item in read.json["state"]["items"]]
    s.expect("TW-BAT-008", values == ["own", "shared"], "own, shared", values, at=read)
    answer = await s.wire.ask(
        "POST", job.work.submit_to, json={"inputs": [says("own"), {}], "shared": {"script": 7}}
    )
    s.expect_refused("TW-JOB-014", answer, 422, "invalid_input", "a wrong member of shared")
    for own in ({"a": 1}, 0, None):
        for given in ({"inputs": [{"script": [], "initial": own}]}, {"input": {"initial": own}}):
            body = {**given, "shared": {"initial": {"b": 2}, "script": []}}
            taken = await s.wire.ask("POST", job.work.submit_to, json=body)
            what = "a member that an input has itself is not changed"
            if s.expect(
                "TW-JOB-014", taken.status == 201, f"201 for {body}", f"{taken.status} {taken.code}", at=taken
            ):
                value = taken.json["state"]["items"][0]["value"]
                s.expect("TW-BAT-008", value == own, f"{own}: {what}", value, at=taken)
    pointer = str(answer.json.get("pointer", "")) if answer.status == 422 else ""
    s.expect(
        "TW-BAT-009", pointer.startswith("/shared/script"), "a pointer to /shared/script", pointer, at=answer
    )


@check("TW-JOB-052", "TW-JOB-056", "TW-JOB-057", "TW-JOB-054", "TW-JOB-082", needs=BATCHES, slow=True)
async def a_cancel_of_one_item_leaves_the_others(s: Session) -> None:
    """The item that is named ends as cancelled with the value it had; the other one succeeds with its own."""
    if not s.server.has_script:
        await _cancel_of_a_generation(s)
        return
    work = _batch(s, says("a", {"sleep_ms": 700}, {"append": "b"}), says("c", {"sleep_ms": 30_000}))
    job = await s.submit(work)
    await s.read_until(job, has_started)
    wrong = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": [1, 2]})
    s.expect_refused("TW-JOB-054", wrong, 422, "invalid_input", "an item that is not there")
    answer = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": [1, 1]})
    for sentence in ("TW-JOB-057", "TW-JOB-082"):
        s.expect(sentence, answer.status == 202, "202", f"{answer.status} {answer.code}", at=answer)
    read = await s.read_until(job, lambda now: now.json.get("done"))
    ends = [(item["status"], item["value"]) for item in read.json["state"]["items"]]
    s.expect("TW-JOB-056", ends[0] == ("succeeded", "ab"), "succeeded with ab", ends[0], at=read)
    s.expect("TW-JOB-057", ends[1] == ("cancelled", "c"), "cancelled with c", ends[1], at=read)
    again = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": [0, 1]})
    s.expect("TW-JOB-052", again.status == 200 and again.json.get("status") == "partially_failed",
             "200, and what has ended stays", f"{again.status} {again.json.get('status')}", at=again)  # fmt: skip


async def _cancel_of_a_generation(s: Session) -> None:
    """The same of items that generate, of which the one that is cancelled would be the longest."""
    work = s.server.uneven(64) or s.untested(
        "needs tidewire.script, or an endpoint that generates as many tokens as are asked for"
    )
    alone = (await s.read((await s.ended(work.with_input(work.inputs[0])))[0])).json["state"]["items"][0]
    job = await s.submit(work)
    begun = await s.read_until(
        job, lambda now: "queued" not in [item["status"] for item in now.json["state"]["items"]]
    )
    wrong = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": [1, 2]})
    s.expect_refused("TW-JOB-054", wrong, 422, "invalid_input", "an item that is not there")
    answer = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": [1, 1]})
    for sentence in ("TW-JOB-057", "TW-JOB-082"):
        s.expect(sentence, answer.status in {200, 202}, "202", f"{answer.status} {answer.code}", at=answer)
    read = await s.read_until(job, lambda now: now.json.get("done"))
    first, second = read.json["state"]["items"]
    if second["status"] == "succeeded" and answer.status == 200:
        s.unclear("the job had ended before it was cancelled")
    s.expect("TW-JOB-056", first["status"] == alone["status"] and len(first["value"]["text"]) > 0, f"{alone['status']}, with its text",
             first, at=read)  # fmt: skip
    held = begun.json["state"]["items"][1]["value"]["text"]
    s.expect("TW-JOB-057", second["status"] == "cancelled" and second["value"]["text"].startswith(held),
             f"cancelled, with a text that begins with {held!r}", second, at=read)  # fmt: skip
    again = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": [0, 1]})
    s.expect("TW-JOB-052", again.status == 200 and again.json.get("status") == read.json["status"],
             "200, and what has ended stays", f"{again.status} {again.json.get('status')}", at=again)  # fmt: skip


@check("TW-BAT-012", "TW-BAT-014", slow=True)
async def the_company_of_an_item_changes_nothing(s: Session) -> None:
    """An input gives alone what it gives among others, where its endpoint is of one mind about it."""
    if not any(endpoint.capability("batch") for endpoint in s.server.endpoints.values()):
        s.no_occasion("no endpoint declares `batch`")
    found = []
    for work in s.server.seen:
        if work.ended != "succeeded" or not s.server.endpoints[work.endpoint].capability("batch"):
            continue
        given = work.inputs[0]
        text_only = bool(s.server.endpoints[work.endpoint].capability("logprobs"))
        fixed = {**given, "temperature": 0, "max_tokens": 8} if text_only else given
        alone = [(await s.read((await s.ended(work.with_input(fixed)))[0])).json for _ in range(2)]
        values = [_told(each["state"]["items"][0]["value"], text_only) for each in alone]
        if values[0] != values[1]:
            continue
        other = {**fixed, "max_tokens": 3} if text_only else _neighbour(s, work, fixed)
        alone = [(await s.read((await s.ended(work.with_input(other)))[0])).json for _ in range(2)]
        lone, again = (_told(each["state"]["items"][0]["value"], text_only) for each in alone)
        if lone != again:
            other, lone = fixed, values[0]
        job, history = await s.ended(work.with_inputs([fixed, other, fixed]))
        items = (await s.read(job)).json["state"]["items"]
        s.expect("TW-BAT-014", len(items) == 3, "3 items", len(items), at=history)
        s.expect(
            "TW-BAT-012",
            [_told(item["value"], text_only) for item in items] == [values[0], lone, values[0]],
            f"{values[0]}, {lone}, {values[0]}",
            items,
            at=history,
        )
        found.append(work)
    if not found:
        s.untested("no example gives the same value twice")


def _neighbour(s: Session, work: Work, given: Any) -> Any:
    """Another input that the endpoint's schema takes, so that items which change places show; the same where none is found."""
    if not isinstance(given, dict):
        return given
    validator = Draft202012Validator(s.server.endpoints[work.endpoint].description["input_schema"])
    tries = [
        {**given, name: value - 1 if value > 1 else value + 1}
        for name, value in given.items()
        if type(value) is int
    ]
    tries += [{**given, name: f"{value} 2"} for name, value in given.items() if isinstance(value, str)]
    return next((each for each in tries if validator.is_valid(each)), given)


def _told(value: Any, text_only: bool) -> Any:
    """What has to be the same in any company: of a generation its text, since sums in another order differ in the end."""
    return value.get("text") if text_only and isinstance(value, dict) else value


@check("TW-BAT-017", whole_run=True)
async def the_size_of_a_batch_counts_its_rows(s: Session) -> None:
    """Where an item tells how it was batched, its row lies within the size."""
    for exchange in s.wire.record:
        for body in job_bodies(exchange):
            for item in body.get("state", {}).get("items", ()):
                told = item.get("batch", {})
                if {"size", "row"} <= told.keys():
                    s.expect(
                        "TW-BAT-017",
                        0 <= told["row"] < told["size"],
                        "a row below the size",
                        told,
                        at=exchange,
                    )


@check("TW-FRM-066", "TW-FRM-067", needs=["batches"])
async def progress_of_each_item_is_told(s: Session) -> None:
    """`progress` of a job of several inputs names its own item, and that of each item that runs is told again."""
    steps = [
        [{"append": "x"}, {"progress": {"current": n + 1, "total": 7}}, {"sleep_ms": 20_000}]
        for n in range(2)
    ]
    work = s.server.batching()
    if work is None or not s.server.has_script:
        s.untested("needs tidewire.script, with `batch`")
    job = await s.submit(work.with_inputs([{"script": each} for each in steps]))
    for _ in range(2):
        async with s.follow(job) as stream:
            await stream.until(lambda now: len({block.data for block in now.of_type("progress")}) >= 2, 5)
            last = {
                block.json.get("item"): block.json.get("current")
                for block in stream.exchange.of_type("progress")
            }
            for sentence in ("TW-FRM-066", "TW-FRM-067"):
                s.expect(
                    sentence,
                    last == {0: 1, 1: 2},
                    "progress 1 of item 0 and 2 of item 1",
                    str(last),
                    at=stream.exchange,
                )
    await s.wire.ask("POST", f"{job.path}/cancel")
