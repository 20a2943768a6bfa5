"""Checks for section 4.2: cursors in the query parameter `after`, and cursors for jobs that are still running."""

from tidewire_conformance.checks.resume import contents, same_log
from tidewire_conformance.judging.state_history import key, value_has_grown
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Session


@check("TW-RES-009", "TW-RES-012")
async def after_works_like_last_event_id(s: Session) -> None:
    """A cursor in the query parameter `after` is percent-decoded, and has the same effect as one in `Last-Event-ID`."""
    sample = s.any_sample()
    job, history = await s.run_to_end(sample)
    ids = [block.id or "" for block in history.logged]
    for spelt in (ids[-2].replace("-", "%2D"), f"%31{ids[-2][1:]}"):
        answer = await s.stream(job, query=f"?after={spelt}")
        got = answer.logged_ids
        wanted = f"the events after {ids[-2]} for ?after={spelt}"
        s.at(answer).expect("TW-RES-009", got == ids[-1:], wanted, f"{answer.status} {json_text(got)}")
    for cursor in (*s.reserved_cursors(), ids[-1]):
        async with s.follow(job, query=f"?after={cursor}") as stream:
            await stream.until(lambda now: now.ended, 5)
            s.at(stream.exchange).status("TW-RES-012", 204, f"for ?after={cursor}")
    whole = await s.stream(job, query="?after=0-0")
    same = same_log(history, whole)
    s.at(whole).expect("TW-RES-012", same, "the complete log for ?after=0-0", whole.logged_ids)


@check("TW-RES-047", "TW-RES-012", seconds=1)
async def unknown_cursor_of_running_job_returns_rewound_snapshot(s: Session) -> None:
    """If a running job has no event with the id in the cursor, the stream begins with a snapshot whose reason is
    `rewound`, and continues with all later events.
    """
    sample = s.long_running_sample(0.8)
    job = await s.submit(sample)
    async with s.follow(job, "0-0") as stream:
        await stream.until(value_has_grown, 30)
        head = key(stream.exchange.logged[-1].id) if stream.exchange.logged else None
    s.skip_unless(head, "the stream of the running job has no event")
    for cursor in (f"{head[0]}-{head[1] + 1000}", "40000-2") if head else ():
        answer = await s.stream(job, cursor)
        first = answer.logged[0] if answer.logged else None
        sound = first is not None and first.snapshot_reason == "rewound"
        s.at(answer, first).expect(
            "TW-RES-012" if cursor == "40000-2" else "TW-RES-047",
            sound and answer.of_type("done"),
            f"for the cursor {cursor}, a snapshot whose `reason` is `rewound`, followed by the later events",
            f"{answer.status} {json_text(contents(answer.logged[:1]))}",
        )
