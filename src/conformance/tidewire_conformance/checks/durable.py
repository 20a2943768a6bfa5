"""Checks of durability: restarts, expiry and replicas.

Most of these checks need one of the options `--restart-cmd`, `--expire-cmd` and `--replica-url`.
"""

import asyncio
import secrets
from itertools import pairwise
from urllib.parse import urlsplit

from tidewire_conformance.checks.deadlines import MIN_GRACE_MS
from tidewire_conformance.checks.jobs import first_has_ended
from tidewire_conformance.checks.resume import contents, differing, is_trimmed, same_log
from tidewire_conformance.judging.apply_diffs import ITEM_ENDS
from tidewire_conformance.judging.state_history import (
    Histories,
    id_text,
    items_of,
    job_of,
    key,
    value_has_grown,
)
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import EVENT_STREAM, Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Wire

OPENS_AN_EPOCH = frozenset({"restart", "rewound"})
"""Reasons of a snapshot that opens a new epoch."""
RESTART_SECONDS = 60.0
"""Timeout, in seconds, for a command such as `--restart-cmd`, and again for the first response after the command.

The option `--patience` multiplies this timeout.
"""

GATEWAY_STATUSES = {502, 503, 504}
"""Status codes with which a gateway responds while the server behind it is down."""

SECONDS_WITHOUT_READER = 1.0
"""Time, in seconds, that the reader of a job with a grace period waits after a restart before it opens a new stream."""


async def _run_command(s: Session, command: str) -> None:
    """Run a shell command that was passed on the command line, such as `--restart-cmd`.

    The check is inconclusive if the command fails or times out.
    """
    process = await asyncio.create_subprocess_shell(command)
    try:
        async with asyncio.timeout(RESTART_SECONDS * s.wire.patience):
            code = await process.wait()
    except TimeoutError:
        process.kill()
        s.inconclusive(
            f"the command {json_text(command)} had not ended after {RESTART_SECONDS * s.wire.patience:g} s"
        )
    if code:
        s.inconclusive(f"the command {json_text(command)} ended with exit code {code}")


async def _restart(s: Session, command: str) -> float:
    """Restart the server, and wait until it responds. Return a time, in seconds, for which the server was certainly down."""
    restart = asyncio.create_task(_run_command(s, command))
    failed: list[float] = []
    deadline = s.wire.now() + 2 * RESTART_SECONDS * s.wire.patience
    # A gateway may respond while the server is down. The run's record does not contain these responses, because checks of the
    # whole run would judge them.
    probe = Wire(s.wire.base_url, header=s.wire.header, patience=s.wire.patience)
    try:
        while s.wire.now() < deadline:
            if ended := restart.done():
                await restart  # raises an exception if the command failed
            try:
                is_up = (await probe.request("GET", "/v1")).status not in GATEWAY_STATUSES
            except IncompleteResponseError:
                is_up = False
            if not is_up:
                failed.append(s.wire.now())
            elif ended:
                break
            await asyncio.sleep(0.2)
        else:
            s.inconclusive("the server did not answer any request after the restart")
    finally:
        restart.cancel()
    return failed[-1] - failed[0] if failed else 0.0


def _restart_command(s: Session) -> str:
    """Return the command that restarts the server. If the server's jobs need not survive a restart, skip the check."""
    if not s.server.survives_restarts:
        s.skip_not_declared(
            "`durability` is process, so the server does not promise that jobs survive a restart"
        )
    return s.hooks.restart or s.skip_untested("needs --restart-cmd")


async def _judge_token(s: Session, token: RecordedExchange) -> None:
    url = token.member("url")
    if token.status == 200 and isinstance(url, str):
        header = EVENT_STREAM | {"Authorization": None, "Cookie": None}
        opened = await s.get(resolve(token, url), header=header)
        s.at(opened).response(
            "TW-BRW-014", opened.of_type("done"), "the stream, because the token has not expired"
        )


@check(
    "TW-DSC-010",
    "TW-OVR-023",
    "TW-OVR-024",
    "TW-OVR-019",
    "TW-RES-033",
    "TW-RES-034",
    "TW-RES-035",
    "TW-RES-037",
    "TW-RES-049",
    "TW-RES-050",
    "TW-RES-051",
    "TW-DEP-009",
    "TW-RES-012",
    "TW-FRM-060",
    "TW-BRW-014",
    alone=True,
)
async def sent_events_survive_a_restart(s: Session) -> None:
    """If the declared `durability` is above `process`, everything that the server sent survives a restart, and each job
    still ends.
    """
    command = _restart_command(s)
    ended, history = await s.run_to_end(s.growing_sample())
    token = "stream_tokens" in s.server.capabilities and await s.wire.request(
        "POST", f"{ended.path}/stream-token"
    )
    sample = s.long_running_sample(1.5)
    running = await s.submit(sample)
    async with s.follow(running, "0-0") as stream:
        await stream.until(value_has_grown)
        seen = list(stream.exchange.logged)
    await _restart(s, command)
    again = await s.stream(ended, "0-0")
    same = contents(again.logged)[-1:] == contents(history.logged)[-1:] and not differing(history, again)
    got = f"{again.status} {again.code} {json_text(again.logged_ids)}"
    s.at(again).expect(("TW-DSC-010", "TW-OVR-023"), same, "the history sent before the restart", got)
    if token:
        await _judge_token(s, token)
    read = await s.read(running)
    if not s.at(read).response("TW-OVR-024", read.status == 200, "the job submitted before the restart"):
        return
    rest = await s.stream(running, seen[-1].id or "")
    first = rest.logged[0] if rest.logged else None
    new = first is not None and first.type == "snapshot"
    continues = first is not None and (key(first.id) or (0, 0))[0] == (key(seen[-1].id) or (0, 0))[0]
    restarted = first is not None and first.snapshot_reason in OPENS_AN_EPOCH
    # A `compacted` snapshot replaces trimmed events (TW-RES-024), which may include the snapshot that opened the epoch.
    compacted = first is not None and first.snapshot_reason == "compacted"
    wanted = "an event of the same epoch, or a snapshot whose reason is `restart`, `rewound` or `compacted`"
    sound = continues or restarted or compacted
    s.at(rest).expect("TW-RES-035", sound, wanted, contents(rest.logged[:1]))
    where = s.at(rest, first)
    held, own = (key(each.id if each else "") or (0, 0) for each in (seen[-1], first))
    hello = rest.of_type("hello")
    head = key(hello[0].member("head")) if hello else None
    s.at(rest).expect(
        "TW-FRM-060", head and head >= held, f"a head at or after {id_text(held)}", id_text(head)
    )
    where.expect(
        "TW-RES-034", continues or new, "a snapshot as the first event of a new epoch", first and first.type
    )
    if restarted:
        least, most = held[0] + 1, held[0] + 10_000
        where.expect("TW-RES-033", least <= own[0] <= most, f"an epoch from {least} to {most}", own[0])
    s.at(rest).expect("TW-DEP-009", rest.of_type("done"), "done after the restart", rest.logged_types[-2:])
    whole = await s.stream(running, "0-0")
    _judge_sent_events(s, seen[-1].id or "", whole)
    _judge_opening_snapshots(s, whole)
    await _judge_old_cursors(s, running, whole)
    if new and first is not None and first.member("reason") == "restart":
        begun = 1 + sum(block.snapshot_reason == "restart" for block in whole.logged)
        attempt = (await s.read(running)).member("attempt")
        counted = attempt == begun or (begun < 2 and isinstance(attempt, int) and attempt >= 2)
        s.at(rest).expect("TW-RES-037", counted, f"attempt {begun}", attempt)
    _judge_new_attempts(s, running, whole)


def _judge_sent_events(s: Session, last: str, whole: RecordedExchange) -> None:
    """Judge whether an untrimmed log still reaches the last event that was sent before the restart. A server may merge earlier
    events (TW-DIF-042), and other checks notice gaps.
    """
    if is_trimmed(whole):
        return
    epoch, seq = key(last) or (0, 0)
    reached = max(
        (found[1] for each in whole.logged_ids if (found := key(each)) and found[0] == epoch), default=0
    )
    wanted = f"the events that were sent before the restart, up to {last}"
    s.at(whole).expect(
        ("TW-DSC-010", "TW-OVR-023"),
        reached >= seq,
        wanted,
        f"a log that ends at {epoch}-{reached} in this epoch",
    )


def _judge_opening_snapshots(s: Session, whole: RecordedExchange) -> None:
    """Judge the reason of each snapshot that opens an epoch in an untrimmed log."""
    if is_trimmed(whole):
        return
    for before, block in pairwise(whole.logged):
        if (key(before.id) or (0, 0))[0] < (key(block.id) or (0, 0))[0] and block.type == "snapshot":
            reason = block.snapshot_reason
            wanted = "a first snapshot of the epoch whose reason is `restart` or `rewound`"
            s.at(whole, block).expect("TW-RES-035", reason in OPENS_AN_EPOCH, wanted, reason)


def _judge_new_attempts(s: Session, job: Job, whole: RecordedExchange) -> int:
    """Judge the items in each snapshot that starts a new attempt after a server restart. Return the number of
    snapshots.

    Args:
        s: Session of the check.
        job: The job.
        whole: Stream with the whole log of the job.
    """
    continues = s.server.endpoints[job.sample.endpoint].continues
    start = whole.logged[0] if whole.logged else None
    initial = items_of(start.members) if start is not None and start.snapshot_reason == "start" else None
    judged = 0
    for step in next((steps for _, steps in Histories([whole]).streams), []):
        if step.block.snapshot_reason != "restart" or step.before is None or step.after is None:
            continue
        judged += 1
        items, where = step.after.value["items"], s.at(whole, step.block)
        for old, new, first in zip(step.before.value["items"], items, initial or items, strict=False):
            if old["status"] in ITEM_ENDS:
                where.equal("TW-OVR-019", new, old, ("the same ended item as before:", old))
                continue
            queued = new["status"] == "queued"
            where.expect("TW-RES-049", queued, "an item that starts again as queued", new)
            if not continues:
                retracted = not new.get("value") or new.get("value") == first.get("value")
                expected = ("the initial value:", first.get("value"))
                where.expect("TW-RES-050", retracted, expected, new.get("value"))
            elif "stable" not in old:
                same = new.get("value") == old.get("value")
                expected = ("the value as it was logged:", old.get("value"))
                where.expect("TW-RES-051", same, expected, new.get("value"))
    return judged


@check("TW-RES-051", "TW-RES-049", alone=True)
async def interrupted_job_keeps_its_values(s: Session) -> None:
    """At an endpoint with `"on_restart": "continue"`, a job that runs again after a restart keeps the values of its
    unfinished items.
    """
    if not any(endpoint.continues for endpoint in s.server.endpoints.values()):
        s.skip_not_declared('no endpoint says `"on_restart": "continue"`')
    command = _restart_command(s)
    sample = s.server.continuing_sample() or s.skip_untested(
        'no endpoint with `"on_restart": "continue"` has an example that runs for long enough'
    )
    job = await s.submit(sample)
    async with s.follow(job, "0-0") as stream:
        await stream.until(value_has_grown)
    await _restart(s, command)
    whole = await s.history(job, sound=False)  # if a kept value is wrong, the log has further faults
    if not _judge_new_attempts(s, job, whole):
        if is_trimmed(whole):
            s.skip_no_occasion("the server trimmed the snapshot that starts the new attempt from the log")
        s.inconclusive("no new attempt started, because the job had ended before the restart")


async def _judge_old_cursors(s: Session, job: Job, whole: RecordedExchange) -> None:
    """Judge two cursors from the epoch before the restart.

    The first cursor is the id of an event in that epoch's log. The second cursor is beyond the end of that log, so the
    server must respond with a `rewound` snapshot.
    """
    old = [block.id for block in whole.logged if (key(block.id) or (0, 0))[0] == 1]
    if len(old) in {0, 1, len(whole.logged)} or old[0] != "1-1":
        return  # The server trimmed the log, or did not begin a new epoch, so there is nothing to judge.
    answer = await s.stream(job, old[0] or "")
    follows = answer.logged and answer.logged[0].snapshot_reason != "rewound" and not differing(whole, answer)
    s.at(answer).expect("TW-RES-012", follows, f"the events after {old[0]}", contents(answer.logged[:1]))
    _, end = key(old[-1]) or (0, 0)
    past = await s.stream(job, f"1-{end + 1}")
    rewound = past.logged and past.logged[0].snapshot_reason == "rewound"
    wanted = f"a snapshot with the reason `rewound`, because epoch 1 ends with the id {old[-1]}"
    s.at(past).expect("TW-RES-012", rewound, wanted, contents(past.logged[:1]))


@check("TW-OVR-024", "TW-OVR-019", "TW-JOB-062", alone=True)
async def ended_items_keys_and_purges_survive_a_restart(s: Session) -> None:
    """After a restart, idempotency keys still return their jobs, deleted jobs stay deleted, and ended items keep their
    values.
    """
    command = _restart_command(s)
    sample = s.any_sample()
    header = {"Idempotency-Key": secrets.token_hex(16)} if s.wire.header else {}
    first = await s.post(sample, header=header)
    purged, _ = await s.run_to_end(sample)
    await s.wire.request("DELETE", purged.path)
    two = await s.submit(uneven) if (uneven := s.server.uneven_batch_sample()) else None
    before = s.items(await s.read_until(two, first_has_ended)) if two else []
    await _restart(s, command)
    if "list" in s.server.capabilities:
        listed = await s.get("/v1/jobs?limit=1000")
        ids = [each["id"] for each in listed.member("jobs", [])]
        got = f"{listed.status}, {len(ids)} jobs"
        s.at(listed).expect("TW-OVR-024", first.member("id") in ids, "the job in the list of jobs", got)
    if header:
        again = await s.post(sample, header=header)
        wanted = f"the job {first.member('id')} for its idempotency key"
        got = f"{again.status} {again.member('id')}"
        s.at(again).expect("TW-OVR-024", again.member("id") == first.member("id"), wanted, got)
    if "delete" in s.server.capabilities and s.server.limits.get("tombstone_ttl_s", 0):
        s.at(await s.read(purged)).refused(
            "TW-JOB-062", 410, "job_expired", "a job purged before the restart"
        )
    if two is None or not before:
        return
    after = await s.read(two)
    held = before[0]
    if s.at(after).response("TW-OVR-024", after.status == 200, "the job submitted before the restart"):
        for block in (await s.stream(two, "0-0")).logged:
            if block.snapshot_reason == "restart":
                restarted = {"value": None, **block.typed.validated["state"]["items"][0]}
                s.at(after, block).equal(
                    "TW-OVR-019", restarted, held, ("the same ended item as before:", held)
                )
        item = s.items(await s.read(two))[0]
        s.at(after).equal("TW-OVR-019", item, held, ("an unchanged item after its end:", held))


@check("TW-JOB-067", needs=["disconnect"], alone=True)
async def restart_does_not_count_towards_the_grace_period(s: Session) -> None:
    """If a restart closes the stream of a job with `on_disconnect: cancel`, the job is not cancelled if its reader returns
    within the grace period after the restart.
    """
    command = _restart_command(s)
    grace = s.server.limits.get("min_grace_ms", MIN_GRACE_MS) / 1000
    sample = s.long_running_sample(2 * SECONDS_WITHOUT_READER)
    job = await s.submit(sample, on_disconnect="cancel", grace_ms=round(1000 * grace))
    async with s.follow(job) as stream:
        await stream.until(value_has_grown, 30)
        closed = s.wire.now()
        down = await _restart(s, command)
    await asyncio.sleep(SECONDS_WITHOUT_READER)
    read = await s.read(job)
    ended = read if read.member("done") else await s.stream(job)
    done = (
        ended.of_type("done")[0].members
        if ended is not read and ended.of_type("done")
        else read.member("done", {})
    )
    counted = s.wire.now() - closed - down
    if done.get("status") == "cancelled" and counted >= grace:
        s.inconclusive(f"the suite took longer than the grace period of {grace:g} s to open the stream again")
    wanted = f"a job that is not cancelled, because its reader returned {counted:.1f} s after the restart"
    s.at(ended).expect("TW-JOB-067", done.get("status") != "cancelled", wanted, done.get("status"))


@check("TW-RES-028", "TW-JOB-033", alone=True)
async def expired_job_returns_410(s: Session) -> None:
    """Each request for an expired job gets 410 `job_expired` until `tombstone_ttl_s` has passed."""
    command = s.hooks.expire or s.skip_untested("needs --expire-cmd")
    sample = s.any_sample()
    job, history = await s.run_to_end(sample)
    header = {"Idempotency-Key": secrets.token_hex(16)} if s.wire.header else {}
    keyed = await s.post(sample, header=header)
    await s.history(Job(str(keyed.member("id")), sample, keyed))
    await _run_command(s, command)
    if s.server.limits.get("tombstone_ttl_s", 0) < 1:
        s.skip_no_occasion("tombstone_ttl_s is 0")
    s.at(await s.read(job)).refused("TW-RES-028", 410, "job_expired")
    s.at(await s.stream(job, history.logged[-1].id or "")).refused("TW-RES-028", 410, "job_expired")
    s.at(await s.cancel(job)).refused("TW-RES-028", 410, "job_expired", "a request to cancel")
    if header:
        again = await s.post(sample, header=header)
        s.at(again).refused("TW-JOB-033", 410, "job_expired", "the key of an expired job")


@check("TW-DEP-006", "TW-RES-007", "TW-RES-045", "TW-JOB-028", "TW-BRW-014", "TW-JOB-062")
async def any_replica_serves_any_job(s: Session) -> None:
    """A replica can read, stream, resume, list, cancel and purge the jobs of another replica, and accepts the
    idempotency keys of these jobs.
    """
    if not s.hooks.replica:
        s.skip_no_occasion("the run has no second replica; pass the URL of one with --replica-url")
    other = s.wire.as_caller(s.wire.header, base_url=s.hooks.replica)
    job, history = await s.run_to_end(s.growing_sample())
    await _judge_replica_lag(s, other)
    there = await s.stream(job, "0-0", wire=other)
    s.at(there).response("TW-DEP-006", there.is_stream, "200 and the stream")
    same = same_log(history, there)
    s.at(there).expect("TW-RES-007", same, "the same history as at the first replica", there.logged_ids)
    await _judge_shared_operations(s, other)


async def _judge_shared_operations(s: Session, other: Wire) -> None:
    """Judge idempotency keys, lists, cancel requests, stream tokens and purges across two replicas."""
    sample, can = s.long_running_sample(20), s.server.capabilities
    header = {"Idempotency-Key": secrets.token_hex(16)} if s.wire.header else {}
    first = await s.post(sample, header=header)
    job = Job(str(first.member("id")), sample, first)
    if header:
        again = await other.request("POST", sample.submit_to, json=sample.body, header=header)
        wanted = f"the job {job.id} for its idempotency key"
        got = f"{again.status} {again.member('id')}"
        s.at(again).expect("TW-JOB-028", again.member("id") == job.id, wanted, got)
    if "list" in can:
        listed = await other.request("GET", "/v1/jobs?limit=1000")
        ids = [each["id"] for each in listed.member("jobs", [])]
        s.at(listed).expect(
            "TW-DEP-006", job.id in ids, f"{job.id} in the list", f"{listed.status}, {len(ids)} jobs"
        )
    async with s.follow(job, "0-0") as stream:
        await other.request("POST", f"{job.path}/cancel")
        ended = await stream.until(lambda now: now.of_type("done"), 10)
        wanted = "a done event soon after the job was cancelled at another replica"
        s.at(stream.exchange).expect("TW-DEP-006", ended, wanted, "the job still runs after 10 s")
    if "stream_tokens" in can:
        token = await s.wire.request("POST", f"{job.path}/stream-token")
        place = urlsplit(resolve(token, str(token.member("url"))))
        bare = EVENT_STREAM | {"Authorization": None}
        opened = await other.request("GET", f"{job.events}?{place.query}", header=bare)
        s.at(opened).response(
            "TW-BRW-014", opened.of_type("done"), "the stream for a token from another replica"
        )
    if "delete" in can and s.server.limits.get("tombstone_ttl_s", 0):
        purge = await other.request("DELETE", job.path)
        s.at(purge).status("TW-DEP-006", 204, "for a purge")
        for wire in (s.wire, other):
            s.at(await wire.request("GET", job.path)).refused(
                "TW-JOB-062", 410, "job_expired", "a purged job"
            )


async def _judge_replica_lag(s: Session, other: Wire) -> None:
    """Judge whether a cursor from one replica works immediately at another replica, even if the other one lags behind."""
    job = await s.submit(s.growing_sample())
    async with s.follow(job, "0-0") as stream:
        while not stream.exchange.of_type("done") and await stream.next():
            cursor = stream.exchange.logged[-1].id if stream.exchange.logged else None
            if cursor is None or stream.exchange.of_type("done"):
                continue
            async with s.follow(job, cursor, wire=other) as there:
                await there.until(lambda now: now.logged)
                first = there.exchange.logged[0] if there.exchange.logged else None
                rewound = first and first.snapshot_reason == "rewound"
                wanted = f"the events after {cursor}, an id that another replica had sent"
                got = "a snapshot with the reason `rewound`" if rewound else there.exchange.status
                s.at(there.exchange, first).expect("TW-RES-045", first and not rewound, wanted, got)


@check("TW-RES-034", "TW-RES-038", "TW-RES-033", whole_run=True)
async def new_epoch_begins_with_a_snapshot(s: Session) -> None:
    """If a new epoch begins in a stream, the first event of that epoch is a snapshot. No epoch begins after `done`. The
    numbers of new epochs are not always one higher than the number before.
    """
    ends: dict[str, int] = {}
    steps: dict[tuple[str, int], int] = {}
    for each in s.wire.record:
        for before, block in pairwise(each.logged):
            old, new = (key(one.id) or (0, 0) for one in (before, block))
            if old[0] < new[0]:
                s.at(each, block).equal("TW-RES-034", block.type, "snapshot", "a snapshot")
                steps[job_of(each), new[0]] = new[0] - old[0]
                # A single step of 1 may be random. Two such steps occur by chance once in 10^8 runs.
                fixed = len(steps) > 1 and {*steps.values()} == {1}
                wanted = "a random step from the epoch before"
                s.at(each, block).expect(
                    "TW-RES-033", not fixed, wanted, f"a step of 1 for {len(steps)} new epochs"
                )
        for block in each.logged:
            epoch = (key(block.id) or (0, 0))[0]
            if block.type == "done":
                ends.setdefault(job_of(each), epoch)
            elif job_of(each) in ends:
                last = ends[job_of(each)]
                wanted = f"no epoch after {last}, in which the job ended"
                s.at(each, block).expect("TW-RES-038", epoch <= last, wanted, epoch)
