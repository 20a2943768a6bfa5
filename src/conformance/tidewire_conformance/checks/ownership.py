"""Checks for section 11.1: authorization. Most of them need the credentials of two principals (users)."""

import ipaddress
import secrets
import socket
from urllib.parse import urlsplit

from tidewire_conformance.checks.errors import UNKNOWN_JOB
from tidewire_conformance.judging.server_probe import SampleRequest
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import Wire

PAIRS = 20
"""Number of pairs of timed requests: one for another user's job, and one for an unknown job."""
MIN_SLOW_PAIRS = 18
"""Number of pairs in which the same one of the two requests has to be slower.

A busy machine delays single responses at random. With equal times, fewer than one of 2000 runs reaches this number.
"""
MAX_DIFFERENCE_SECONDS = 0.1
"""Maximum difference, in seconds, between the two response times of a pair. The option `--patience` multiplies it."""
SECOND_ADDRESS = "127.0.0.2"
"""Address from which a second anonymous caller connects to a server on this machine."""


def other_principal(s: Session) -> Wire:
    """Return a client with the credentials of another principal."""
    if not s.wire.header:
        s.skip_no_occasion(
            "the check sends requests of two users, and without credentials the server cannot distinguish the users; "
            "if the server accepts credentials, pass them with --header and --second-header"
        )
    if not s.hooks.second:
        s.skip_untested("the check needs --header and --second-header with the credentials of two users")
    return s.wire.as_caller(s.hooks.second, caller="SECOND_")


async def submit_anonymously(s: Session, caller: Wire, sample: SampleRequest) -> Job:
    """Submit a job without credentials. If the server requires credentials, skip the check."""
    answer = await caller.request("POST", sample.submit_to, json=sample.body)
    if s.wire.header and answer.status in {401, 403}:
        s.skip_no_occasion("the server does not serve anonymous callers")
    return s.job(sample, answer)


async def two_anonymous_callers(s: Session, sample: SampleRequest) -> tuple[Wire, Wire, Job]:
    """Return two clients without credentials that connect from different addresses, and a job of the first client.

    The check is skipped if the server treats all anonymous callers as one user, or if the server cannot be reached from
    a second address.
    """
    first, second = s.wire.as_caller(), s.wire.as_caller(source=SECOND_ADDRESS)
    job = await submit_anonymously(s, first, sample)
    discovery = await first.request("GET", "/v1")
    s.skip_unless(discovery.status == 200, f"{discovery} returned {discovery.outcome}")
    if "list" in discovery.member("capabilities", ()):
        s.skip_no_occasion("the server treats anonymous callers as one user, because it lists their jobs")
    if not _reaches_from_second_address(s):
        s.skip_untested(
            "the check needs a server on this machine, and a system with several loopback addresses"
        )
    return first, second, job


def _reaches_from_second_address(s: Session) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((SECOND_ADDRESS, 0))
        except OSError:
            return False
    return _host(s) == "127.0.0.1"


def _host(s: Session) -> str:
    return urlsplit(s.wire.base_url).hostname or ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def comparable(answer: RecordedExchange) -> tuple[int, object]:
    """Return the status and the body of a response without the parts that identify the job."""
    body = answer.members
    own = answer.path.partition("/v1/jobs/")[2].partition("/")[0]
    said = {name: value.replace(own, "") if isinstance(value, str) else value for name, value in body.items()}
    return answer.status, {name: value for name, value in said.items() if name != "instance"}


def requests_for_a_job(cursor: str) -> list[tuple[str, str, str]]:
    """Return all kinds of requests for a job, each with its method, its path after the path of the job, and a cursor."""
    return [
        ("GET", "", ""),
        ("GET", "/events", ""),
        ("GET", "/events", cursor),
        ("POST", "/cancel", ""),
        ("DELETE", "", ""),
        ("POST", "/stream-token", ""),
    ]


@check("TW-JOB-044", "TW-SEC-001", "TW-RES-014", "TW-SEC-002", "TW-JOB-026")
async def other_principals_jobs_look_unknown(s: Session) -> None:
    """A request for another principal's job gets the same response as a request for an unknown job."""
    other = other_principal(s)
    sample = s.server.long_running_sample() or s.any_sample()
    job = await s.submit(sample)
    for method, place, cursor in requests_for_a_job("1-1"):
        header = EVENT_STREAM | {"Last-Event-ID": cursor} if cursor else {}
        theirs = await other.request(method, job.path + place, header=header)
        unknown = await other.request(method, f"/v1/jobs/{UNKNOWN_JOB}{place}", header=header)
        s.at(theirs).equal("TW-RES-014" if cursor else "TW-JOB-044", comparable(theirs), comparable(unknown))
        s.at(theirs).equal("TW-SEC-001", theirs.status, unknown.status)
        s.at(theirs).equal(
            "TW-SEC-002", theirs.status, unknown.status, f"{unknown.status}, even if the request has a cursor"
        )
    mine = await s.read(job)
    s.at(mine).status("TW-SEC-001", 200, "for the principal that owns the job")
    key = {"Idempotency-Key": secrets.token_hex(16)}
    first = await s.post(sample, header=key)
    second = await other.request("POST", sample.submit_to, json=sample.body, header=key)
    differs = second.status == 201 and second.member("id") != first.member("id")
    s.at(second).response("TW-JOB-026", differs, "a new job for another principal")


@check("TW-SEC-008")
async def response_time_does_not_reveal_other_jobs(s: Session) -> None:
    """A response about another principal's job takes about as long as a response about an unknown job."""
    other = other_principal(s)
    job = await s.submit(s.any_sample())
    places = job.path, f"/v1/jobs/{UNKNOWN_JOB}"
    limit = MAX_DIFFERENCE_SECONDS * s.wire.patience
    slower = [0, 0]
    for number in range(PAIRS):
        times = [0.0, 0.0]
        for index in (0, 1) if number % 2 else (1, 0):
            response = await other.request("GET", places[index])
            times[index] = response.answered - response.began
        slower = [slower[0] + (times[0] - times[1] >= limit), slower[1] + (times[1] - times[0] >= limit)]
        if max(slower) + PAIRS - MIN_SLOW_PAIRS <= number:
            break  # Neither request can be slower often enough.
    wanted = f"response times that differ by {limit:g} s in fewer than {MIN_SLOW_PAIRS} of {PAIRS} pairs of requests"
    s.expect("TW-SEC-008", max(slower) < MIN_SLOW_PAIRS, wanted, f"{max(slower)} pairs")


@check("TW-JOB-046", needs=["list"])
async def list_contains_only_the_callers_jobs(s: Session) -> None:
    """A list of jobs contains the caller's own jobs and no job of another principal."""
    other = other_principal(s)
    job = await s.submit(s.any_sample())
    lists = [await wire.request("GET", "/v1/jobs?limit=1000") for wire in (s.wire, other)]
    mine, theirs = ([entry["id"] for entry in each.member("jobs", [])] for each in lists)
    shown = f"{lists[0].status} {lists[0].code}, {len(mine)} jobs"
    s.at(lists[0]).expect("TW-JOB-046", job.id in mine, f"{job.id} in its owner's list", shown)
    s.at(lists[1]).expect(
        "TW-JOB-046", job.id not in theirs, "no job of another principal in the list", job.id
    )


@check("TW-JOB-076")
async def anonymous_callers_cannot_list_jobs(s: Session) -> None:
    """The job of an anonymous caller is not in the list that another anonymous caller gets."""
    job = await submit_anonymously(s, s.wire.as_caller(), s.any_sample())
    answer = await s.wire.as_caller().request("GET", "/v1/jobs?limit=1000")
    listed = [entry.get("id") for entry in answer.member("jobs", [])]
    if job.id in listed and not s.wire.header and _is_loopback(_host(s)):
        s.skip_no_occasion("all anonymous callers of a server on a loopback address may be one user")
    wanted = "404, or a list without the job of another anonymous caller"
    s.at(answer).expect(
        "TW-JOB-076", job.id not in listed, wanted, f"{answer.status} and a list with {job.id}"
    )


@check("TW-SEC-005")
async def an_anonymous_job_is_open_to_callers_with_its_id(s: Session) -> None:
    """Any anonymous caller who knows the id of an anonymous job can read, stream, cancel and purge the job."""
    sample = s.server.long_running_sample() or s.any_sample()
    job = await submit_anonymously(s, s.wire.as_caller(), sample)
    other = s.wire.as_caller(source=SECOND_ADDRESS if _reaches_from_second_address(s) else "")
    async with other.open("GET", job.events, header=EVENT_STREAM) as stream:
        s.at(stream.exchange).response("TW-SEC-005", stream.exchange.is_stream, "an event stream")
    asked = [("GET", "", {200}), ("POST", "/cancel", {200, 202})]
    asked += [("DELETE", "", {204})] if "delete" in s.server.capabilities else []
    for method, place, expected in asked:
        answer = await other.request(method, job.path + place)
        s.at(answer).response(
            "TW-SEC-005",
            answer.status in expected,
            f"{' or '.join(map(str, sorted(expected)))} for {method} of an anonymous job",
        )


@check("TW-SEC-003", "TW-SEC-002")
async def invalid_credentials_return_401(s: Session) -> None:
    """Missing or wrong credentials get 401 `unauthorized` with `WWW-Authenticate`, and valid credentials are accepted."""
    if not s.wire.header:
        s.skip_no_occasion(
            "the check sends valid and invalid credentials, and this run has no valid ones; "
            "if the server accepts credentials, pass some with --header"
        )
    bare = s.wire.as_caller()
    job = await s.submit(s.any_sample())
    asked = [
        ("GET", job.path),
        ("GET", job.events),
        ("POST", job.sample.submit_to),
        ("POST", f"{job.path}/cancel"),
    ]
    asked += [("GET", "/v1/jobs")] if "list" in s.server.capabilities else []
    asked += [("DELETE", job.path)] if "delete" in s.server.capabilities else []
    authorization = dict(s.wire.header).get("Authorization", "")
    wrong = [{}, *({"Authorization": each} for each in ("Bearer not-one-of-yours", "Basic Og==", "Bearer"))]
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        # Also try the valid token with a changed last character or a changed scheme.
        wrong += [
            {"Authorization": each}
            for each in (f"{authorization}x", authorization[:-1].rstrip(), f"Basic {token}")
        ]
    for header in wrong:
        for method, place in asked:
            body = job.sample.body if place == job.sample.submit_to else None
            answer = await bare.request(method, place, json=body, header=header)
            if answer.status in {200, 404} and not header and (method, place) == asked[0]:
                s.skip_no_occasion("the server accepts anonymous callers")
            s.at(answer).refused("TW-SEC-003", 401, "unauthorized", f"{method} {place}")
            s.at(answer).expect("TW-SEC-003", answer.response_header("www-authenticate"), "WWW-Authenticate")
            s.at(answer).status("TW-SEC-002", 401)
    control = await s.read(job)
    s.at(control).status("TW-SEC-003", 200, "with credentials")


@check("TW-SEC-011")
async def credentials_in_the_url_are_not_accepted(s: Session) -> None:
    """The server does not accept the caller's bearer token in the URL."""
    authorization = dict(s.wire.header).get("Authorization", "")
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer":
        s.skip_no_occasion("the run has no bearer token; pass one with --header")
    job = await s.submit(s.any_sample())
    bare = await s.get(job.path, header={"Authorization": None})
    s.skip_unless(bare.status in {401, 404}, f"{bare} without credentials returned {bare.outcome}")
    for name in ("access_token", "token", "api_key"):
        answer = await s.get(f"{job.path}?{name}={secret}", header={"Authorization": None})
        same = answer.outcome == bare.outcome
        s.at(answer).response("TW-SEC-011", same, f"{bare.outcome}, as without {name}")
