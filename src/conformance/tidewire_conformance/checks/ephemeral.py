"""Sections 3.8 to 3.10: events that are not logged: queue, progress, ping and goaway."""

from itertools import pairwise

from tidewire_conformance.event_stream import Block
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session


@check("TW-FRM-064", "TW-FRM-065", "TW-FRM-063", over_all=True)
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
    work = s.server.script(
        {"append": "x"}, {"progress": {"current": 3, "total": 7, "unit": "step"}}, {"sleep_ms": 20_000}
    )
    if work is None:
        s.untested("needs tidewire.script")
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


@check("TW-DIF-004", over_all=True)
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
