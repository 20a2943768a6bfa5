"""Checks for sections 6.1 to 6.5: submitting a job, reading a job, and listing jobs."""

from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.state_history import Histories, id_text, items_of, job_bodies, key
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import schema_violation
from tidewire_conformance.session import EVENT_STREAM, STREAMS_PER_CHECK, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve, without_query

DONE = ("status", "usage", "error", "check", "digest", "expires_at")
"""Names of the members of a `done` event (section 3.6)."""
LINK_NAMES = ("self", "events", "cancel", "jobs", "next")
"""Names of the links that the specification defines. A server may add links with other names, to any URL (section 6.4)."""
MAX_COMMON_CHARACTERS = 12
"""Number of equal leading characters at which two job ids count as similar.

Each character carries at least 4 bits. In a run with a thousand random ids, two of them share their first 12 characters
in about one of 10^8 cases.
"""
MIN_JOBS = 12
"""Minimum number of job ids to compare. With fewer ids, the common prefix may be longer by coincidence."""
MIN_RANDOM_CHARACTERS = 22
"""Minimum length of the random part of a job id, for 128 bits at 6 bits per character."""


def has_grown(answer: RecordedExchange) -> bool:
    """Whether all items are running and each of them already has a value, or the job has ended."""
    items = items_of(answer.members)
    runs = bool(items) and all(item["status"] == "running" and item.get("value") for item in items)
    return runs or bool(answer.member("done"))


def first_has_ended(answer: RecordedExchange) -> bool:
    """Whether the first item has ended."""
    items = items_of(answer.members)
    return bool(items) and items[0]["status"] in apply_diffs.ITEM_ENDS


@check("TW-JOB-018", "TW-JOB-038", "TW-OVR-015", "TW-JOB-001")
async def submit_returns_the_job(s: Session) -> None:
    """A request to submit a job gets 201 with a `Location` and a valid job. A GET of the `Location` gets 200 with the
    same job.
    """
    sample = s.any_request()
    answer = await s.post(sample)
    s.at(answer).body("TW-JOB-018", 201, "job")
    location = answer.response_header("location")
    place = resolve(answer, location)
    leads = without_query(place).endswith(f"/v1/jobs/{answer.member('id')}")
    s.at(answer).expect(
        "TW-JOB-018", leads, "a Location that leads to the job", (location and place) or "no Location"
    )
    valid = not schema_violation("job-id", answer.member("id"))
    s.at(answer).expect("TW-OVR-015", valid, "a valid job id", answer.member("id"))
    if not location:
        return
    read = await s.get(place)
    s.at(read).body("TW-JOB-038", 200, "job")
    same = read.status == 200 and read.member("id") == answer.member("id")
    s.at(read).response("TW-JOB-001", same, "the same job")
    for each in (answer, read):
        state = each.member("state", {})
        s.at(each).equal(
            "TW-JOB-038", each.member("status"), state.get("status"), "the status of the member state"
        )


@check(
    "TW-DSC-001", "TW-DSC-028", "TW-JOB-038", "TW-JOB-045", "TW-BRW-012", "TW-JOB-018", "TW-JOB-051", whole_run=True
)  # fmt: skip
async def response_bodies_fit_their_schemas(s: Session) -> None:
    """The body of each successful response fits its schema."""
    for each in s.wire.record:
        # Other checks judge problems and vocabularies.
        if each.is_whole and each.schema not in {"", "problem", "vocabulary"}:
            submit, cancel = each.path.endswith("/jobs"), each.path.endswith("/cancel")
            of_job = "TW-JOB-018" if submit else "TW-JOB-051" if cancel else "TW-JOB-038"
            requirement = of_job if each.schema == "job" else each.typed.requirement
            wanted = f"a body that fits {each.schema}.schema.json"
            s.at(each).empty(requirement, each.typed.violation, wanted)


@check("TW-JOB-023", whole_run=True)
async def job_ids_are_unpredictable(s: Session) -> None:
    """Job ids have room for 128 random bits after the common prefix, and do not look like values of a counter or clock."""
    found = sorted({body["id"] for each in s.wire.record for body in job_bodies(each)})
    if len(found) < MIN_JOBS:
        s.skip_no_occasion(f"this run had fewer than {MIN_JOBS} jobs")
    same = common_length(found[0], found[-1])
    alike, *two = max((common_length(one, other) - same, one, other) for one, other in pairwise(found))
    wanted = (
        f"no two ids with {MAX_COMMON_CHARACTERS} equal characters in a row after the prefix of {same} "
        "characters that all ids share"
    )
    s.expect("TW-JOB-023", alike < MAX_COMMON_CHARACTERS, wanted, two)
    short = min(found, key=len)
    wanted = f"at least {MIN_RANDOM_CHARACTERS} characters after the prefix, for 128 bits"
    s.expect("TW-JOB-023", len(short) - same >= MIN_RANDOM_CHARACTERS, wanted, short)


def common_length(one: str, other: str) -> int:
    """Return the number of leading characters that two texts share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (this, that) in pairs if this != that), min(len(one), len(other)))


@check("TW-JOB-019", "TW-JOB-020", "TW-JOB-017", after="cursors_in_urls")
async def submit_can_return_the_stream(s: Session) -> None:
    """If a submission asks for an event stream, the response has `Location`, `Content-Location`, a `hello` event and a
    snapshot.
    """
    sample = s.any_request()
    header = EVENT_STREAM | {"Last-Event-ID": "1-3"}
    async with s.wire.open("POST", sample.submit_to, json=sample.body, header=header) as reader:
        await reader.until(lambda now: now.ended or now.logged, 60 + sample.seconds)
    answer = reader.exchange
    s.at(answer).expect(
        "TW-JOB-017", answer.is_stream, "200 and an event stream", f"{answer.status} {answer.media_type}"
    )
    job, events = answer.response_header("location"), answer.response_header("content-location")
    place, stream = (without_query(resolve(answer, each)) for each in (job, events))
    leads = "/v1/jobs/" in place and stream == f"{place}/events"
    wanted = "a Location for the job and a Content-Location for its stream"
    s.at(answer).expect("TW-JOB-019", leads, wanted, f"{job} {events}")
    kinds = [block.type for block in [*answer.events[:1], *answer.logged]]
    s.at(answer).expect("TW-JOB-020", kinds[:2] == ["hello", "snapshot"], "hello, then a snapshot", kinds[:3])


@check("TW-JOB-004", "TW-FRM-002", whole_run=True)
async def job_responses_are_not_cacheable(s: Session) -> None:
    """Each response about a job or to a request that submits a job has `Cache-Control: no-store`, even if it is an
    error.
    """
    for each in s.wire.record:
        submit = each.method == "POST" and each.path.endswith("/jobs")
        if each.status and (submit or "/v1/jobs" in each.path) and each.method != "OPTIONS":
            stored = "no-store" not in each.response_header("cache-control").lower()
            s.at(each).expect(
                "TW-JOB-004", not stored, "Cache-Control: no-store", each.response_header("cache-control")
            )


@check("TW-OVR-013", "TW-OVR-014", whole_run=True)
async def links_resolve_to_their_resources(s: Session) -> None:
    """Each link is a URI reference. A link with a name that the specification defines refers to that resource, on the same
    origin and under the same `/v1` path.
    """
    for each in s.wire.record:
        links = [
            each.response_header(name)
            for name in ("location", "content-location")
            if each.response_header(name)
        ]
        links += [str(block.member("events")) for block in each.of_type("hello") if block.members]
        if each.is_whole and each.media_type == "application/json":
            named = _links(each.members)
            links += [str(named[name]) for name in LINK_NAMES if name in named]
            links += [each.member("next")] if each.member("next") else []
            for name in named.keys() - {*LINK_NAMES}:  # such as links to documentation elsewhere
                link = str(named[name])
                s.at(each).expect("TW-OVR-013", _is_reference(link), f"{name}: a URI reference", link)
        origin = each.url.partition("/v1")[0]
        prefixed = ["TW-OVR-014"] if urlsplit(origin).path else []
        # The links of a replica may be absolute and name the first replica.
        bases = tuple({f"{base}/v1": "" for base in (origin, s.wire.base_url)})
        for link in links:
            place = resolve(each, link)
            sound = place.startswith(bases) and _is_reference(link)
            wanted = f"a link below {' or '.join(bases)}"
            s.at(each).expect(("TW-OVR-013", *prefixed), sound, wanted, link)
        for job in job_bodies(each):
            for name, end in (("self", ""), ("events", "/events"), ("cancel", "/cancel")):
                place = resolve(each, str(_links(job).get(name, "")))
                target = f"/v1/jobs/{job['id']}{end}"
                wanted = f"{name}: a link to {target}"
                s.at(each).expect("TW-OVR-013", without_query(place).endswith(target), wanted, place)
    for endpoint in s.server.endpoints.values():
        place = resolve(
            endpoint.described, str(endpoint.description.get("links", {}).get("jobs", endpoint.submit_to))
        )
        leads = without_query(place).endswith(endpoint.submit_to)
        s.at(endpoint.described).expect("TW-OVR-013", leads, f"jobs: a link to {endpoint.submit_to}", place)


def _is_reference(link: str) -> bool:
    """Whether a text can be a URI reference, which has only ASCII characters and no space."""
    return link.isascii() and " " not in link


def _links(body: dict[str, Any]) -> dict[str, Any]:
    found = body.get("links")
    return found if isinstance(found, dict) else {}


@check("TW-JOB-041", "TW-JOB-042", "TW-JOB-001", after="cursors_in_urls")
async def ended_job_includes_done(s: Session) -> None:
    """In an ended job, `cursor` is the id of the `done` event, and the member `done` has the data of that event."""
    job, history = await s.run_to_end(s.any_sample())
    done = history.of_type("done")[0]
    read = await s.read(job)
    s.at(read).equal("TW-JOB-041", read.member("cursor"), done.id, f"cursor {done.id}")
    held = {name: done.member(name) for name in DONE}
    job_done = read.member("done") or {}
    same = {name: job_done.get(name) for name in DONE} == held
    s.at(read).expect("TW-JOB-042", same, ("the members of done:", held), job_done)
    s.at(read).equal("TW-JOB-001", read.member("status"), done.member("status"), "the status in done")


@check("TW-JOB-040", "TW-JOB-039", seconds=2, after="state")
async def stream_continues_from_a_read(s: Session) -> None:
    """A stream that is opened with the `cursor` of a job resource continues from the `state` in that resource."""
    sample = s.long_running_sample()

    async def read_and_follow(number: int) -> None:
        job = await s.submit(sample)
        # Read the first job right after it was submitted, and each further job once its value has grown.
        read = await s.read(job) if number == 0 else await s.read_until(job, has_grown)
        if read.member("done"):
            return
        cursor = read.validated["cursor"]
        rest = await s.stream(job, cursor)
        s.require_whole(rest)
        held = key(cursor) or (0, 0)
        first = next((key(block.id) for block in rest.logged), None)
        follows = first == (held[0], held[1] + 1) or _skips_ids(rest)
        s.at(rest).expect("TW-JOB-040", follows, f"the event after {cursor}", id_text(first))
        s.at(rest).expect("TW-JOB-039", rest.of_type("done"), "a stream that continues to done")
        _, steps = Histories([read, rest]).streams[0]
        fault = next((step.refusal for step in steps if step.refusal), "")
        s.at(rest).empty("TW-JOB-040", fault, "events that apply to the state in the job resource")

    await s.concurrently(read_and_follow, range(4), at_once=STREAMS_PER_CHECK)
    if not s.assertions:
        s.inconclusive("each job had ended before the suite read it")


def _skips_ids(rest: RecordedExchange) -> bool:
    if not rest.logged:
        return False
    first = rest.logged[0]
    return (
        first.member("reason", "rewound") != "rewound" if first.type == "snapshot" else "on" in first.members
    )


@check("TW-JOB-045", "TW-JOB-047", "TW-JOB-048", needs=["list"], serial=True)
async def jobs_are_listed_newest_first(s: Session) -> None:
    """`GET /v1/jobs` lists the caller's jobs, newest first, in pages that are linked by `next`."""
    sample = s.any_sample()
    failing = s.server.failing_sample()
    mine = [(await s.run_to_end(each))[0].id for each in (sample, failing or sample, sample)]
    page = first = await s.get("/v1/jobs?limit=2")
    s.at(page).body("TW-JOB-045", 200, "job-list")
    count = len(page.member("jobs", []))
    s.at(page).expect("TW-JOB-048", count <= 2, "at most 2 entries", count)
    found: list[str] = []
    for _ in range(3):
        found += [entry["id"] for entry in page.validated["jobs"]]
        if "next" not in page.members:
            break
        page = await s.get(resolve(page, page.member("next")))
    s.at(page).equal("TW-JOB-045", found[:3], mine[::-1], (mine[::-1], "newest first"))
    for entry in (each for each in first.validated["jobs"] if each["id"] in mine):
        read = (await s.get(f"/v1/jobs/{entry['id']}")).members
        same = ("endpoint", "status", "batch", "columns", "cursor", "attempt", "created_at", "ended_at")
        own, whole = ({name: each.get(name) for name in same} for each in (entry, read))
        s.at(first).equal("TW-JOB-045", own, whole, ("the same members as in a read of the job:", whole))
    distinct = len(found) >= 3 and len(set(found)) == len(found)
    s.at(page).expect("TW-JOB-047", distinct, "a next page without repeated jobs", found)


@check("TW-JOB-020", "TW-JOB-018", "TW-JOB-019", after="cursors_in_urls")
async def submit_ignores_a_cursor(s: Session) -> None:
    """A submission has no cursor, so it starts a job whatever `Last-Event-ID` and `after` contain."""
    sample = s.any_request()
    for cursor in ("x", "0-1", "1-1", "9-9"):
        for query, header in ((f"?after={cursor}", {}), ("", {"Last-Event-ID": cursor})):
            place = sample.submit_to + query
            plain = await s.wire.request("POST", place, header=header, json=sample.body)
            s.at(plain).status("TW-JOB-018", 201, f"although the submission has the cursor {cursor}")
            async with s.wire.open("POST", place, header=EVENT_STREAM | header, json=sample.body) as stream:
                await stream.until(lambda now: now.logged)
            answer = stream.exchange
            s.at(answer).response(
                "TW-JOB-019",
                answer.is_stream,
                f"an event stream, although the submission has the cursor {cursor}",
            )
            first = answer.logged[0] if answer.logged else None
            reason = first.snapshot_reason if first is not None else "no event"
            sound = reason in {"start", "compacted"}
            s.at(answer, first).expect("TW-JOB-020", sound, "a snapshot that is not `rewound`", reason)


@check("TW-FRM-052", "TW-JOB-042", after="cursors_in_urls")
async def state_of_an_ended_job_has_its_end(s: Session) -> None:
    """The `state` of an ended job has the status, the usage and the error of the job's `done` event."""
    samples = [s.any_sample(), s.server.failing_sample(), s.server.script_sample({"usage": {"tokens": 2}})]
    for sample in filter(None, samples):
        job, history = await s.run_to_end(sample)
        done = history.of_type("done")[0].members
        read = await s.read(job)
        state = read.member("state") or {}
        for name in ("status", "usage", "error"):
            wanted = f"the {name} of done: {done.get(name)}"
            s.at(read).equal("TW-FRM-052", state.get(name), done.get(name), wanted)
