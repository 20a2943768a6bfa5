"""Sections 6.8 to 6.10: times that a submit or a URL names, and what has to be left alone until then."""

from tidewire_conformance.checks.errors import some_work
from tidewire_conformance.checks.jobs import until
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Job, Session


@check("TW-JOB-069", "TW-OVR-019", "TW-OVR-020", needs=["batches"], alone=True)
async def a_deadline_leaves_what_has_ended(s: Session) -> None:
    """An item that ended before the deadline stays as it is; the others fail, and the job is `partially_failed`."""
    if not s.server.has_script:
        s.untested("needs tidewire.script")
    slow = {"script": [{"append": "b"}, {"sleep_ms": 6000}]}
    work = s.server.batching() or s.untested("no endpoint with `batch` has an example that ended well")
    job, history = await s.ended(
        work.with_inputs([{"script": [{"append": "a"}]}, slow, slow]), deadline_ms=1000
    )
    read = (await s.read(job)).json
    items = [
        (item["status"], item["value"], item.get("error", {}).get("code")) for item in read["state"]["items"]
    ]
    s.expect("TW-OVR-019", items[0] == ("succeeded", "a", None), "succeeded with a", items[0], at=history)
    late = ("failed", "b", "deadline_exceeded")
    s.expect("TW-JOB-069", items[1:] == [late, late], f"{late}, both", items[1:], at=history)
    s.expect(
        "TW-OVR-020", read["status"] == "partially_failed", "partially_failed", read["status"], at=history
    )


@check("TW-JOB-065", "TW-JOB-063")
async def a_reader_may_be_away_for_a_minute(s: Session) -> None:
    """A job that is to be cancelled where nobody reads runs on for `grace_ms`, which is 60 s at least; here it ends before."""
    work = s.server.lasting(1.0) or s.untested("no example lasts and grows; tidewire.script would serve")
    body = work.body | {"on_disconnect": "cancel", "grace_ms": 0}
    async with s.wire.open("POST", work.submit_to, json=body, header=EVENT_STREAM) as stream:
        await stream.until(lambda now: len(now.logged) >= 3, 30)
        place = stream.exchange.says("location")
    s.need("/v1/jobs/" in place, "the submit was not answered by a stream with a Location")
    job = Job(place.rpartition("/")[2], work, stream.exchange)
    ended = await until(s, job, lambda answer: answer.json.get("done"))
    s.expect("TW-JOB-065", ended.json.get("status") == work.ended, f"an end as {work.ended}, while the minute runs",
             ended.json.get("status"), at=ended)  # fmt: skip


@check("TW-JOB-074", needs=["snapshots_only"])
async def an_interval_below_that_of_discovery_is_raised(s: Session) -> None:
    """`min_interval_ms=0` gives no more snapshots than the interval of discovery does."""
    least = s.server.says.get("min_interval_ms")
    if not s.expect(
        "TW-JOB-074", type(least) is int, "min_interval_ms in discovery", least, at=s.server.discovery
    ):
        return
    steps = [step for n in range(50) for step in ({"append": f"{n} "}, {"sleep_ms": 12})]
    work = s.server.script(*steps) or s.server.lasting() or some_work(s)
    answer = await s.stream(await s.submit(work), query="?diffs=0&min_interval_ms=0")
    took = 1000 * (answer.finished - answer.began)
    count = len(answer.of_type("snapshot"))
    s.expect("TW-JOB-074", count <= 3 + took / max(1, int(least or 0)), f"a snapshot each {least} ms at most", f"{count} in {took:.0f} ms",
             at=answer)  # fmt: skip
