"""Checks for sections 3.8 to 3.10: the ephemeral events `queue`, `progress`, `ping` and `goaway`."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

from tidewire_conformance.judging.server_probe import MAX_HEARTBEAT
from tidewire_conformance.judging.state_history import job_bodies, job_of, value_has_grown
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Session
from tidewire_conformance.wire.event_stream_decoder import CLOSING_TYPES, Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import Stream

PINGS_PER_STREAM = 2
"""Number of pings that the check waits for on each silent stream, unless the heartbeat interval is long."""
LONG_HEARTBEAT = 2.0
"""Heartbeat interval, in seconds, above which the check waits for one ping only, because the whole run waits for it."""
MAX_WAITING_HEARTBEAT = 1.0
"""Longest heartbeat interval, in seconds, at which a check waits for a ping of a job in the queue. No other check runs
during this wait.
"""
LATE_SECONDS = 0.5
"""Time, in seconds, to read an event that arrived while the suite was busy. The option `--patience` multiplies it."""
MAX_OTHER_EVENTS = 50
"""Number of other events after which the check stops waiting for a ping, because the stream is never silent."""


@check("TW-FRM-064", "TW-FRM-065", "TW-FRM-063", whole_run=True)
async def queue_positions_start_at_1(s: Session) -> None:
    """A `queue` event has a `position` of at least 1 and no null member. The same event is not sent twice in a row."""
    seen = [(each, block) for each in s.wire.record if each.is_stream for block in each.of_type("queue")]
    if not seen:
        s.skip_no_occasion("no stream in this run had a queue event")
    for each, block in seen:
        s.at(each, block).expect(
            "TW-FRM-064", block.member("position", 0) >= 1, "a position of at least 1", block.json
        )
        s.at(each, block).expect("TW-FRM-065", not _has_null(block), "no null member", block.json)
    for each in {one.number: one for one, _ in seen}.values():
        places = [block.json for block in each.of_type("queue")]
        same = [place for before, place in pairwise(places) if before == place]
        s.at(each).expect("TW-FRM-063", not same, "no repeated queue event", places)
        began = next((at for at, block in enumerate(each.events) if _shows_running(block)), len(each.events))
        late = [block.type for block in each.events[began:] if block.type == "queue"]
        s.at(each).expect(
            "TW-FRM-063", not late, "no queue event after the job has started", f"{len(late)} queue events"
        )


def _has_null(block: Block) -> bool:
    data = block.json
    return isinstance(data, dict) and None in data.values()


def _shows_running(block: Block) -> bool:
    """Whether the event shows that its job is running."""
    if block.type == "snapshot":
        return bool(block.member("state", {}).get("status", "queued") != "queued")
    return block.type == "message" and b'"/status"' in block.data and b'"running"' in block.data


@check("TW-FRM-067", "TW-FRM-065")
async def progress_is_repeated_on_each_connection(s: Session) -> None:
    """On each new connection, the latest `progress` of a running item follows the `hello` event."""
    sample = s.script_sample(
        {"append": "x"}, {"progress": {"current": 3, "total": 7, "unit": "step"}}, {"sleep_ms": 20_000}
    )
    job = await s.submit(sample)
    for _ in range(2):
        async with s.follow(job) as stream:
            came = await stream.until(lambda now: now.of_type("progress"), 5)
            found = stream.exchange.of_type("progress")
            reported = [block.json for block in found]
            sound = came and found[-1].member("current") == 3
            s.at(stream.exchange).expect("TW-FRM-067", sound, "a progress event with 3 of 7", reported)
            s.at(stream.exchange).expect(
                "TW-FRM-065", came and not _has_null(found[-1]), "no null member", reported
            )
    await s.cancel(job)


@check("TW-FRM-066", whole_run=True)
async def batch_progress_names_its_item(s: Session) -> None:
    """Each `progress` event of a job with several inputs has the member `item`."""
    batches = {body["id"] for each in s.wire.record for body in job_bodies(each) if body.get("batch") is True}
    for each in (each for each in s.streams() if job_of(each) in batches):
        for block in each.of_type("progress"):
            data = block.members
            s.at(each, block).expect("TW-FRM-066", "item" in data, "the member item", data)


@check("TW-FRM-083", "TW-FRM-069", "TW-FRM-071", seconds=6)
async def idle_stream_receives_pings(s: Session) -> None:
    """A silent stream gets a `ping` in each heartbeat interval. The `head` in the ping is an id that the reader already
    has.
    """
    heartbeat, declared = s.server.heartbeat, s.server.discovery_body.get("heartbeat_ms")
    short = declared is None or declared <= 1000 * MAX_HEARTBEAT
    wanted = f"a heartbeat of at most {1000 * MAX_HEARTBEAT:g} ms"
    s.at(s.server.discovery).expect("TW-FRM-071", short, wanted, declared)
    pings = PINGS_PER_STREAM if heartbeat <= LONG_HEARTBEAT else 1
    sample = s.script_sample({"append": "x"}, {"sleep_ms": int(heartbeat * 1000 * (2 * pings + 1)) + 4000})
    async with s.wire.open("POST", sample.submit_to, json=sample.body, header=EVENT_STREAM) as own:
        await own.until(value_has_grown)
        job = s.job(sample, own.exchange)
        s.skip_unless(own.exchange.logged, f"{own.exchange} returned no stream with a logged event")
        without = ["?diffs=0"] if "snapshots_only" in s.server.capabilities else []
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(s.follow(job, query=query)) for query in ["", *without]]
            opened += [await stack.enter_async_context(s.follow(job, own.exchange.logged[-1].id or ""))]
            await asyncio.gather(*(_judge_pings(s, each, heartbeat, pings) for each in [own, *opened]))
        await s.cancel(job)


async def _judge_pings(s: Session, stream: Stream, heartbeat: float, pings: int) -> None:
    """Judge the pings of a silent stream. Every event that the server sends counts as a ping, but a comment does not."""
    seen = stream.exchange
    await stream.until(lambda now: now.of_type("hello"))
    hello = seen.of_type("hello")
    said = hello[0].member("heartbeat_ms") if hello else None
    heartbeat = min(heartbeat, said / 1000) if isinstance(said, int) else heartbeat
    for count in range(1, pings + 1):
        came = await next_ping(s, stream, heartbeat)
        if came is None:
            break
        wanted = f"ping {count} within {heartbeat:g} s without another event"
        s.at(seen).expect("TW-FRM-083", came, wanted, f"no event within {1.5 * heartbeat + 1:g} s")
    held = {block.id or "" for block in seen.logged} | {seen.cursor}
    for ping in seen.of_type("ping"):
        s.at(seen, ping).expect(
            "TW-FRM-069",
            ping.member("head") in held,
            f"one of these heads: {', '.join(sorted(held))}",
            ping.json,
        )


async def judge_ping_of_waiting_job(s: Session, waiting: Stream) -> None:
    """Judge whether the stream of a job that waits in the queue has a ping within the heartbeat interval."""
    patience = 1.5 * s.server.heartbeat + 1
    await waiting.until(lambda now: now.of_type("queue") or now.of_type("ping"), patience)
    came = await next_ping(s, waiting, s.server.heartbeat)
    if came is not None:
        wanted = f"a ping within {s.server.heartbeat:g} s without another event, while the job waits"
        s.at(waiting.exchange).expect("TW-FRM-083", came, wanted, "no event")


async def next_ping(s: Session, stream: Stream, heartbeat: float) -> bool | None:
    """Wait for the next `ping` of a stream, which is due when no other event has arrived for a heartbeat interval.

    A busy machine may delay the ping. Silence therefore counts only if the server then responds to another request, and
    has still sent no event.

    Returns:
        Whether the ping arrived in time. None if no ping is due, because other events arrive, or the stream has ended.
    """
    seen = stream.exchange
    for _ in range(MAX_OTHER_EVENTS):
        count = len(seen.events)

        def more(now: RecordedExchange, count: int = count) -> bool:
            return len(now.events) > count

        if not await stream.until(more, 1.5 * heartbeat + 1) and not seen.ended:
            await s.get("/v1")
            await stream.until(more, LATE_SECONDS)
        if not more(seen):
            return None if seen.ended else False
        if any(block.type == "ping" for block in seen.events[count:]):
            return True
    return None


@check("TW-FRM-073", whole_run=True, idle_stream=True)
async def goaway_retry_equals_retry_ms(s: Session) -> None:
    """The member `retry_ms` of each `goaway` event equals the `retry` field of that event."""
    seen = [(each, block) for each in s.streams() for block in each.of_type("goaway")]
    if not seen:
        s.skip_no_occasion("no stream in this run had a goaway event")
    for each, block in seen:
        s.at(each, block).equal(
            "TW-FRM-073", block.retry, block.member("retry_ms"), f"retry:{block.member('retry_ms')}"
        )


@check("TW-FRM-072", whole_run=True)
async def stream_ends_with_a_closing_event(s: Session) -> None:
    """Each stream that the server ends contains a `done`, `goaway` or `problem` event."""
    for each in (each for each in s.streams() if each.is_whole and not each.check.startswith("durable.")):
        kinds = [block.type for block in each.events]
        wanted = "a done, goaway or problem event before the end of the stream"
        s.at(each).expect("TW-FRM-072", CLOSING_TYPES & {*kinds}, wanted, kinds[-3:])


@check("TW-DIF-004", whole_run=True)
async def ephemeral_events_carry_no_results(s: Session) -> None:
    """Ephemeral events carry no part of a result.

    As a sign of a violation, the check looks for unknown members with `value` or `text` in their names.
    """
    tables = {
        "queue": {"position", "eta_ms"}, "progress": {"current", "total", "unit", "phase", "item"},
        "ping": {"head"}, "goaway": {"reason", "retry_ms"},
        "hello": {"protocol", "job", "events", "head", "heartbeat_ms"},
    }  # fmt: skip
    for exchange in s.wire.record:
        for block in exchange.events:
            if block.type in tables:
                more = {name for name in block.members if "value" in name or "text" in name} - tables[
                    block.type
                ]
                s.at(exchange, block).expect("TW-DIF-004", not more, "no member of a result", sorted(more))
