"""Checks for section 9.3 and chapter 10: in-band problems, stream tokens and CORS."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from urllib.parse import urlsplit

from tidewire_conformance.checks.bodies import MAX_TESTED_BODY
from tidewire_conformance.checks.errors import UNKNOWN_JOB
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import EVENT_STREAM, JSON, Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve

INBAND = ["inband_problems"]
TOKENS = ["stream_tokens"]
ALLOWED = {"authorization", "content-type", "idempotency-key", "last-event-id"}
EXPOSED = {"location", "content-location", "retry-after", "idempotency-replayed"}
TOKEN_SECONDS = 300
"""Maximum lifetime of a stream token in seconds (TW-BRW-015)."""
EXPIRY_TOLERANCE = 10
"""Maximum number of seconds that a stream may stay open after its token has expired (TW-BRW-027)."""
TESTED_TOKEN_SECONDS = 10
"""Longest lifetime of a stream token, in seconds, for which a check waits until the token expires."""


@check("TW-ERR-014", "TW-ERR-015", "TW-ERR-021", "TW-ERR-018", "TW-FRM-007", needs=INBAND)
async def errors_inband_returns_problem_events(s: Session) -> None:
    """With `errors=inband`, an error is reported as a stream with status 200, `retry`, and a final `problem` event with the id `0-1`."""
    job, _ = await s.run_to_end(s.any_sample())
    asked = [
        (f"/v1/jobs/{UNKNOWN_JOB}/events?errors=inband", "job_not_found"),
        (f"{job.events}?errors=inband&after=x", "bad_cursor"),
        (f"{job.events}?errors=inband&diffs=7", "bad_parameter"),
        (f"{job.events}?errors=inband", "bad_cursor"),
    ]
    for place, code in asked:
        wrong = {"Last-Event-ID": "x"} if place.endswith(f"{job.id}/events?errors=inband") else {}
        answer = await s.get(place, header=EVENT_STREAM | wrong)
        found = answer.of_type("problem")
        sound = answer.is_stream and found and found[0].member("code") == code
        got = f"{answer.status} {json_text([block.json for block in found])}"
        s.at(answer).expect("TW-ERR-014", sound, f"200 and a problem {code} in the stream", got)
        s.at(answer).expect(
            "TW-ERR-014", any(block.retry is not None for block in answer.blocks), "a retry field"
        )
        s.at(answer).expect(
            "TW-ERR-015", found and found[0].id == "0-1", "the id 0-1 on the problem", found and found[0].id
        )
        s.at(answer).expect("TW-FRM-007", answer.is_whole, "the end of the response", answer.ended)
        if UNKNOWN_JOB in place:
            s.at(answer).expect("TW-ERR-018", not answer.of_type("hello"), "no hello for an unknown job")
    if "delete" in s.server.capabilities and s.server.limits.get("tombstone_ttl_s", 0):
        gone, _ = await s.run_to_end(s.any_sample())
        await s.wire.request("DELETE", gone.path)
        answer = await s.stream(gone, query="?errors=inband")
        names = [block.member("code") for block in answer.of_type("problem")]
        got = f"{answer.status} {json_text(names)}"
        s.at(answer).expect(
            "TW-ERR-014", names == ["job_expired"], "a problem job_expired in the stream", got
        )
        ended = await s.stream(gone, "0-1", query="?errors=inband")
        s.at(ended).status("TW-ERR-021", 204, "for the cursor 0-1 of a purged job")
    if s.wire.header:
        bare = await s.get(asked[0][0], header=EVENT_STREAM | {"Authorization": None})
        sound = bare.is_stream and bare.of_type("problem")
        s.at(bare).response("TW-ERR-014", sound, "200 and a problem in the stream, even without credentials")
    control = await s.stream(job, query="?errors=inband")
    s.at(control).response("TW-ERR-014", control.of_type("done"), "the stream for a valid request")


@check("TW-ERR-021", needs=INBAND)
async def cursor_0_1_returns_204(s: Session) -> None:
    """A stream request with the cursor `0-1` gets 204 for any job, even without credentials or `errors=inband`."""
    for place in (f"/v1/jobs/{UNKNOWN_JOB}/events?errors=inband", f"/v1/jobs/{UNKNOWN_JOB}/events"):
        answer = await s.get(place, header=EVENT_STREAM | {"Last-Event-ID": "0-1", "Authorization": None})
        s.at(answer).status("TW-ERR-021", 204)


@check("TW-ERR-019", whole_run=True)
async def problem_events_are_sent_only_on_request(s: Session) -> None:
    """A stream contains a `problem` event only if its URL has `errors=inband` or a stream token."""
    for each in (each for each in s.wire.record if each.is_stream):
        asked = each.query.get("errors") == ["inband"] or "token" in each.query
        s.at(each).expect("TW-ERR-019", asked or not each.of_type("problem"), "no problem event")


async def _token(s: Session, job: Job) -> tuple[RecordedExchange, str]:
    answer = await s.wire.request("POST", f"{job.path}/stream-token")
    s.skip_unless(
        answer.status == 200 and "url" in answer.members,
        f"{answer} returned {answer.outcome}",
    )
    return answer, resolve(answer, answer.member("url"))


@check("TW-BRW-012", "TW-BRW-014", "TW-BRW-017", "TW-BRW-020", "TW-BRW-015", needs=TOKENS)
async def stream_token_opens_its_stream(s: Session) -> None:
    """A stream with a stream token needs no credentials, reports errors as events, and has `Referrer-Policy: no-referrer`."""
    job, history = await s.run_to_end(s.any_sample())
    answer = await s.wire.request("POST", f"{job.path}/stream-token")
    s.at(answer).body("TW-BRW-012", 200, "stream-token")

    # A token may expire within seconds, so each request gets a new one.
    async def stream(
        parameters: str = "", header: Mapping[str, str | None] = MappingProxyType({})
    ) -> RecordedExchange:
        _, url = await _token(s, job)
        return await s.get(
            url + parameters, header={**EVENT_STREAM, "Authorization": None, "Cookie": None, **header}
        )

    opened = await stream()
    s.at(opened).response("TW-BRW-014", opened.of_type("done"), "the stream up to done")
    s.at(opened).equal(
        "TW-BRW-020", opened.response_header("referrer-policy"), "no-referrer", "Referrer-Policy: no-referrer"
    )
    wrong = await stream("&after=x")
    s.at(wrong).response(
        "TW-BRW-017", wrong.is_stream and wrong.of_type("problem"), "a problem event in the stream"
    )
    ids = history.logged_ids
    late = await stream(f"&after={ids[-2]}")
    s.at(late).expect("TW-BRW-014", late.logged_ids == ids[-1:], "the events after a cursor")
    # When an EventSource reconnects, it requests the same URL with the Last-Event-ID header.
    again = await stream(header={"Last-Event-ID": ids[-2]})
    s.at(again).expect(
        "TW-BRW-014", again.logged_ids == ids[-1:], "the events after the cursor in Last-Event-ID"
    )
    _judge_lifetime(s, answer, [opened, wrong, late])


def _judge_lifetime(s: Session, answer: RecordedExchange, later: list[RecordedExchange]) -> None:
    """Judge the lifetime of a token against the server's clock."""
    life = _lifetime(answer, later)
    if life is None:
        return  # `Date` or `expires_at` is missing or invalid. The schema check judges `expires_at`.
    expiry = answer.member("expires_at")
    s.at(answer).expect("TW-BRW-014", life > 0, f"expires_at after {answer.response_header('date')}", expiry)
    s.at(answer).expect(
        "TW-BRW-015", life <= TOKEN_SECONDS + 1, f"a lifetime of at most {TOKEN_SECONDS} s", f"{life:g} s"
    )


def _lifetime(answer: RecordedExchange, later: Sequence[RecordedExchange] = ()) -> float | None:
    """Return the lifetime of a token in seconds, or None if the response does not state it.

    The server's clock is the latest of several `Date` headers, because a busy server may update that header late.
    """
    try:
        now = max(
            parsedate_to_datetime(each.response_header("date"))
            - timedelta(seconds=each.answered - answer.answered)
            for each in (answer, *later)
        )
        return (datetime.fromisoformat(answer.member("expires_at")) - now).total_seconds()
    except (ValueError, KeyError, TypeError):
        return None


@check("TW-BRW-027", "TW-BRW-018", "TW-BRW-014", needs=TOKENS, seconds=1)
async def stream_ends_when_its_token_expires(s: Session) -> None:
    """When a stream token expires, its open stream ends with `goaway` and `auth_expired`; another token resumes it.

    The check needs a server whose stream tokens are valid for at most 10 seconds.
    """
    control = await s.submit(s.any_sample())
    life = _lifetime((await _token(s, control))[0])
    if life is None:
        s.skip_untested(
            "the lifetime of a stream token is unknown, because the responses have no valid `Date`"
        )
    if life > TESTED_TOKEN_SECONDS:
        s.skip_no_occasion(
            f"the check waits until a stream token expires, so tokens may be valid for at most {TESTED_TOKEN_SECONDS} s"
        )
    limit = life + EXPIRY_TOLERANCE + 1  # `Date` has whole seconds
    job = await s.submit(s.long_running_sample(2 * limit * s.wire.patience))
    _, url = await _token(s, job)
    bare = {**EVENT_STREAM, "Authorization": None, "Cookie": None}
    async with s.wire.open("GET", url, header=bare) as stream:
        ends = await stream.until(lambda now: now.ended, limit)
    opened = stream.exchange
    if opened.of_type("done"):
        s.skip_untested("no example starts a job that runs longer than a stream token is valid")
    reasons = [block.member("reason") for block in opened.of_type("goaway")]
    s.at(opened).expect(
        "TW-BRW-027",
        ends and reasons[-1:] == ["auth_expired"],
        f"goaway with auth_expired at most {EXPIRY_TOLERANCE} s after the token has expired",
        f"{'the end' if ends else 'an open stream'} {json_text(reasons)}",
    )
    refused = await s.get(url, header=bare)
    codes = [block.member("code") for block in refused.of_type("problem")]
    s.at(refused).equal("TW-BRW-018", codes, ["unauthorized"], "unauthorized for the expired token")
    _, renewed = await _token(s, job)
    last = opened.logged[-1].id if opened.logged else ""
    async with s.wire.open("GET", f"{renewed}&after={last}" if last else renewed, header=bare) as stream:
        continues = await stream.until(lambda now: now.of_type("hello"))
    s.at(stream.exchange).response("TW-BRW-014", continues, "the stream with another token")
    await s.cancel(job)


@check("TW-BRW-013", "TW-BRW-018", needs=TOKENS)
async def stream_token_is_limited_to_its_stream(s: Session) -> None:
    """A stream token opens no other job and no other resource, and a modified token gets the error `unauthorized`."""
    sample = s.any_sample()
    (job, _), (other, _) = await s.run_to_end(sample), await s.run_to_end(sample)
    _, url = await _token(s, job)
    token = urlsplit(url).query.partition("token=")[2].partition("&")[0]
    changed = ("A" if token[0] != "A" else "B") + token[1:]
    bare: dict[str, str | None] = {**EVENT_STREAM, "Authorization": None}
    places = [
        ("TW-BRW-013", url.replace(job.id, other.id)),
        ("TW-BRW-018", url.replace(token, changed)),
        ("TW-BRW-018", url.replace(token, f"{token}A")),
    ]
    for requirement, place in places:
        answer = await s.get(place, header=bare)
        found = answer.of_type("problem")
        code = found[0].member("code") if found else answer.code
        s.at(answer).expect(requirement, code == "unauthorized", "unauthorized", f"{answer.status} {code}")
        s.at(answer).expect(requirement, not answer.logged, "no event of the job", answer.logged_ids)
    if s.wire.header:
        for method, place in (
            ("GET", job.path),
            ("POST", f"{job.path}/cancel"),
            ("GET", f"{other.path}/events"),
        ):
            answer = await s.wire.request(method, f"{place}?token={token}", header={"Authorization": None})
            # A server that ignores the token may treat the request as that of an anonymous caller (TW-JOB-044).
            refused = answer.status in {401, 404} or answer.of_type("problem")
            wanted = f"401 or 404 for {method} {place} with the stream token"
            s.at(answer).response("TW-BRW-013", refused, wanted)
    control = await s.get(url, header=bare)
    s.at(control).response(
        "TW-BRW-013", control.of_type("done"), "the stream of the job that the token was issued for"
    )


# ---- pages of other origins ----------------------------------------------------------------------------------------


@check("TW-BRW-005", "TW-BRW-009", "TW-BRW-011", "TW-BRW-007")
async def allowed_origins_can_read_every_response(s: Session) -> None:
    """Each response to an allowed origin, even an error, names the origin, has `Vary: Origin`, and exposes the headers that pages need."""
    origin = s.hooks.origin or s.skip_no_occasion("no allowed origin; pass one with --origin")
    job, _ = await s.run_to_end(s.any_sample())
    header = {"Origin": origin}
    answers = [
        await s.get("/v1", header=header),
        await s.get(job.path, header=header),
        await s.stream(job, header=header),
        await s.get(f"/v1/jobs/{UNKNOWN_JOB}", header=header),
        await s.get("/v1/nothing", header=header),
        await s.post(job.sample, body=b"{", header=header | JSON),
        await s.stream(job, header=header | {"Accept": "text/html"}),
        await s.stream(job, "0-1", header=header),
        await s.get(job.path, header=header | {"Authorization": "Bearer not-one-of-yours"}),
        await s.wire.request("PUT", "/v1", header=header),
        await s.post(job.sample, body=b"{}", header=header | {"Content-Type": "text/plain"}),
        await s.post(job.sample, json={}, header=header),
        await s.post(job.sample, header=header),
        await s.post(job.sample, header=EVENT_STREAM | header),
        await s.cancel(job, header=header),
    ]
    if "delete" in s.server.capabilities:
        answers += [await s.wire.request(method, job.path, header=header) for method in ("DELETE", "GET")]
    most = s.server.limits.get("max_body_bytes", MAX_TESTED_BODY + 1)
    if most <= MAX_TESTED_BODY:
        answers += [await s.post(job.sample, body=b" " * (most + 1), header=header | JSON)]
    for answer in answers:
        allowed = _judge_allowed_origin(s, answer, origin)
        names = answer.response_words("access-control-expose-headers")
        s.at(answer).expect(
            "TW-BRW-009",
            names >= EXPOSED,
            f"at least the exposed headers {', '.join(sorted(EXPOSED))}",
            sorted(names),
        )
        varies = allowed == "*" or "origin" in answer.response_header("vary").lower()
        s.at(answer).expect("TW-BRW-011", varies, "Vary: Origin", answer.response_header("vary"))


def _judge_allowed_origin(s: Session, answer: RecordedExchange, origin: str) -> str:
    """Judge and return the `Access-Control-Allow-Origin` of a response. The value `*` allows every origin."""
    allowed = answer.response_header("access-control-allow-origin")
    wanted = f"Access-Control-Allow-Origin: {origin}"
    s.at(answer).expect("TW-BRW-005", allowed in {origin, "*"}, wanted, allowed)
    both = allowed == "*" and answer.response_header("access-control-allow-credentials") == "true"
    s.at(answer).expect("TW-BRW-007", not both, "no Access-Control-Allow-Origin: * together with credentials")
    return allowed


@check("TW-BRW-006")
async def other_origins_cannot_read_responses(s: Session) -> None:
    """If an origin is not allowed, no response to its pages has an `Access-Control-Allow-Origin` header that matches it."""
    for origin in ("https://other.invalid", f"{s.hooks.origin or 'https://page'}.other.invalid", "null"):
        answer = await s.get("/v1", header={"Origin": origin})
        allowed = answer.response_header("access-control-allow-origin")
        if s.hooks.origin and allowed == "*":
            s.skip_no_occasion("the server allows every origin")
        sound = allowed in {"", s.hooks.origin}
        s.at(answer).expect("TW-BRW-006", sound, f"no Access-Control-Allow-Origin for {origin}", allowed)


@check("TW-BRW-005", "TW-BRW-007", "TW-BRW-008", "TW-BRW-010")
async def preflight_allows_protocol_headers(s: Session) -> None:
    """The response to a preflight request allows the protocol's headers, and browsers may cache it for at least ten minutes."""
    origin = s.hooks.origin or s.skip_no_occasion("no allowed origin; pass one with --origin")
    header = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    # Send a preflight for each of these requests, without credentials, as browsers do.
    sample = s.any_sample()
    for method, place in (
        ("GET", "/v1"),
        ("GET", f"/v1/jobs/{UNKNOWN_JOB}/events"),
        ("DELETE", f"/v1/jobs/{UNKNOWN_JOB}"),
        ("POST", sample.submit_to),
    ):
        asked = {**header, "Access-Control-Request-Method": method, "Authorization": None}
        answer = await s.wire.request("OPTIONS", place, header=asked)
        _judge_preflight(s, answer, origin)


def _judge_preflight(s: Session, answer: RecordedExchange, origin: str) -> None:
    names = answer.response_words("access-control-allow-headers")
    _judge_allowed_origin(s, answer, origin)
    s.at(answer).expect(
        "TW-BRW-008",
        answer.status < 300 and names >= ALLOWED,
        f"at least the allowed headers {', '.join(sorted(ALLOWED))}",
        f"{answer.status} {', '.join(sorted(names))}",
    )
    age = answer.response_header("access-control-max-age")
    s.at(answer).expect(
        "TW-BRW-010", age.isdigit() and int(age) >= 600, "an Access-Control-Max-Age of at least 600", age
    )
