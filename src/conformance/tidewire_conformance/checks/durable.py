"""What outlives a restart, an expiry and a replica: it takes a command or a second URL."""

import asyncio
from itertools import pairwise
from typing import Any

from tidewire_conformance.checks.errors import refused, some_work
from tidewire_conformance.checks.resume import differing, growing, told
from tidewire_conformance.history import job_of, key
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session
from tidewire_conformance.wire import NoAnswerError, Wire

RESTART_SECONDS = 60.0
"""How long a command may take, and the server to answer again; times `patience`."""


async def _run(s: Session, command: str) -> None:
    """Run a command of the operator's.

    It is a shell's, as it was typed.
    """
    process = await asyncio.create_subprocess_shell(command)
    try:
        async with asyncio.timeout(RESTART_SECONDS * s.wire.patience):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        s.unclear(f"{command!r} had not ended after {RESTART_SECONDS * s.wire.patience:g} s")
    if code:
        s.unclear(f"{command!r} ended with {code}")


async def _answering(s: Session) -> None:
    for _ in range(int(RESTART_SECONDS * s.wire.patience / 0.2)):
        try:
            await s.wire.ask("GET", "/v1")
        except NoAnswerError:
            await asyncio.sleep(0.2)
        else:
            return
    s.unclear("the server did not answer again after the restart")


@check(
    "TW-DSC-010",
    "TW-OVR-023",
    "TW-OVR-024",
    "TW-RES-033",
    "TW-RES-034",
    "TW-RES-035",
    "TW-RES-036",
    "TW-RES-037",
    "TW-DEP-009",
    alone=True,
)
async def what_was_sent_survives_a_restart(s: Session) -> None:
    """A server that promises more than `process` holds after a restart what it had sent, and ends each job."""
    if s.server.says.get("durability") == "process":
        s.not_declared("`durability` is process: nothing is promised beyond it")
    command = s.hooks.restart or s.untested("needs --restart-cmd")
    ended, history = await s.ended(growing(s))
    work = s.server.lasting(1.5) or s.untested("no example lasts; tidewire.script would serve")
    running = await s.submit(work)
    async with s.follow(running, "0-0") as stream:
        await stream.until(lambda now: len(now.logged) >= 3)
        seen = list(stream.exchange.logged)
    await _run(s, command)
    await _answering(s)
    again = await s.stream(ended, "0-0")
    for sentence in ("TW-DSC-010", "TW-OVR-023"):
        same = told(again.logged)[-1:] == told(history.logged)[-1:] and not differing(history, again)
        s.expect(sentence, same, "the history that was sent before",
                 f"{again.status} {again.code} {[block.id for block in again.logged]}", at=again)  # fmt: skip
    read = await s.read(running)
    if not s.expect(
        "TW-OVR-024", read.status == 200, "the job that was submitted", f"{read.status} {read.code}", at=read
    ):
        return
    rest = await s.stream(running, seen[-1].id or "")
    first = rest.logged[0] if rest.logged else None
    new = first is not None and first.type == "snapshot"
    goes_on = first is not None and (key(first.id) or (0, 0))[0] == (key(seen[-1].id) or (0, 0))[0]
    s.expect("TW-RES-035", goes_on or (new and first is not None and first.json.get("reason") in {"restart", "rewound"}),
             "the same epoch, or a snapshot restart or rewound", told(rest.logged[:1]), at=rest)  # fmt: skip
    where: dict[str, Any] = {"at": rest, "block": first}
    held, own = (key(each.id if each else "") or (0, 0) for each in (seen[-1], first))
    s.expect("TW-RES-034", goes_on or new, "a snapshot that opens a new epoch", first and first.type, **where)
    if new and first is not None and first.json.get("reason") in {"restart", "rewound"}:
        s.expect("TW-RES-033", held[0] < own[0] <= held[0] + 10_000, f"an epoch from {held[0] + 1} to {held[0] + 10_000}",
                 own[0], **where)  # fmt: skip
    s.expect(
        "TW-DEP-009", rest.of_type("done"), "an end", [block.type for block in rest.logged][-2:], at=rest
    )
    if new and first is not None and first.json.get("reason") == "restart":
        attempt = (await s.read(running)).json.get("attempt")
        s.expect("TW-RES-037", isinstance(attempt, int) and attempt >= 2, "attempt 2", attempt, at=rest)
        items = first.json["state"]["items"]
        s.expect(
            "TW-RES-036",
            all(item["status"] == "queued" for item in items),
            "items that begin anew",
            items,
            at=rest,
        )


@check("TW-RES-028", "TW-JOB-033", alone=True)
async def an_expired_job_is_gone(s: Session) -> None:
    """Once its time is over, a job is answered with 410 `job_expired` while its tombstone lives."""
    command = s.hooks.expire or s.untested("needs --expire-cmd")
    job, history = await s.ended(some_work(s))
    await _run(s, command)
    if s.server.limits.get("tombstone_ttl_s", 0) < 1:
        s.no_occasion("tombstone_ttl_s is 0")
    refused(s, "TW-RES-028", await s.read(job), 410, "job_expired")
    refused(s, "TW-RES-028", await s.stream(job, history.logged[-1].id or ""), 410, "job_expired")


@check("TW-DEP-006", "TW-RES-007", "TW-RES-045")
async def any_replica_answers_for_any_job(s: Session) -> None:
    """Another replica reads, streams and resumes a job as the first one does."""
    if s.hooks.replica is None:
        s.no_occasion("no replica was given with --replica-url")
    other = Wire(s.hooks.replica.base_url, header=s.hooks.replica.header, patience=s.wire.patience, record=s.wire.record,
                 began=s.wire.began)  # fmt: skip
    other.check = s.wire.check
    job, history = await s.ended(growing(s))
    await _is_not_behind(s, other)
    there = await s.stream(job, "0-0", wire=other)
    s.expect("TW-DEP-006", there.is_stream, "200 and the stream", f"{there.status} {there.code}", at=there)
    s.expect(
        "TW-RES-007",
        told(there.logged) == told(history.logged),
        "the same history",
        [b.id for b in there.logged],
        at=there,
    )


async def _is_not_behind(s: Session, other: Wire) -> None:
    """A cursor that one replica has just given is held by the others, however far behind they are."""
    job = await s.submit(growing(s))
    async with s.follow(job, "0-0") as stream:
        while not stream.exchange.of_type("done") and await stream.next():
            cursor = stream.exchange.logged[-1].id if stream.exchange.logged else None
            if cursor is None or stream.exchange.of_type("done"):
                continue
            async with s.follow(job, cursor, wire=other) as there:
                await there.until(lambda now: now.logged)
                first = there.exchange.logged[0] if there.exchange.logged else None
                rewound = first and first.type == "snapshot" and first.json.get("reason") == "rewound"
                s.expect("TW-RES-045", first and not rewound, f"the events after {cursor}, which another replica has sent",
                         "a snapshot, rewound" if rewound else there.exchange.status, at=there.exchange, block=first)  # fmt: skip


@check("TW-RES-034", "TW-RES-038", over_all=True)
async def epochs_are_opened_by_a_snapshot(s: Session) -> None:
    """The first event of another epoch on a connection is a snapshot, and none comes after `done`."""
    ends: dict[str, int] = {}
    for each in s.wire.record:
        for before, block in pairwise(each.logged):
            old, new = (key(one.id) or (0, 0) for one in (before, block))
            if old[0] < new[0]:
                s.expect(
                    "TW-RES-034", block.type == "snapshot", "a snapshot", block.type, at=each, block=block
                )
        for block in each.logged:
            epoch = (key(block.id) or (0, 0))[0]
            if block.type == "done":
                ends.setdefault(job_of(each), epoch)
            elif job_of(each) in ends:
                s.expect("TW-RES-038", epoch <= ends[job_of(each)], f"no epoch after {ends[job_of(each)]}, which has ended",
                         epoch, at=each, block=block)  # fmt: skip
