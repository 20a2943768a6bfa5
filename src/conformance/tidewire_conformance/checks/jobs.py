"""Chapter 6: submits, reads, lists, cancels, purges, deadlines, and streams of snapshots."""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from tidewire_conformance import fold, specification
from tidewire_conformance.checks.errors import refused, some_work
from tidewire_conformance.checks.resume import told
from tidewire_conformance.event_stream import Block
from tidewire_conformance.history import Histories, job_bodies, key
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Job, Session
from tidewire_conformance.wire import Exchange, resolve

DONE = ("status", "usage", "error", "check", "digest", "expires_at")
"""Members of `done` (section 3.6)."""
TRIES = 100
"""Reads of a job until something holds of it."""
ALIKE = 12
"""Characters, of which each says 4 bits at least: among a thousand random ids no two share so many, but for one run in 10^8."""
ENOUGH = 12
"""Jobs: ids of so many have in common only what all have in front."""
ROOM = 22
"""Characters of which each says 6 bits at most."""
PAUSE = 0.05
"""Seconds between two of them."""


async def until(s: Session, job: Job, holds: Callable[[Exchange], object]) -> Exchange:
    """Read a job until something holds of the answer."""
    answer = await s.read(job)
    for _ in range(TRIES):
        if holds(answer):
            break
        await asyncio.sleep(PAUSE * s.wire.patience)
        answer = await s.read(job)
    else:
        s.unclear(f"{answer} had not come so far after {TRIES * PAUSE * s.wire.patience:g} s")
    return answer


def _has_grown(answer: Exchange) -> bool:
    return has_started(answer) or bool(answer.json.get("done"))


def has_started(answer: Exchange) -> bool:
    """Whether the job runs and its value has begun to grow."""
    items = answer.json["state"]["items"]
    return all(item["status"] == "running" and item["value"] for item in items)


def first_has_ended(answer: Exchange) -> bool:
    """Whether the first item has ended, and the job with it or not."""
    return answer.json["state"]["items"][0]["status"] in fold.ITEM_ENDS


@check("TW-JOB-018", "TW-JOB-038", "TW-OVR-015", "TW-JOB-001")
async def a_submit_is_answered_with_the_job(s: Session) -> None:
    """201 with `Location` and a job by its schema; reading it answers 200 with the same job."""
    work = some_work(s)
    answer = await s.wire.ask("POST", work.submit_to, json=work.body)
    misfit = specification.misfit("job", answer.json)
    s.expect("TW-JOB-018", answer.status == 201 and not misfit, "201, and a body by job.schema.json",
             f"{answer.status} {misfit}", at=answer)  # fmt: skip
    place = resolve(answer, answer.says("location"))
    s.expect(
        "TW-JOB-018",
        place.endswith(f"/v1/jobs/{answer.json.get('id')}"),
        "a Location of the job",
        place,
        at=answer,
    )
    s.expect(
        "TW-OVR-015",
        not specification.misfit("job-id", answer.json.get("id")),
        "a job-id",
        answer.json.get("id"),
        at=answer,
    )
    read = await s.wire.ask("GET", place)
    misfit = specification.misfit("job", read.json)
    s.expect("TW-JOB-038", read.status == 200 and not misfit, "200, and a body by job.schema.json",
             f"{read.status} {misfit}", at=read)  # fmt: skip
    s.expect(
        "TW-JOB-001",
        read.status == 200 and read.json.get("id") == answer.json.get("id"),
        "the same job",
        at=read,
    )
    for each in (answer, read):
        state = each.json.get("state", {})
        s.expect("TW-JOB-038", each.json.get("status") == state.get("status"), "the status of its state",
                 each.json.get("status"), at=each)  # fmt: skip


@check("TW-JOB-023", over_all=True)
async def ids_of_jobs_show_no_order(s: Session) -> None:
    """They have room for 128 bits beside what all have in front, and no two begin alike, as those of a counter or a clock do."""
    found = sorted(
        {body["id"] for each in s.wire.record for body in job_bodies(each) if isinstance(body["id"], str)}
    )
    if len(found) < ENOUGH:
        s.no_occasion(f"fewer than {ENOUGH} jobs in this run")
    same = _alike(found[0], found[-1])
    alike, *two = max((_alike(one, other) - same, one, other) for one, other in pairwise(found))
    s.expect(
        "TW-JOB-023",
        alike < ALIKE,
        f"ids that share fewer than {ALIKE} characters beyond the first {same}",
        two,
    )
    short = min(found, key=len)
    s.expect("TW-JOB-023", len(short) - same >= ROOM, f"{ROOM} characters or more, for 128 bits", short)


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (this, that) in pairs if this != that), min(len(one), len(other)))


@check("TW-JOB-019", "TW-JOB-020", "TW-JOB-001")
async def a_submit_may_be_answered_by_the_stream(s: Session) -> None:
    """200 with `Location` and `Content-Location`; after `hello` comes a snapshot."""
    work = some_work(s)
    header = EVENT_STREAM | {"Last-Event-ID": "1-3"}
    answer = await s.wire.ask(
        "POST", work.submit_to, json=work.body, header=header, seconds=60 + work.seconds
    )
    s.expect(
        "TW-JOB-001",
        answer.is_stream,
        "200 and an event stream",
        f"{answer.status} {answer.media_type}",
        at=answer,
    )
    job, events = answer.says("location"), answer.says("content-location")
    s.expect("TW-JOB-019", "/v1/jobs/" in job and resolve(answer, events) == f"{resolve(answer, job)}/events",
             "Location of the job, Content-Location of its stream", f"{job} {events}", at=answer)  # fmt: skip
    kinds = [block.type for block in [*answer.events[:1], *answer.logged]]
    s.expect("TW-JOB-020", kinds[:2] == ["hello", "snapshot"], "hello, then a snapshot", kinds[:3], at=answer)


@check("TW-JOB-004", "TW-FRM-002", over_all=True)
async def no_answer_about_jobs_may_be_stored(s: Session) -> None:
    """Every answer under `/v1/jobs` and to a submit says `no-store`, errors included."""
    for each in s.wire.record:
        submit = each.method == "POST" and each.path.endswith("/jobs")
        if each.status and (submit or "/v1/jobs" in each.path) and each.method != "OPTIONS":
            stored = "no-store" not in each.says("cache-control").lower()
            s.expect("TW-JOB-004", not stored, "Cache-Control: no-store", each.says("cache-control"), at=each)


@check("TW-OVR-013", over_all=True)
async def links_lead_to_what_they_name(s: Session) -> None:
    """Each link of an answer is a URI reference that stays at the origin of its answer, below one `/v1`."""
    for each in s.wire.record:
        links = [each.says(name) for name in ("location", "content-location") if each.says(name)]
        links += [
            str(block.json.get("events")) for block in each.of_type("hello") if isinstance(block.json, dict)
        ]
        body = each.json if each.is_whole and each.media_type == "application/json" else None
        if isinstance(body, dict):
            links += [
                *map(str, body.get("links", {}).values()),
                *(str(body[name]) for name in ("next",) if name in body),
            ]
        origin = each.url.partition("/v1")[0]
        for link in links:
            place = resolve(each, link)
            sound = place.startswith(f"{origin}/v1") and link.isascii() and " " not in link
            s.expect("TW-OVR-013", sound, f"a link below {origin}/v1", link, at=each)
        for job in job_bodies(each):
            for name, end in (("self", ""), ("events", "/events"), ("cancel", "/cancel")):
                place = resolve(each, str(job.get("links", {}).get(name, "")))
                s.expect("TW-OVR-013", place.endswith(f"/v1/jobs/{job['id']}{end}"),
                         f"{name}: a link to /v1/jobs/{job['id']}{end}", place, at=each)  # fmt: skip
    for endpoint in s.server.endpoints.values():
        place = resolve(
            endpoint.described, str(endpoint.description.get("links", {}).get("jobs", endpoint.submit_to))
        )
        s.expect("TW-OVR-013", place.endswith(endpoint.submit_to), f"jobs: a link to {endpoint.submit_to}", place,
                 at=endpoint.described)  # fmt: skip


@check("TW-JOB-041", "TW-JOB-042", "TW-JOB-001")
async def a_job_that_has_ended_tells_its_end(s: Session) -> None:
    """Its `cursor` is the id of `done`, and its member `done` what that event held."""
    job, history = await s.ended(some_work(s))
    done = history.of_type("done")[0]
    read = await s.read(job)
    s.expect(
        "TW-JOB-041",
        read.json.get("cursor") == done.id,
        f"cursor {done.id}",
        read.json.get("cursor"),
        at=read,
    )
    held = {name: done.json.get(name) for name in DONE}
    told_ = read.json.get("done") or {}
    s.expect("TW-JOB-042", {name: told_.get(name) for name in DONE} == held, f"{held}", told_, at=read)
    s.expect(
        "TW-JOB-001",
        read.json.get("status") == done.json.get("status"),
        "the status of done",
        read.json.get("status"),
        at=read,
    )


@check("TW-JOB-040", "TW-JOB-039")
async def a_read_can_be_followed_from_its_cursor(s: Session) -> None:
    """A stream that is opened with the `cursor` of a read goes on from its `state`."""
    work = s.server.lasting() or s.untested("no example lasts and grows; tidewire.script would serve")
    job = await s.submit(work)
    for at in range(4):
        # At once, where little is there, and then in the midst of it.
        read = await s.read(job) if at == 0 else await until(s, job, _has_grown)
        if read.json.get("done"):
            break
        rest = await s.stream(job, read.json["cursor"])
        held = key(read.json["cursor"]) or (0, 0)
        first = next((key(block.id) for block in rest.logged), None)
        s.expect("TW-JOB-040", first == (held[0], held[1] + 1) or _jumps(rest),
                 f"the event after {read.json['cursor']}", first, at=rest)  # fmt: skip
        s.expect("TW-JOB-039", rest.of_type("done"), "a history that goes on to done", at=rest)
        _, steps = Histories([read, rest]).streams[0]
        fault = next((str(step.refused) for step in steps if step.refused is not None), "")
        s.expect("TW-JOB-040", not fault, "events that follow the state that was read", fault, at=rest)
        job = await s.submit(work)
    if not s.assertions:
        s.unclear("each job had ended before it was read")


def _jumps(rest: Exchange) -> bool:
    first = rest.logged[0]
    if first.type == "snapshot":
        return isinstance(first.json, dict) and first.json.get("reason") != "rewound"
    return isinstance(first.json, dict) and "on" in first.json


# ---- lists -----------------------------------------------------------------------------------------------------


@check("TW-JOB-045", "TW-JOB-047", "TW-JOB-048", needs=["list"], alone=True)
async def jobs_are_listed_newest_first(s: Session) -> None:
    """`GET /v1/jobs` has the caller's jobs by its schema, newest first; `next` leads through all of them."""
    work = some_work(s)
    mine = [(await s.ended(work))[0].id for _ in range(3)]
    page = first = await s.wire.ask("GET", "/v1/jobs?limit=2")
    misfit = specification.misfit("job-list", page.json)
    s.expect("TW-JOB-045", page.status == 200 and not misfit, "200, and a body by job-list.schema.json",
             f"{page.status} {misfit}", at=page)  # fmt: skip
    s.expect(
        "TW-JOB-048",
        len(page.json.get("jobs", [])) <= 2,
        "at most 2 entries",
        len(page.json.get("jobs", [])),
        at=page,
    )
    found: list[str] = []
    for _ in range(3):
        found += [entry["id"] for entry in page.json.get("jobs", [])]
        if "next" not in page.json:
            break
        page = await s.wire.ask("GET", resolve(page, page.json["next"]))
    s.expect("TW-JOB-045", found[:3] == mine[::-1], f"{mine[::-1]}, newest first", found[:3], at=page)
    for entry in (each for each in first.json.get("jobs", []) if each["id"] in mine):
        read = (await s.wire.ask("GET", f"/v1/jobs/{entry['id']}")).json
        same = ("endpoint", "status", "batch", "columns", "cursor", "attempt", "created_at", "ended_at")
        own, whole = ({name: each.get(name) for name in same} for each in (entry, read))
        s.expect("TW-JOB-045", own == whole, ("the job as a read tells it:", whole), own, at=first)
    s.expect(
        "TW-JOB-047",
        len(found) >= 3 and len(set(found)) == len(found),
        "a next page without repeats",
        found,
        at=page,
    )


# ---- cancel ----------------------------------------------------------------------------------------------------


@check("TW-JOB-050", "TW-JOB-051", "TW-JOB-057", "TW-JOB-055", "TW-JOB-001")
async def a_cancel_ends_the_job(s: Session) -> None:
    """202 with the job, then `done` as cancelled with the value it had; a second cancel answers 200."""
    work = s.server.lasting(30) or s.untested("no example lasts and grows; tidewire.script would serve")
    job = await s.submit(work)
    started = await until(s, job, lambda answer: has_started(answer) or answer.json.get("done"))
    if started.json.get("done"):
        s.unclear("the job ended before it could be cancelled")
    answer = await s.wire.ask("POST", f"{job.path}/cancel")
    s.expect("TW-JOB-051", answer.status in {200, 202} and answer.json.get("id") == job.id, "202 and the job",
             f"{answer.status} {answer.code}", at=answer)  # fmt: skip
    s.expect("TW-JOB-001", answer.status in {200, 202}, "202 for a cancel", answer.status, at=answer)
    async with s.follow(job, "0-0") as stream:
        ended = await stream.until(lambda now: now.of_type("done"), 10)
        last = stream.exchange
    if not s.expect(
        "TW-JOB-050", ended, "an end soon after the cancel", "the job runs on after 10 s", at=last
    ):
        return
    if answer.status == 200 and last.of_type("done")[0].json.get("status") == work.ended:
        s.unclear("the job had ended when the cancel came")
    status = last.of_type("done")[0].json.get("status")
    s.expect("TW-JOB-050", status == "cancelled", "cancelled", status, at=last)
    item = (await s.read(job)).json["state"]["items"][0]
    s.expect("TW-JOB-057", item["status"] == "cancelled" and bool(item["value"]), "an item that is cancelled and keeps its value",
             item, at=last)  # fmt: skip
    again = await s.wire.ask("POST", f"{job.path}/cancel", json={})
    s.expect("TW-JOB-051", (again.status, again.json.get("status")) == (200, "cancelled"), "200 and the job, cancelled",
             f"{again.status} {again.json.get('status')}", at=again)  # fmt: skip
    s.expect(
        "TW-JOB-055",
        told((await s.history(job)).logged) == told(last.logged),
        "the end that was logged first",
        at=again,
    )


@check("TW-JOB-055", "TW-JOB-051")
async def a_cancel_after_the_end_changes_nothing(s: Session) -> None:
    """A job that has ended answers a cancel with 200, and stays as it ended."""
    job, history = await s.ended(some_work(s))
    answer = await s.wire.ask("POST", f"{job.path}/cancel")
    s.expect("TW-JOB-051", answer.status == 200, "200", f"{answer.status} {answer.code}", at=answer)
    s.expect("TW-JOB-055", answer.json.get("status") == history.of_type("done")[0].json.get("status"),
             "the status it ended with", answer.json.get("status"), at=answer)  # fmt: skip


@check("TW-JOB-053", "TW-JOB-054", "TW-JOB-016")
async def a_cancel_that_names_no_item_cancels_none(s: Session) -> None:
    """An empty `items` cancels nothing; an index that the job has not gets 422 and cancels nothing."""
    work = s.server.lasting(1.5) or s.untested("no example lasts and grows; tidewire.script would serve")
    job = await s.submit(work)
    none = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": []})
    s.expect("TW-JOB-053", none.status in {200, 202}, "202", f"{none.status} {none.code}", at=none)
    for items in ([0, 1], [-1], [0.5], ["0"], 0):
        answer = await s.wire.ask("POST", f"{job.path}/cancel", json={"items": items})
        refused(s, "TW-JOB-054", answer, 422, "invalid_input", f"items {items}")
        pointer = str(answer.json.get("pointer", "")) if answer.status == 422 else ""
        s.expect("TW-JOB-016", pointer.startswith("/items"), "a pointer to the item", pointer, at=answer)
    status = (await s.stream(job)).of_type("done")[0].json.get("status")
    s.expect("TW-JOB-054", status == work.ended, f"a job that ends as {work.ended}", status)
    s.expect("TW-JOB-053", status == work.ended, f"a job that ends as {work.ended}", status)


# ---- purge -----------------------------------------------------------------------------------------------------


@check("TW-JOB-059", "TW-JOB-062", "TW-RES-028", needs=["delete"])
async def a_purged_job_is_gone(s: Session) -> None:
    """`DELETE` answers 204; then every request for the job gets 410 `job_expired`."""
    job, history = await s.ended(some_work(s))
    answer = await s.wire.ask("DELETE", job.path)
    s.expect("TW-JOB-059", answer.status == 204, "204", f"{answer.status} {answer.code}", at=answer)
    tombstone = s.server.limits.get("tombstone_ttl_s", 0)
    if tombstone < 1:
        s.no_occasion("tombstone_ttl_s is 0")
    asked = [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")]
    asked += [("POST", "/stream-token")] if "stream_tokens" in s.server.capabilities else []
    for method, place in asked:
        gone = await s.wire.ask(method, job.path + place)
        refused(s, "TW-JOB-062", gone, 410, "job_expired", f"{method} {place}")
        refused(s, "TW-RES-028", gone, 410, "job_expired", f"{method} {place}")
    late = await s.stream(job, history.logged[-1].id or "")
    refused(s, "TW-RES-028", late, 410, "job_expired", "the cursor of done")


@check("TW-JOB-060", "TW-JOB-059", needs=["delete"])
async def a_purge_ends_the_streams_of_the_job(s: Session) -> None:
    """A reader that is attached when a running job is purged gets `done`."""
    work = s.server.lasting(30) or s.untested("no example lasts and grows; tidewire.script would serve")
    job = await s.submit(work)
    async with s.follow(job) as stream:
        await stream.until(lambda now: now.logged)
        answer = await s.wire.ask("DELETE", job.path)
        s.expect("TW-JOB-059", answer.status == 204, "204", f"{answer.status} {answer.code}", at=answer)
        last = await stream.to_end(10)
    done = last.of_type("done")
    s.expect(
        "TW-JOB-060",
        done,
        "done, for the reader that was attached",
        [b.type for b in last.events][-2:],
        at=last,
    )
    if done and work.endpoint == "tidewire.script":
        s.expect(
            "TW-JOB-060",
            done[0].json.get("status") == "cancelled",
            "cancelled",
            done[0].json.get("status"),
            at=last,
        )


# ---- deadlines -------------------------------------------------------------------------------------------------


@check("TW-JOB-069", "TW-JOB-070")
async def a_deadline_fails_what_has_not_ended(s: Session) -> None:
    """An item that has not ended at the deadline fails with `deadline_exceeded`, and the job with it; a twin ends."""
    work = s.server.lasting(30) or s.untested("no example lasts; tidewire.script would serve")
    deadline = 300 if work.seconds >= 1 else 1
    job, history = await s.ended(work, deadline_ms=deadline)
    done = history.of_type("done")[0].json
    code = done.get("error", {}).get("code") if isinstance(done.get("error"), dict) else None
    s.expect("TW-JOB-070", done.get("status") == "failed", "failed", done.get("status"), at=history)
    item = (await s.read(job)).json["state"]["items"][0]
    s.expect(
        "TW-JOB-069",
        item.get("error", {}).get("code") == "deadline_exceeded",
        "deadline_exceeded",
        item.get("error") or code,
        at=history,
    )
    async with s.wire.open(
        "POST", work.submit_to, json=work.body | {"deadline_ms": deadline}, header=EVENT_STREAM
    ) as stream:
        ends = await stream.until(lambda now: now.of_type("done"), 10 + deadline / 1000)
        s.expect(
            "TW-JOB-069",
            ends,
            "an end at the deadline of a submit that is answered by a stream",
            "none",
            at=stream.exchange,
        )
    quick = some_work(s)
    _, twin = await s.ended(quick, deadline_ms=600_000)
    status = twin.of_type("done")[0].json.get("status")
    s.expect("TW-JOB-069", status == quick.ended, f"{quick.ended} before the deadline", status, at=twin)


# ---- snapshots only --------------------------------------------------------------------------------------------


@check("TW-JOB-072", "TW-JOB-073", "TW-JOB-074", "TW-JOB-075", needs=["snapshots_only"])
async def a_stream_without_diffs_has_snapshots_and_done(s: Session) -> None:
    """`?diffs=0` gives snapshots, `done` and ephemeral events; two snapshots are `min_interval_ms` apart."""
    steps = [step for n in range(30) for step in ({"append": f"{n} "}, {"sleep_ms": 25})]
    work = s.server.script(*steps) or s.server.lasting() or some_work(s)
    job = await s.submit(work)
    least = max(int(s.server.says.get("min_interval_ms", 0)), 300)
    answer = await s.stream(job, query=f"?diffs=0&min_interval_ms={least}")
    kinds = [block.type for block in answer.events]
    s.expect("TW-JOB-072", answer.is_stream and "message" not in kinds and kinds[-1:] == ["done"], "no diff, and done at the end",
             f"{answer.status} {kinds[-4:]}", at=answer)  # fmt: skip
    ids = [block.id for block in answer.of_type("snapshot")]
    s.expect("TW-JOB-075", len(set(ids)) == len(ids), "each id once", ids, at=answer)
    at = [block.at for block in answer.of_type("snapshot")][:-1]
    gaps = [1000 * (after - before) for before, after in pairwise(at)]
    # One that came late is followed by one that came in time: all of them together are as far apart as they should be.
    s.expect(
        "TW-JOB-073",
        sum(gaps) >= (len(gaps) - 1.5) * least,
        f"at least {least} ms between snapshots",
        gaps,
        at=answer,
    )
    s.expect("TW-JOB-074", len(at) <= 2 + (answer.finished - answer.began) * 1000 / least, f"a snapshot each {least} ms at most",
             f"{len(at)} in {answer.finished - answer.began:.2f} s", at=answer)  # fmt: skip


@check("TW-JOB-081", needs=["snapshots_only"])
async def a_stream_without_diffs_judges_its_cursor(s: Session) -> None:
    """With `?diffs=0` the id of `done` gets 204, what is no id 400, and an id that never was a snapshot `rewound`."""
    job, history = await s.ended(some_work(s))
    done = await s.stream(job, history.logged[-1].id or "", query="?diffs=0")
    s.expect("TW-JOB-081", done.status == 204, "204 for the id of done", done.status, at=done)
    refused(s, "TW-JOB-081", await s.stream(job, query="?diffs=0&after=x"), 400, "bad_cursor", "x")
    for cursor, reason in (("40000-2", "rewound"), (history.logged[0].id or "", "compacted")):
        answer = await s.stream(job, cursor, query="?diffs=0")
        first = answer.logged[0] if answer.logged else None
        told_ = first.json.get("reason") if first and isinstance(first.json, dict) else answer.status
        s.expect(
            "TW-JOB-081", told_ == reason, f"a snapshot {reason} for {cursor}", told_, at=answer, block=first
        )


# ---- queue and progress ----------------------------------------------------------------------------------------


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
