"""Chapter 9, and what is refused: each wrong request has a twin that differs in the fault alone and is served."""

import re
from typing import Any, NamedTuple

from tidewire_conformance import specification
from tidewire_conformance.history import job_bodies
from tidewire_conformance.probe import Work
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session
from tidewire_conformance.strict_json import compact
from tidewire_conformance.wire import Body, Exchange, Header

_INSIDES = re.compile(
    r'Traceback|File \\?"|site-packages|\bat .+\.(?:js|mjs|java|go|rs):\d+|/(?:home|usr|root|srv)/\S+\.\w+'
)
UNKNOWN_JOB = "A" * 22
JSON: Header = {"Content-Type": "application/json"}


def some_work(s: Session) -> Work:
    """Work that ends well."""
    return s.server.any_work() or s.untested("no example of an endpoint ended well")


def refused(s: Session, sentence: str, answer: Exchange, status: int, code: str, why: str = "") -> None:
    """Judge that a request was refused, and for the right reason."""
    s.expect(sentence, (answer.status, answer.code) == (status, code), f"{status} {code}{why and f' for {why}'}",
             f"{answer.status} {answer.code}", at=answer)  # fmt: skip


async def twin(s: Session, sentence: str, work: Work, why: str) -> None:
    """The same submit without the fault."""
    answer = await s.wire.ask("POST", work.submit_to, json=work.body)
    s.expect(sentence, answer.status == 201, f"201 for {why}", f"{answer.status} {answer.code}", at=answer)


# ---- over the whole run --------------------------------------------------------------------------------------------


@check("TW-ERR-001", "TW-ERR-002", "TW-ERR-003", "TW-ERR-004", "TW-ERR-020", over_all=True)
async def errors_are_problems_of_the_registry(s: Session) -> None:
    """Each error is a problem by its schema, with the media type and status it names, and a code of the registry."""
    codes = specification.problem_codes()
    for each in s.wire.record:
        found = [(block.json, block) for block in each.of_type("problem")]
        if each.status >= 400 and each.is_whole:
            s.expect("TW-ERR-002", each.media_type == "application/problem+json", "application/problem+json",
                     each.says("content-type"), at=each)  # fmt: skip
            if s.expect(
                "TW-ERR-001",
                isinstance(each.json, dict),
                "a problem as the body",
                repr(each.body[:200]),
                at=each,
            ):
                s.expect("TW-ERR-003", each.json.get("status") == each.status, f"status {each.status}",
                         each.json.get("status"), at=each)  # fmt: skip
                found.append((each.json, None))  # type: ignore[arg-type]
        found += [(item["error"], None) for item in _items(each) if "error" in item]  # type: ignore[misc]
        for problem, block in found:
            misfit = specification.misfit("problem", problem)
            if not s.expect(
                "TW-ERR-001", not misfit, "a problem by its schema", misfit, at=each, block=block
            ):
                continue
            known = codes.get(problem["code"])
            own = known is not None or bool({".", ":"} & set(problem["code"]))
            s.expect(
                "TW-ERR-020",
                own,
                "a code of the registry, with a dot, or a URI",
                problem["code"],
                at=each,
                block=block,
            )
            if known is not None:
                got = problem["status"], problem.get("retryable", False)
                s.expect("TW-ERR-004", got == tuple(known), f"status and retryable {tuple(known)} for {problem['code']}",
                         got, at=each, block=block)  # fmt: skip


def _items(each: Exchange) -> list[dict[str, Any]]:
    return [item for body in job_bodies(each) for item in body.get("state", {}).get("items", [])]


@check("TW-JOB-005", over_all=True)
async def json_is_called_json(s: Session) -> None:
    """Each answer with a body that is neither a stream nor a problem is `application/json`."""
    for each in s.wire.record:
        if each.is_whole and 200 <= each.status < 300 and each.body and not each.is_stream:
            s.expect("TW-JOB-005", each.media_type == "application/json", "application/json", each.says("content-type"),
                     at=each)  # fmt: skip


@check("TW-ERR-006", "TW-ERR-007", over_all=True)
async def who_has_to_wait_is_told_how_long(s: Session) -> None:
    """409, 429 and 503 carry `Retry-After` in whole seconds, and `retry_after_ms` that is not above it."""
    waits = [each for each in s.wire.record if each.status in {409, 429, 503} and each.is_whole]
    if not waits:
        s.no_occasion("no request of this run was answered with 409, 429 or 503")
    for each in waits:
        seconds = each.says("retry-after")
        whole = re.fullmatch(r"[1-9][0-9]{0,8}", seconds)
        s.expect("TW-ERR-006", whole, "Retry-After, at least 1", seconds, at=each)
        wait = each.json.get("retry_after_ms") if isinstance(each.json, dict) else None
        sound = type(wait) is int and (not whole or wait <= 1000 * int(seconds))
        s.expect("TW-ERR-007", sound, f"retry_after_ms of at most {seconds} s", wait, at=each)


@check("TW-ERR-008", over_all=True)
async def nothing_of_the_insides_gets_out(s: Session) -> None:
    """No stack trace and no path of the server's file system in an answer that tells of an error."""
    for each in s.wire.record:
        texts = [block.data for block in each.of_type("problem")] + [
            compact(i["error"]) for i in _items(each) if "error" in i
        ]
        texts += [each.body] if each.status >= 400 else []
        for text in texts:
            found = _INSIDES.search(text.decode("utf-8", "replace"))
            s.expect("TW-ERR-008", not found, "nothing of the server's insides", found and found[0], at=each)


# ---- URLs, methods, media types ------------------------------------------------------------------------------------


@check("TW-JOB-002", "TW-JOB-003", "TW-JOB-013", "TW-JOB-043", "TW-DSC-016", "TW-RES-029")
async def what_there_is_not_is_refused(s: Session) -> None:
    """Unknown URLs, endpoints and jobs get 404 with a code of their own; a wrong method gets 405 and `Allow`."""
    refused(s, "TW-JOB-002", await s.wire.ask("GET", "/v1/nothing"), 404, "not_found")
    refused(
        s, "TW-DSC-016", await s.wire.ask("GET", "/v1/endpoints/there-is-none"), 404, "endpoint_not_found"
    )
    answer = await s.wire.ask("POST", "/v1/endpoints/there-is-none/jobs", json={"input": {}})
    refused(s, "TW-JOB-013", answer, 404, "endpoint_not_found")
    asked = [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("GET", "/events?after=1-1")]
    asked += [("DELETE", "")] if "delete" in s.server.capabilities else []
    asked += [("POST", "/stream-token")] if "stream_tokens" in s.server.capabilities else []
    for method, place in asked:
        answer = await s.wire.ask(method, f"/v1/jobs/{UNKNOWN_JOB}{place}")
        refused(s, "TW-JOB-043", answer, 404, "job_not_found")
        refused(s, "TW-RES-029", answer, 404, "job_not_found")
    work = some_work(s)
    for method, place, right in (
        ("POST", "/v1", "GET"),
        ("GET", work.submit_to, "POST"),
        ("PUT", "/v1", "GET"),
    ):
        answer = await s.wire.ask(method, place)
        refused(s, "TW-JOB-003", answer, 405, "method_not_allowed", f"{method} {place}")
        allowed = [each.strip() for each in answer.says("allow").split(",")]
        s.expect("TW-JOB-003", right in allowed, f"Allow: {right}", answer.says("allow"), at=answer)
    job = await s.submit(work)
    for place in (f"{job.path}/nothing", f"{job.path}/events/1"):
        refused(s, "TW-JOB-002", await s.wire.ask("GET", place), 404, "not_found", place)
    s.expect("TW-JOB-043", (await s.read(job)).status == 200, "200 for a job that there is")


class Fault(NamedTuple):
    """A body that is wrong, and how it is refused."""

    why: str
    sentence: str
    body: bytes
    status: int
    code: str


def _deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


MALFORMED = [
    ("an object that does not end", b'{"input": {}'),
    ("no JSON at all", b"input=1"),
    ("a number that is not finite", b'{"input": 1e999}'),
    ("NaN", b'{"input": NaN}'),
    ("an integer beyond 2^53", b'{"input": 9007199254740993}'),
    ("two members of one name", b'{"input": {}, "input": {}}'),
    ("a lone surrogate", b'{"input": "\\ud800"}'),
    ("65 levels", b'{"input": ' + _deep(64) + b"}"),
    ("100000 levels", b'{"input": ' + _deep(100_000) + b"}"),
    ("no UTF-8", b'{"input": "\xff"}'),
]


@check("TW-OVR-008", "TW-OVR-001", "TW-OVR-002", "TW-OVR-003", "TW-OVR-004", "TW-OVR-005", "TW-SEC-016")
async def a_body_that_breaks_json_is_refused(s: Session) -> None:
    """What section 1.4 forbids gets 400 `malformed_body`, or 422 where it lies within the input; a sound one 201."""
    work = some_work(s)
    limit = s.server.limits.get("max_body_bytes", 0)
    for why, body in MALFORMED:
        if len(body) > limit:
            continue
        answer = await s.wire.ask("POST", work.submit_to, body=body, header=JSON)
        told = answer.status, answer.code
        sound = told == (400, "malformed_body") or (told == (422, "invalid_input") and b'"input": ' in body)
        s.expect("TW-SEC-016" if "levels" in why else "TW-OVR-008", sound, f"400 malformed_body for {why}",
                 f"{answer.status} {answer.code}", at=answer)  # fmt: skip
    await twin(s, "TW-OVR-008", work, "a sound body")


@check("TW-JOB-009", "TW-JOB-010", "TW-JOB-080")
async def a_body_of_another_media_type_is_refused(s: Session) -> None:
    """Another media type, a content coding and another charset get 415; JSON in its spellings is taken."""
    work = some_work(s)
    body = compact(work.body)
    wrong: list[tuple[str, Header]] = [
        ("TW-JOB-010", {"Content-Type": "text/plain"}),
        ("TW-JOB-010", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("TW-JOB-010", {}),
        ("TW-JOB-009", {**JSON, "Content-Encoding": "gzip"}),
        ("TW-JOB-080", {"Content-Type": "application/json; charset=latin-1"}),
    ]
    for sentence, header in wrong:
        answer = await s.wire.ask("POST", work.submit_to, body=body, header=header)
        refused(s, sentence, answer, 415, "unsupported_media_type", str(header))
    right = [
        ("TW-JOB-010", "application/json"),
        ("TW-JOB-010", "application/vnd.example+json"),
        ("TW-JOB-080", "application/json; charset=UTF-8"),
        ("TW-JOB-080", 'Application/JSON;charset="utf-8"'),
    ]
    for sentence, media in right:
        answer = await s.wire.ask("POST", work.submit_to, body=body, header={"Content-Type": media})
        s.expect(
            sentence, answer.status == 201, f"201 for {media}", f"{answer.status} {answer.code}", at=answer
        )
    s.expect(
        "TW-JOB-009",
        (await s.wire.ask("POST", work.submit_to, body=body, header=JSON)).status == 201,
        "201 without a coding",
    )


@check("TW-JOB-008")
async def both_framings_of_a_body_are_taken(s: Session) -> None:
    """A body in chunks is taken like one with a length."""
    work = some_work(s)
    body = compact(work.body)
    pieces: list[Body] = [body, [body], [body[:1], body[1:5], body[5:]]]
    for each in pieces:
        answer = await s.wire.ask("POST", work.submit_to, body=each, header=JSON)
        s.expect("TW-JOB-008", answer.status == 201, "201", f"{answer.status} {answer.code}", at=answer)


# ---- submits -------------------------------------------------------------------------------------------------------


@check("TW-JOB-011", "TW-JOB-077", "TW-JOB-016", "TW-JOB-079", "TW-JOB-012", "TW-JOB-083")
async def a_submit_of_another_shape_is_refused(s: Session) -> None:
    """Both `input` and `inputs`, neither, an empty list, null, no object, a value that the table has not: 422, a pointer."""
    work = some_work(s)
    given = work.inputs[0]
    wrong: list[tuple[str, Any]] = [
        ("TW-JOB-077", []),
        ("TW-JOB-077", 7),
        ("TW-JOB-077", "input"),
        ("TW-JOB-011", {}),
        ("TW-JOB-011", {"input": given, "inputs": [given]}),
        ("TW-JOB-011", {"inputs": []}),
        ("TW-JOB-079", {"input": given, "deadline_ms": None}),
        ("TW-JOB-079", {"input": given, "on_disconnect": None}),
        ("TW-JOB-012", {"input": 7, "shared": {}}),
        ("TW-JOB-083", {"input": given, "deadline_ms": 0}),
        ("TW-JOB-083", {"input": given, "deadline_ms": "9"}),
        ("TW-JOB-083", {"input": given, "deadline_ms": 600_000.5}),
        ("TW-JOB-083", {"input": given, "deadline_ms": True}),
        ("TW-JOB-083", {"input": given, "grace_ms": -1}),
        ("TW-JOB-083", {"input": given, "on_disconnect": "stay"}),
        ("TW-JOB-083", {"input": given, "shared": []}),
    ]
    for sentence, body in wrong:
        answer = await s.wire.ask("POST", work.submit_to, json=body)
        refused(s, sentence, answer, 422, "invalid_input", str(body)[:80])
        if answer.status == 422:
            pointer = answer.json.get("pointer")
            s.expect("TW-JOB-016", isinstance(pointer, str) and _leads(body, pointer), "a pointer into the body", pointer,
                     at=answer)  # fmt: skip
    await twin(s, "TW-JOB-011", work, "one input")


def _leads(body: Any, pointer: str) -> bool:
    """Whether a pointer names a place of a body, or a member that it lacks."""
    value = body
    for token in pointer.split("/")[1:]:
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
            value = value[int(token)]
        else:
            return pointer.endswith(f"/{token}") and isinstance(value, dict | list)
    return True


@check("TW-JOB-014", "TW-JOB-015", "TW-JOB-021", "TW-JOB-016")
async def an_input_that_does_not_fit_is_refused(s: Session) -> None:
    """An input that breaks the endpoint's own schema gets 422 before anything runs, also where a stream was asked for."""
    found = next(((work, bad) for work in _candidates(s) for bad in unfit(s, work)), None)
    if found is None:
        s.untested("no endpoint has a schema that refuses null, a number, a list or an unknown member")
    work, bad = found
    for accept in ("application/json", "text/event-stream"):
        answer = await s.wire.ask("POST", work.submit_to, json={"input": bad}, header={"Accept": accept})
        refused(
            s,
            "TW-JOB-014" if accept == "application/json" else "TW-JOB-021",
            answer,
            422,
            "invalid_input",
            str(bad)[:80],
        )
        refused(s, "TW-JOB-015", answer, 422, "invalid_input", str(bad)[:80])
        pointer = answer.json.get("pointer", "") if answer.status == 422 else ""
        s.expect(
            "TW-JOB-016",
            str(pointer).startswith("/input"),
            "a pointer that begins with /input",
            pointer,
            at=answer,
        )
    await twin(s, "TW-JOB-015", work, "an input that fits")


def _candidates(s: Session) -> list[Work]:
    script = s.server.any_work()
    return ([script] if script else []) + [work for work in s.server.seen if work.ended == "succeeded"]


def unfit(s: Session, work: Work) -> list[Any]:
    """Inputs that the endpoint's own schema refuses."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - beside its one use

    validator = Draft202012Validator(s.server.endpoints[work.endpoint].description["input_schema"])
    good = work.inputs[0]
    tries: list[Any] = [None, 7, []]
    if isinstance(good, dict):
        tries = [{**good, name: {"no": "such"}} for name in good] + [{**good, "no such member": 1}, *tries]
    return [each for each in tries if not validator.is_valid(each)]


@check("TW-JOB-017", "TW-JOB-005")
async def accept_decides_the_form_of_the_answer(s: Session) -> None:
    """JSON unless an event stream is named with a weight; 406 where neither is admitted."""
    work = some_work(s)
    forms = [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("application/json, text/event-stream;q=0", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("application/json, text/event-stream;q=0.1", "text/event-stream"),
        ("TEXT/event-stream", "text/event-stream"),
        ("text/html", "application/problem+json"),
        ("text/event-stream;q=0", "application/problem+json"),
    ]
    for accept, media in forms:
        answer = await s.wire.ask(
            "POST", work.submit_to, json=work.body, header={"Accept": accept}, seconds=30 + work.seconds
        )
        s.expect("TW-JOB-017", answer.media_type == media, f"{media} for Accept: {accept}",
                 f"{answer.status} {answer.media_type}", at=answer)  # fmt: skip
        if media == "application/problem+json":
            refused(s, "TW-JOB-017", answer, 406, "not_acceptable", f"Accept: {accept}")
    read = await s.wire.ask("GET", "/v1", header={"Accept": "application/json, */*;q=0.1"})
    s.expect(
        "TW-JOB-005",
        read.media_type == "application/json",
        "application/json",
        read.says("content-type"),
        at=read,
    )


@check("TW-JOB-006", "TW-JOB-007", "TW-JOB-078", "TW-OVR-009")
async def parameters_and_members_are_read_as_said(s: Session) -> None:
    """What is not known is ignored, what is empty is absent, what stands twice or has a wrong value is refused."""
    work = some_work(s)
    job, history = await s.ended(work)
    for query in ("?colour=red", "?diffs=&errors=", "?after=&colour="):
        answer = await s.stream(job, query=query)
        s.expect("TW-JOB-006" if "colour" in query else "TW-JOB-078", answer.is_stream, f"a stream for {query}",
                 f"{answer.status} {answer.code}", at=answer)  # fmt: skip
    first = history.logged[0].id
    for query in (f"?after={first}&after={first}", "?diffs=2", "?errors=yes", "?diffs=0&min_interval_ms=x"):
        answer = await s.stream(job, query=query)
        refused(s, "TW-JOB-007", answer, 400, "bad_parameter", query)
    answer = await s.wire.ask("POST", work.submit_to, json={**work.body, "x.colour": {"red": [1]}})
    s.expect(
        "TW-OVR-009",
        answer.status == 201,
        "201 for a member that is not known",
        f"{answer.status} {answer.code}",
        at=answer,
    )


@check("TW-SEC-018", "TW-SEC-019")
async def what_a_client_sends_stays_data(s: Session) -> None:
    """Line ends, markup and `__proto__` in a value come back as they were, inside JSON."""
    text = "a\r\nid:9-9\n\ndata:x\r\u2028<script>\u0000"
    work = s.server.script(
        {"set": ["", {}]}, {"set": ["/__proto__", {"a": text}]}, {"set": ["/constructor", 1]}, initial=None
    )
    if work is None:
        s.untested("needs tidewire.script")
    job, history = await s.ended(work)
    value = (await s.read(job)).json["state"]["items"][0]["value"]
    s.expect(
        "TW-SEC-019",
        value == {"__proto__": {"a": text}, "constructor": 1},
        "members of any name",
        value,
        at=history,
    )
    ids = [block.id for block in history.logged]
    s.expect(
        "TW-SEC-018",
        "9-9" not in ids and history.reader.unfinished == b"",
        "no event of a client's making",
        ids,
        at=history,
    )
