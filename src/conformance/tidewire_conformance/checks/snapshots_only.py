"""Checks for section 6.10: streams without diffs, which a client requests with `diffs=0`."""

from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Session


@check(
    "TW-JOB-072", "TW-JOB-073", "TW-JOB-074", "TW-JOB-075", "TW-JOB-084", needs=["snapshots_only"], seconds=1
)
async def diffs_0_returns_snapshots_and_done(s: Session) -> None:
    """With `?diffs=0`, a stream has only ephemeral events, `done`, and snapshots at least `min_interval_ms` apart."""
    steps = [step for n in range(30) for step in ({"append": f"{n} "}, {"sleep_ms": 25})]
    sample = s.server.script_sample(*steps) or s.server.long_running_sample() or s.any_sample()
    job = await s.submit(sample)
    least = max(int(s.server.discovery_body.get("min_interval_ms", 0)), 300)
    answer = await s.stream(job, query=f"?diffs=0&min_interval_ms={least}")
    kinds = [block.type for block in answer.events]
    sound = answer.is_stream and "message" not in kinds and kinds[-1:] == ["done"]
    got = f"{answer.status} {json_text(kinds[-4:])}"
    s.at(answer).expect("TW-JOB-072", sound, "no diff, and done as the last event", got)
    at = [block.at for block in answer.of_type("snapshot")][:-1]
    connections = s.connections(answer)
    for each in connections:
        ids = [block.id for block in each.of_type("snapshot")]
        s.at(each).expect("TW-JOB-075", len(set(ids)) == len(ids), "each id once", ids)
        # A snapshot that arrives late shortens the next gap, so measure the times from the request.
        own = [round(1000 * (block.at - each.began)) for block in each.of_type("snapshot")]
        own = own[:-1] if each.of_type("done") else own
        spaced = not own or own[-1] >= (len(own) - 1.5) * least
        s.at(each).expect("TW-JOB-073", spaced, f"at least {least} ms between snapshots", own)
    # The state changes all the time, so a stream that lasts two intervals must contain a second snapshot.
    # Measure from the first event, because a busy server may respond only after the job has ended.
    began = min([block.at for block in answer.events], default=answer.finished)
    lasted = 1000 * (answer.finished - (at[0] if at else began))
    further = len(at) > 1 or lasted < 2 * least or not s.server.has_script
    got = f"{len(at)} snapshots before the last one, within {lasted:.0f} ms"
    s.at(answer).expect("TW-JOB-084", further, f"a further snapshot after {least} ms", got)
    took = answer.finished - answer.began
    got = f"{len(at)} snapshots in {took:.2f} s"
    few = len(at) <= 1 + len(connections) + took * 1000 / least
    s.at(answer).expect("TW-JOB-074", few, f"at most one per {least} ms", got)


@check("TW-JOB-081", needs=["snapshots_only"])
async def diffs_0_validates_the_cursor(s: Session) -> None:
    """A stream with `?diffs=0` validates its cursor.

    If the cursor is the id of the event `done`, the server responds with 204. An invalid cursor gets 400. If the server
    does not know the cursor, the stream begins with a snapshot whose reason is `rewound`.
    """
    job, history = await s.run_to_end(s.any_sample())
    done = await s.stream(job, history.logged[-1].id or "", query="?diffs=0")
    s.at(done).status("TW-JOB-081", 204, "for the id of the event done")
    s.at(await s.stream(job, query="?diffs=0&after=x")).refused(
        "TW-JOB-081", 400, "bad_cursor", "the cursor x"
    )
    for cursor, reason in (
        ("40000-2", "rewound"),
        (history.logged[0].id or "", "compacted"),
        ("0-0", "compacted"),
    ):
        answer = await s.stream(job, cursor, query="?diffs=0")
        first = answer.logged[0] if answer.logged else None
        head = history.logged[-2].id
        wanted = f"a snapshot with the id {head} for the cursor {cursor}"
        s.at(answer, first).expect(
            "TW-JOB-081", first is None or first.id == head, wanted, first and first.id
        )
        reason_seen = first.member("reason") if first else answer.status
        s.at(answer, first).equal("TW-JOB-081", reason_seen, reason, f"a {reason} snapshot for {cursor}")


@check("TW-JOB-074", needs=["snapshots_only"], seconds=1.5)
async def min_interval_ms_is_raised_to_the_minimum(s: Session) -> None:
    """With `min_interval_ms=0`, the server uses the `min_interval_ms` of its discovery document instead."""
    least = s.server.discovery_body.get("min_interval_ms")
    if not s.at(s.server.discovery).expect(
        "TW-JOB-074", type(least) is int, "min_interval_ms in discovery", least
    ):
        return
    steps = [step for n in range(50) for step in ({"append": f"{n} "}, {"sleep_ms": 12})]
    sample = s.server.script_sample(*steps) or s.server.long_running_sample() or s.any_sample()
    answer = await s.stream(await s.submit(sample), query="?diffs=0&min_interval_ms=0")
    took = 1000 * (answer.finished - answer.began)
    count = len(answer.of_type("snapshot"))
    few = count <= 2 + len(s.connections(answer)) + took / max(1, int(least or 0))
    wanted = f"at most one snapshot per {least} ms"
    s.at(answer).expect("TW-JOB-074", few, wanted, f"{count} snapshots in {took:.0f} ms")
