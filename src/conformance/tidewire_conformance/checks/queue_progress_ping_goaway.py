"""Sections 3.8 to 3.10: events that are not logged: queue, progress, ping and goaway."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

from tidewire_conformance.judging.state_history import job_bodies, job_of
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Job, Session
from tidewire_conformance.wire.event_stream_decoder import CLOSING, Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import Stream

BEATS = 2
"""Pings that each silent stream is waited for."""


@check("TW-FRM-064", "TW-FRM-065", "TW-FRM-063", whole_run=True)
async def places_are_counted_from_1(s: Session) -> None:
    """`position` of a waiting job is 1 or more, told where it changes; what is not known is left out."""
    seen = [(each, block) for each in s.wire.record if each.is_stream for block in each.of_type("queue")]
    if not seen:
        s.no_occasion("no job of this run waited in a queue that was told of")
    for each, block in seen:
        s.expect(
            "TW-FRM-064", block.json.get("position", 0) >= 1, "1 or more", block.json, at=each, block=block
        )
        s.expect("TW-FRM-065", None not in block.json.values(), "no null", block.json, at=each, block=block)
    for each in {one.number: one for one, _ in seen}.values():
        places = [block.json.get("position") for block in each.of_type("queue")]
        same = [place for before, place in pairwise(places) if before == place]
        s.expect("TW-FRM-063", not same, "each place once, until it changes", places, at=each)
        began = next((at for at, block in enumerate(each.events) if _runs(block)), len(each.events))
        late = [block.type for block in each.events[began:] if block.type == "queue"]
        s.expect(
            "TW-FRM-063", not late, "no place of a job that runs", f"{len(late)} after it had begun", at=each
        )


def _runs(block: Block) -> bool:
    """Whether it tells that its job runs."""
    if block.type == "snapshot" and isinstance(block.json, dict):
        return bool(block.json.get("state", {}).get("status") != "queued")
    return block.type == "message" and b'"/status"' in block.data and b'"running"' in block.data


@check("TW-FRM-067", "TW-FRM-065")
async def progress_is_told_again_on_each_connection(s: Session) -> None:
    """The latest `progress` of an item that runs follows `hello` on a new connection."""
    work = s.scripted(
        {"append": "x"}, {"progress": {"current": 3, "total": 7, "unit": "step"}}, {"sleep_ms": 20_000}
    )
    job = await s.submit(work)
    for _ in range(2):
        async with s.follow(job) as stream:
            came = await stream.until(lambda now: now.of_type("progress"), 5)
            told_ = [block.json for block in stream.exchange.of_type("progress")]
            s.expect(
                "TW-FRM-067",
                came and told_[-1].get("current") == 3,
                "progress 3 of 7",
                told_,
                at=stream.exchange,
            )
            s.expect(
                "TW-FRM-065", came and None not in told_[-1].values(), "no null", told_, at=stream.exchange
            )
    await s.wire.ask("POST", f"{job.path}/cancel")


@check("TW-FRM-066", whole_run=True)
async def progress_of_a_batch_names_its_item(s: Session) -> None:
    """`progress` of a job of several inputs has `item`."""
    batches = {body["id"] for each in s.wire.record for body in job_bodies(each) if body.get("batch") is True}
    for each in (each for each in s.streams() if job_of(each) in batches):
        for block in each.of_type("progress"):
            told = block.json if isinstance(block.json, dict) else {}
            s.expect("TW-FRM-066", "item" in told, "item", told, at=each, block=block)


@check("TW-FRM-068", "TW-FRM-069", "TW-FRM-071", slow=True)
async def a_silent_stream_is_pinged(s: Session) -> None:
    """A stream on which nothing happens gets a `ping` each heartbeat, whoever opened it how, with a head that it holds."""
    beat = s.server.heartbeat
    s.expect("TW-FRM-071", beat <= 15, "a heartbeat of at most 15000 ms", beat * 1000, at=s.server.discovery)
    work = s.scripted({"append": "x"}, {"sleep_ms": int(beat * 1000 * (2 * BEATS + 1)) + 4000})
    async with s.wire.open("POST", work.submit_to, json=work.body, header=EVENT_STREAM) as own:
        await own.until(lambda seen: len(seen.logged) >= 3)
        s.need(
            "/v1/jobs/" in own.exchange.response_header("location"), "the submit was not answered by a stream"
        )
        job = Job(job_of(own.exchange), work, own.exchange)
        without = ["?diffs=0"] if "snapshots_only" in s.server.capabilities else []
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(s.follow(job, query=query)) for query in ["", *without]]
            opened += [await stack.enter_async_context(s.follow(job, own.exchange.logged[-1].id or ""))]
            await asyncio.gather(*(_judge_beats(s, each, beat) for each in [own, *opened]))
        await s.wire.ask("POST", f"{job.path}/cancel")


async def _judge_beats(s: Session, stream: Stream, beat: float) -> None:
    """A stream that is silent from now on; any byte, such as a comment, stands for a ping."""
    seen = stream.exchange
    await stream.until(lambda now: now.of_type("hello"))
    hello = seen.of_type("hello")
    said = hello[0].json.get("heartbeat_ms") if hello and isinstance(hello[0].json, dict) else None
    beat = min(beat, said / 1000) if isinstance(said, int) else beat
    for count in range(1, BEATS + 1):
        before = len(seen.body)

        def more(now: RecordedExchange, before: int = before) -> bool:
            return len(now.body) > before

        came = await stream.until(more, 1.5 * beat + 1)
        s.expect("TW-FRM-068", came, f"ping {count} within {beat:g} s of silence", f"nothing within {1.5 * beat + 1:g} s",
                 at=seen)  # fmt: skip
    held = {block.id or "" for block in seen.logged} | {seen.cursor}
    for ping in seen.of_type("ping"):
        s.expect(
            "TW-FRM-069",
            ping.json.get("head") in held,
            f"a head of {sorted(held)}",
            ping.json,
            at=seen,
            block=ping,
        )


@check("TW-FRM-073", whole_run=True)
async def goaway_says_its_wait_twice(s: Session) -> None:
    """`retry_ms` of a `goaway` is its `retry` field as well."""
    seen = [(each, block) for each in s.streams() for block in each.of_type("goaway")]
    if not seen:
        s.no_occasion("no stream of this run was closed by goaway")
    for each, block in seen:
        s.expect("TW-FRM-073", block.retry == block.json.get("retry_ms"), f"retry:{block.json.get('retry_ms')}",
                 block.retry, at=each, block=block)  # fmt: skip


@check("TW-FRM-072", whole_run=True)
async def no_stream_is_closed_without_a_word(s: Session) -> None:
    """A stream that the server ends holds `done`, `goaway` or a `problem`."""
    for each in (each for each in s.streams() if each.is_whole and not each.check.startswith("durable.")):
        kinds = [block.type for block in each.events]
        s.expect(
            "TW-FRM-072",
            CLOSING & {*kinds},
            "goaway, where a stream is closed before done",
            kinds[-3:],
            at=each,
        )


@check("TW-DIF-004", whole_run=True)
async def ephemeral_events_hold_nothing_of_a_result(s: Session) -> None:
    """They have the members of their tables alone, or such as a later edition may name."""
    tables = {
        "queue": {"position", "eta_ms"}, "progress": {"current", "total", "unit", "phase", "item"},
        "ping": {"head"}, "goaway": {"reason", "retry_ms"},
        "hello": {"protocol", "job", "events", "head", "heartbeat_ms"},
    }  # fmt: skip
    for exchange in s.wire.record:
        for block in exchange.events:
            if block.type in tables and isinstance(block.json, dict):
                more = {name for name in block.json if "value" in name or "text" in name} - tables[block.type]
                s.expect(
                    "TW-DIF-004", not more, "nothing of a result", sorted(more), at=exchange, block=block
                )
