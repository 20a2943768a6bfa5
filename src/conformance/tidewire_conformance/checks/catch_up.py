"""Checks for chapter 4: streams that are opened while a job runs."""

import asyncio
from collections.abc import Mapping
from itertools import cycle

from tidewire_conformance.judging.apply_diffs import State
from tidewire_conformance.judging.state_history import Histories, Step, key
from tidewire_conformance.registry import check
from tidewire_conformance.session import Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

STEPS = 160
"""Number of times that the job changes its value while streams are opened."""
STEP_MS = 8
"""Delay between two changes, in milliseconds. Servers merge only changes that follow each other faster."""
READERS = 4
"""Number of streams that are open at the same time."""
EVENTS_AFTER_CATCH_UP = 2
"""Number of live events that each reader reads after the replayed ones."""
CURSORS = (*("", "last") * 8, "0-0")
"""Cursors of a reader's streams, in turn: none, the last id of the previous stream (`last`), and rarely the start of the log."""
MAX_STREAMS = 200
"""Maximum number of streams that the check opens."""


@check("TW-RES-020", "TW-RES-012", "TW-RES-003", seconds=1)
async def no_event_is_lost_between_replay_and_live_events(s: Session) -> None:
    """A stream that is opened while the job changes has no gap between the replayed events and the live ones.

    The suite opens many streams, with and without a cursor, because a gap depends on the moment at which a stream is
    opened.
    """
    steps = [step for n in range(STEPS) for step in ({"append": f"{n} "}, {"sleep_ms": STEP_MS})]
    sample = s.server.script_sample(*steps) or s.growing_sample()
    job = await s.submit(sample)
    parts: list[RecordedExchange] = []
    ended = asyncio.Event()
    await asyncio.gather(*(_open_streams(s, job, parts, ended) for _ in range(READERS)))
    history = await s.history(job, sound=False)
    found = {exchange.number: steps for exchange, steps in Histories([history, *parts]).streams}
    states = {step.block.id: step.after for step in found[history.number]}
    for part in parts:
        steps_of = found.get(part.number, [])
        gap = next((step.refusal for step in steps_of if step.refusal), "")
        requirement = "TW-RES-012" if part.cursor else "TW-RES-003"
        s.at(part).empty(requirement, gap, "events that each continue from the one before")
        lost = [step.block.id for step in steps_of if step.after is None or _differs(step, states)]
        s.at(part).empty("TW-RES-020", lost, "the same states as in the log, at each id")
    if not parts:
        s.inconclusive("the job ended before a stream was opened")


def _differs(step: Step, states: Mapping[str | None, State | None]) -> bool:
    """Whether the state after an event differs from the state in the log at the same id. A trimmed log may have no such id."""
    known = states.get(step.block.id)
    return known is not None and step.after is not None and known.value != step.after.value


async def _open_streams(s: Session, job: Job, parts: list[RecordedExchange], ended: asyncio.Event) -> None:
    """Open streams of a job one after the other until the job has ended. Close each stream after a few live events."""
    last = ""
    for cursor in cycle(CURSORS):
        if ended.is_set() or len(parts) >= MAX_STREAMS:
            return
        async with s.follow(job, last if cursor == "last" else cursor) as stream:
            if not stream.exchange.is_stream:
                return
            parts.append(stream.exchange)
            await stream.until(lambda now: now.logged)
            behind = len(stream.exchange.logged)
            await stream.until(
                lambda now, behind=behind: (  # type: ignore[misc]
                    now.ended or now.of_type("done") or len(now.logged) >= behind + EVENTS_AFTER_CATCH_UP
                )
            )
            seen = stream.exchange
        last = next((block.id or "" for block in reversed(seen.logged) if key(block.id)), last)
        if seen.of_type("done"):
            ended.set()
