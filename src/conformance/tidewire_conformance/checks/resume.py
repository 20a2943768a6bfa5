"""Checks for chapter 4: event ids, cursors, and the response to each kind of cursor."""

import random
from collections.abc import Sequence
from urllib.parse import quote

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.server_probe import MIN_GROWTH_EVENTS
from tidewire_conformance.judging.state_history import Histories, id_text, key, value_has_grown
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import EVENT_STREAM, Session
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

CUT_POINTS = 24
"""Maximum number of cursors that are tried for one job: the first, the last and a random sample of the others."""
MAX_EXAMPLES = 4
"""Maximum number of examples whose ended jobs are resumed. A fault may occur only with the events of one example."""
MAX_EXAMPLE_SECONDS = 10.0
"""Maximum duration, in seconds, of a job that the check resumes in addition to the job of the first example."""
LIVE_CUTS = 6
"""Number of times that the check cuts its connection to a running job."""
MAX_TESTED_LOG = 8 * 2**20
"""Largest `max_log_bytes` that the suite tests. The test of a larger limit would need a job with a very large log."""
INVALID_IDS = (
    "01-3",
    "1-03",
    "1-1000000000000000",
    "1",
    "-1-1",
    "99999999999-1",
    "1-0",
    "0-2",
    "1-1-1",
    "x",
    "1_1",
    "+1-1",
    "1-1 1",
    " 1-1",
    "1-1\n",
    "١-١",
)


def contents(blocks: Sequence[Block]) -> list[tuple[str | None, str, object]]:
    """Return the id, type and data of each event."""
    return [(block.id, block.type, block.json) for block in blocks]


def differing(history: RecordedExchange, other: RecordedExchange) -> list[str]:
    """Compare the states of a job in two streams, and return the ids of the events after which the states differ.

    The streams may encode the same change in different ways. If the log was trimmed, `history` may lack the state at which
    `other` begins. The events of `other` before its first snapshot are then not compared.
    """
    known = {step.block.id: step.after for step in Histories([history]).steps}
    trimmed = is_trimmed(history)
    found = (step for each, steps in Histories([history, other]).streams if each is other for step in steps)
    return [
        step.block.id or ""
        for step in found
        if (step.after is None and (step.error or step.violation or not trimmed))
        or (step.after is not None and (known.get(step.block.id) or step.after).value != step.after.value)
    ]


def is_trimmed(history: RecordedExchange) -> bool:
    """Whether a stream from the cursor `0-0` shows that the server has trimmed the log, or keeps none (section 4.3)."""
    return bool(history.logged) and history.logged[0].snapshot_reason == "compacted"


def same_log(history: RecordedExchange, other: RecordedExchange) -> bool:
    """Whether two responses to the cursor `0-0` contain the same events.

    A server may trim a log between the responses. The later one must then lead to the same states.
    """
    if is_trimmed(other):
        return not differing(history, other) and other.logged_ids[-1:] == history.logged_ids[-1:]
    return contents(other.logged) == contents(history.logged)


@check("TW-RES-003", "TW-RES-004", "TW-RES-006", "TW-RES-043", "TW-DIF-009", whole_run=True, after="resume")
async def ids_are_consecutive(s: Session) -> None:
    """Within an epoch, each event id continues from the one before it, and only snapshots may skip ids."""
    for each in (each for each in s.wire.record if each.is_stream and each.logged):
        # A stream of snapshots begins with a snapshot at the head, even if its cursor is the id of the head (TW-JOB-081).
        begins_anew = each.cursor in {"", "0-0"} or each.query.get("diffs") == ["0"]
        last = None if begins_anew else key(each.cursor)
        for block in each.logged:
            own = key(block.id)
            if own is None:
                continue
            snapshot = block.type == "snapshot"
            if block.snapshot_reason == "rewound":
                last = own
                continue
            if not snapshot and last is None:
                s.at(each, block).expect("TW-DIF-009", False, "a snapshot before the first diff", block.id)
            elif snapshot:
                s.at(each, block).expect(
                    "TW-RES-006", last is None or own > last, f"an id above {id_text(last)}", id_text(own)
                )
                if last and own[0] > last[0]:
                    s.at(each, block).expect("TW-RES-004", own[1] > last[1], f"a seq above {last[1]}", own)
            elif last is not None:
                base = (own[0], _base(block, own[1]))
                s.at(each, block).expect(
                    "TW-RES-006", own > last, f"an id above {id_text(last)}", id_text(own)
                )
                requirement = "TW-RES-043" if block.is_merged else "TW-RES-003"
                got = f"{block.id} with the base {base[0]}-{base[1]}"
                s.at(each, block).expect(requirement, base == last, f"a base of {last[0]}-{last[1]}", got)
            last = own


def _base(block: Block, seq: int) -> int:
    on = block.member("on")
    return on if isinstance(on, int) else seq - 1


@check("TW-RES-005", "TW-RES-003", "TW-DIF-007", "TW-RES-017", "TW-DIF-045")
async def log_begins_at_1_1_without_gaps(s: Session) -> None:
    """A stream from the cursor `0-0` is the whole log: a `start` snapshot with the id `1-1`, and then events with
    consecutive ids.
    """
    job, history = await s.run_to_end(s.growing_sample(), sound=False)
    ids = history.logged_ids
    first = history.logged[0]
    again = await s.stream(job, "0-0")
    equal = same_log(history, again) or (again.logged_ids == ids and not differing(history, again))
    got = f"{len(again.logged)} events in the second response, and {len(history.logged)} in the first one"
    s.at(again).expect("TW-RES-017", equal, "the same events in both responses", got)
    if is_trimmed(history):
        return  # A server may trim a log at any time (TW-RES-024).
    s.at(history, first).equal("TW-RES-005", ids[0], "1-1", "1-1 as the first id")
    sound = first.snapshot_reason == "start"
    s.at(history, first).expect("TW-DIF-007", sound, "a snapshot with the reason start", first.json)
    wanted = [f"1-{n}" for n in range(1, len(ids) + 1)]
    s.at(history).equal("TW-RES-003", ids, wanted, f"{wanted[0]}…{wanted[-1]}")
    merged = [block for block in history.logged if "on" in block.members]
    s.at(history).expect("TW-DIF-045", not merged, "no `on` in an event of the original log", ids)


@check("TW-RES-009", "TW-RES-012", "TW-RES-019", "TW-RES-020", "TW-RES-021", "TW-FRM-056")
async def ended_job_resumes_from_every_id(s: Session) -> None:
    """For an ended job, a cursor with any id in the log returns exactly the events after that id, up to `done`."""
    first = s.growing_sample()
    others = [each for each in s.server.growing_samples()[1:] if each.seconds <= MAX_EXAMPLE_SECONDS]
    for job, history in await s.concurrently(s.run_to_end, [first, *others][:MAX_EXAMPLES]):
        whole = history.logged
        for at in _sample(s.rng, len(whole) - 1):
            cursor = whole[at].id or ""
            answer = await s.stream(job, cursor)
            s.at(answer).status("TW-RES-009", 200, f"for the cursor {cursor}")
            _judge_remainder(s, answer, history, at)
            if any(not each.holds for each in s.assertions):
                return


def _judge_remainder(s: Session, answer: RecordedExchange, history: RecordedExchange, at: int) -> None:
    """Judge the response to a request that resumes after the event with the index `at`.

    The response must contain the events after that event, or a snapshot in their place.
    """
    whole = history.logged
    held = key(whole[at].id) or (0, 0)
    repeated = [
        block
        for block in answer.logged
        if (key(block.id) or held) <= held and block.snapshot_reason != "rewound"
    ]
    s.at(answer, repeated[0] if repeated else None).expect(
        "TW-RES-019", not repeated, f"no event at or below {whole[at].id}", [block.id for block in repeated]
    )
    got = answer.logged_ids
    lost = differing(history, answer)
    complete = not lost and got[-1:] == [whole[-1].id]
    wanted = [block.id for block in whole[at + 1 :]]
    expected = f"the events after {whole[at].id}, that is {json_text(wanted)}, or others with the same states"
    states = f"the events {json_text(got)}, with different states at {json_text(lost)}"
    s.at(answer).expect("TW-RES-020", complete, expected, states)
    s.at(answer).expect("TW-RES-012", complete or bool(repeated), "the events after the cursor", got)
    s.at(answer).response("TW-RES-021", answer.is_stream, "a stream")
    s.at(answer).response(
        "TW-FRM-056", bool(answer.of_type("done")), "done, because the state has not expired"
    )


def _sample(rng: random.Random, count: int) -> list[int]:
    if count <= CUT_POINTS:
        return list(range(count))
    return sorted({0, count - 1, *rng.sample(range(count), CUT_POINTS - 2)})


@check("TW-RES-019", "TW-RES-020", "TW-RES-007")
async def running_job_resumes_after_each_disconnect(s: Session) -> None:
    """If the stream of a running job breaks several times, its parts together contain each event exactly once."""
    steps = [step for n in range(12) for step in ({"append": f"né 😀 {n} "}, {"sleep_ms": 20})]
    sample = s.server.script_sample(*steps) or s.growing_sample()
    job = await s.submit(sample)
    seen: list[Block] = []
    parts: list[RecordedExchange] = []
    for cut in range(LIVE_CUTS):
        cursor = (seen[-1].id or "") if seen else "0-0"
        async with s.follow(job, cursor) as stream:
            while len(stream.exchange.logged) <= cut % 3 and await stream.next():
                pass
            seen += stream.exchange.logged
            parts.append(stream.exchange)
            if stream.exchange.of_type("done"):
                break
    if not seen or seen[-1].type != "done":
        parts.append(await s.stream(job, (seen[-1].id or "") if seen else "0-0"))
        seen += parts[-1].logged
    history = await s.history(job)
    ids, wanted = [block.id for block in seen], history.logged_ids
    merged = any(block.type == "snapshot" and block.id != "1-1" for block in seen)
    s.at(history).expect("TW-RES-019", len(set(ids)) == len(ids), "each event once", ids)
    if not merged:
        s.at(history).expect("TW-RES-020", ids == wanted or _bridged(seen, wanted), (wanted,), ids)
    others = [name for each in parts for name in differing(history, each)]
    s.at(history).empty("TW-RES-007", others, "the same state at an id in all responses")
    s.at(history).expect(
        "TW-RES-020", bool(ids) and ids[-1] == wanted[-1], f"{wanted[-1]} as the last id", ids[-2:]
    )


@check("TW-RES-019", "TW-RES-020")
async def running_job_resumes_from_earlier_ids(s: Session) -> None:
    """While a job runs, a cursor with an id far before the head returns exactly the events after that id."""
    steps = [step for n in range(8) for step in ({"append": f"né 😀 {n} "}, {"sleep_ms": 20})]
    sample = s.server.script_sample(*steps, {"sleep_ms": 500}, {"append": "end"}) or s.growing_sample()
    job = await s.submit(sample)
    async with s.follow(job, "0-0") as reader:
        await reader.until(
            lambda now: len(now.logged) >= MIN_GROWTH_EVENTS or now.of_type("done"), 30 + sample.seconds
        )
        held = reader.exchange.logged_ids
        if len(held) < MIN_GROWTH_EVENTS:
            s.skip_no_occasion(f"the job logged only {len(held)} events")
        cursors = [each or "" for each in (held[0], held[1], held[len(held) // 2])]
        answers = await s.concurrently(lambda cursor: s.stream(job, cursor), cursors)
    history = await s.history(job)
    for cursor, answer in zip(cursors, answers, strict=True):
        if cursor in history.logged_ids:
            _judge_remainder(s, answer, history, history.logged_ids.index(cursor))
    if not s.assertions:
        s.skip_no_occasion("the server had trimmed the events after each of the ids")


def _bridged(seen: Sequence[Block], wanted: Sequence[str | None]) -> bool:
    """Whether each diff continues from the event before it. Merged diffs must not leave a gap."""
    last = 0
    for block in seen:
        _, seq = key(block.id) or (0, 0)
        if block.type == "message" and _base(block, seq) != last:
            return False
        last = seq
    return bool(wanted)


@check("TW-RES-009")
async def last_event_id_takes_precedence_over_after(s: Session) -> None:
    """The header `Last-Event-ID` takes precedence over the query parameter `after`. If the header is missing or empty,
    `after` applies.
    """
    job, history = await s.run_to_end(s.growing_sample())
    ids = [block.id or "" for block in history.logged]
    early, late = ids[0], ids[-2]
    alone = await s.stream(job, query=f"?after={late}")
    s.at(alone).equal("TW-RES-009", alone.logged_ids, ids[-1:], f"the events after {late}")
    for name in ("Last-Event-ID", "last-event-id", "LAST-EVENT-ID"):
        both = await s.stream(job, query=f"?after={early}", header={name: late})
        s.at(both).equal(
            "TW-RES-009", both.logged_ids, ids[-1:], f"the events after {late}, the value of {name}"
        )
    empty = await s.stream(job, query=f"?after={late}", header={"Last-Event-ID": ""})
    s.at(empty).equal(
        "TW-RES-009", empty.logged_ids, ids[-1:], f"the events after {late}, because Last-Event-ID is empty"
    )


@check("TW-RES-010", "TW-RES-022", "TW-RES-023", "TW-RES-016", "TW-RES-015", "TW-DIF-010", "TW-FRM-055")
async def ended_job_without_cursor_returns_snapshot_and_done(s: Session) -> None:
    """Without a cursor, the stream of an ended job is a snapshot of the state just before `done`, followed by `done`."""
    job, history = await s.run_to_end(s.growing_sample())
    whole = history.logged
    for query, header in (("", {}), ("?after=", {}), ("", {"Last-Event-ID": ""})):
        answer = await s.stream(job, query=query, header=header)
        kinds = answer.logged_types
        if not s.at(answer).expect("TW-RES-010", kinds[:1] == ["snapshot"], "a snapshot first", kinds):
            continue
        snapshot = answer.logged[0]
        wanted = f"the id {whole[-2].id}, which is the last one before done"
        s.at(answer, snapshot).equal("TW-RES-022", snapshot.id, whole[-2].id, wanted)
        s.at(answer, snapshot).equal(
            "TW-RES-016", snapshot.id, whole[-2].id, f"the id of the last change, {whole[-2].id}"
        )
        status = snapshot.member("state", {}).get("status")
        runs = status not in apply_diffs.JOB_ENDS
        s.at(answer, snapshot).expect("TW-DIF-010", runs, "a status that is not final", status)
        separate = runs and kinds[-1] == "done"
        s.at(answer, snapshot).expect("TW-FRM-055", separate, "a separate done event", kinds)
        same = contents(answer.logged[1:]) == contents(whole[-1:])
        s.at(answer).expect("TW-RES-023", same, "done with its original id and data", kinds)
        reason = snapshot.member("reason")
        sound = reason == "compacted" or whole[-2].type == "snapshot"
        s.at(answer, snapshot).expect("TW-RES-015", sound, "the reason compacted", reason)


@check("TW-RES-011", "TW-RES-012")
async def malformed_cursor_returns_400(s: Session) -> None:
    """A cursor that is not a valid event id gets 400 `bad_cursor`, and a valid event id gets the stream."""
    job, history = await s.run_to_end(s.server.any_sample() or s.growing_sample())
    for cursor in INVALID_IDS:
        answer = await s.stream(job, query=f"?after={quote(cursor)}")
        s.at(answer).refused("TW-RES-011", 400, "bad_cursor", json_text(cursor))
    control = await s.stream(job, query=f"?after={history.logged[0].id}")
    s.at(control).response("TW-RES-012", control.is_stream, f"a stream for {history.logged[0].id}")


@check("TW-RES-012")
async def cursor_of_done_returns_204(s: Session) -> None:
    """A cursor that is the id of the `done` event gets 204, and so does the reserved id `0-1` if the server declares
    `inband_problems`.
    """
    job, history = await s.run_to_end(s.server.any_sample() or s.growing_sample())
    for cursor in (history.logged[-1].id or "", *s.reserved_cursors()):
        async with s.follow(job, cursor) as stream:
            await stream.until(lambda now: now.ended, 5)
            s.at(stream.exchange).status("TW-RES-012", 204, f"for {cursor}")


@check("TW-RES-012", "TW-RES-047", "TW-RES-016")
async def unknown_cursor_returns_rewound_snapshot(s: Session) -> None:
    """If the id in a cursor is above the last id or has an unknown epoch, the stream consists of a `rewound` snapshot
    and all later events.
    """
    job, history = await s.run_to_end(s.growing_sample())
    head = key(history.logged[-1].id) or (1, 1)
    for cursor, requirement in (
        (f"{head[0]}-{head[1] + 5}", "TW-RES-047"),
        (f"{head[0]}-{10**15 - 1}", "TW-RES-047"),
        (f"{head[0] + 40000}-2", "TW-RES-012"),
        (f"{10**10 - 1}-1", "TW-RES-012"),
    ):
        answer = await s.stream(job, cursor)
        first = answer.logged[0] if answer.logged else None
        sound = first is not None and first.snapshot_reason == "rewound"
        wanted = f"a snapshot with the reason `rewound` for {cursor}"
        got = f"{answer.status} {json_text(contents(answer.logged[:1]))}"
        s.at(answer, first).expect(requirement, sound, wanted, got)
        if sound and first is not None:
            s.at(answer, first).equal(
                "TW-RES-016", first.id, history.logged[-2].id, f"the id {history.logged[-2].id}"
            )
            done, wanted = answer.of_type("done"), "the events after the snapshot, up to done"
            s.at(answer).expect("TW-RES-012", done, wanted, answer.logged_types)


@check(
    "TW-RES-018",
    "TW-RES-020",
    "TW-RES-024",
    "TW-RES-015",
    "TW-RES-012",
    "TW-RES-025",
    after="state",
    seconds=3,
)
async def trimmed_log_resumes_with_a_snapshot(s: Session) -> None:
    """If the server has trimmed a log, a stream from an old cursor or from `0-0` consists of a snapshot and of events
    that apply to that snapshot.
    """
    limit = s.server.limits.get("max_log_bytes")
    if limit is None:
        s.skip_untested("the server declares no limit max_log_bytes")
    if limit > MAX_TESTED_LOG or limit * 1.7 > s.server.limits.get("max_state_bytes", 0):
        s.skip_untested(
            f"max_log_bytes is {limit}, but the check needs at most {MAX_TESTED_LOG} and a much larger max_state_bytes"
        )
    piece = max(1, min(limit // 8, s.server.limits.get("max_event_bytes", limit) // 2))
    steps = [step for _ in range(limit * 9 // 8 // piece) for step in ({"bytes": piece}, {"sleep_ms": 12})]
    sample = s.script_sample(*steps)
    job = await s.submit(sample)
    end, old = await s.stream(job), await s.stream(job, "1-2")
    s.skip_unless(end.logged and old.logged, f"{end} returned {end.status} without a logged event")
    head = key(end.logged[-1].id) or (1, 1)
    if old.logged[0].id == "1-3" and len(old.logged) >= head[1] - 2:
        s.skip_no_occasion("the server kept more than max_log_bytes of this log")
    first = old.logged[0]
    sound = first.type == "snapshot" and first.id == f"{head[0]}-{head[1] - 1}"
    s.at(old, first).expect("TW-RES-012", sound, "a snapshot at the head", f"{first.type} {first.id}")
    s.at(old, first).equal("TW-RES-015", first.snapshot_reason, "compacted", "the reason compacted")
    oldest = await s.stream(job, "0-0")
    s.skip_unless(oldest.logged, f"{oldest} returned {oldest.status} without a logged event")
    first = oldest.logged[0]
    reason = first.snapshot_reason
    sound = reason == ("start" if first.id == "1-1" else "compacted")
    wanted = "a snapshot with the oldest id in the log and the reason `start` or `compacted`"
    s.at(oldest, first).expect("TW-RES-018", sound, wanted, f"{first.type} {reason} {first.id}")
    edge = await s.stream(job, first.id or "")
    lost = differing(oldest, edge)
    wanted = f"the events after {first.id}, or other events with the same states"
    got = f"{json_text(edge.logged_ids[:3])}, with different states at {json_text(lost[:3])}"
    s.at(edge).expect("TW-RES-020", edge.logged and not lost, wanted, got)
    ended = old.of_type("done") and oldest.of_type("done")
    s.at(oldest).expect("TW-RES-025", ended, "a snapshot and the following events, up to done")
    folded = Histories([oldest]).streams[0][1][-1]
    s.at(oldest).expect(
        "TW-RES-018", folded.after is not None, "events that apply to the snapshot", str(folded.error or "")
    )
    s.at(oldest).expect("TW-RES-024", oldest.of_type("done"), "done, because it is never trimmed")


@check("TW-OVR-025", "TW-JOB-063", seconds=1)
async def disconnect_does_not_affect_the_job(s: Session) -> None:
    """A job continues after all its readers have disconnected, and ends with its usual status."""
    sample = s.long_running_sample()
    async with s.wire.open("POST", sample.submit_to, json=sample.body, header=EVENT_STREAM) as stream:
        await stream.until(value_has_grown, 30)
    status = await s.final_status(s.job(sample, stream.exchange))
    s.at(stream.exchange).equal(
        ("TW-JOB-063", "TW-OVR-025"), status, sample.ended, f"the status {sample.ended}"
    )


@check("TW-DIF-066", "TW-RES-007", seconds=1)
async def concurrent_readers_see_the_same_states(s: Session) -> None:
    """Two concurrent readers of a job receive the same `done`, and have equal states at each event id that both
    received.
    """
    sample = s.server.long_running_sample() or s.growing_sample()
    job = await s.submit(sample)
    async with s.follow(job, "0-0") as one, s.follow(job, "0-0") as other:
        first, second = await one.to_end(60 + sample.seconds), await other.to_end(60 + sample.seconds)
    states = [
        {step.block.id: step.after.value for step in steps if step.after is not None}
        for _, steps in Histories([first, second]).streams
    ]
    s.skip_unless(len(states) == 2, "one of the two readers received no event")
    last = [max(found, key=lambda name: key(name) or (0, 0), default="") for found in states]
    s.at(second).expect("TW-DIF-066", last[0] == last[1], "the same last id for both readers", last)
    differing = [name for name in states[0].keys() & states[1].keys() if states[0][name] != states[1][name]]
    s.at(second).empty("TW-RES-007", differing, "equal states at equal ids")
