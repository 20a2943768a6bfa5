"""Checks for sections 1.4, 2.4 and 6.1: valid, invalid and oversized request bodies."""

from typing import Any

from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import JSON, Session
from tidewire_conformance.wire.json_violations import compact
from tidewire_conformance.wire.recording_client import Body, Header

MAX_TESTED_BODY = 4 * 2**20
"""Largest body, in bytes, that the suite sends to test a limit."""
MAX_TESTED_INPUTS = 64
"""Largest number of inputs that the suite submits to test a limit."""


def _deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


NOT_JSON = {"an unterminated object": b'{"input": {}', "a body that is not JSON": b"input=1"}
"""Request bodies that no JSON parser accepts, by description."""
REFUSALS = ((400, "malformed_body"), (422, "invalid_input"))
"""Allowed responses to a body that is not JSON. The profile `stream` allows both, and the profile `core` only the first one."""
MALFORMED = [
    *NOT_JSON.items(),
    ("a number that is not finite", b'{"input": 1e999}'),
    ("NaN", b'{"input": NaN}'),
    ("an integer beyond 2^53", b'{"input": 9007199254740993}'),
    ("two members with the same name", b'{"input": {}, "input": {}}'),
    ("a lone surrogate", b'{"input": "\\ud800"}'),
    ("65 nested levels", b'{"input": ' + _deep(64) + b"}"),
    ("100000 nested levels", b'{"input": ' + _deep(100_000) + b"}"),
    ("a body that is not UTF-8", b'{"input": "\xff"}'),
]
"""Malformed request bodies, each with a description.

In some bodies the fault is inside the member `input`, in others outside it.
"""
JSON_LIMIT_CASES: dict[str, tuple[dict[str, bytes], dict[str, bytes]]] = {
    "TW-OVR-001": (
        {},
        {
            "a surrogate encoded in three bytes": b'"\xed\xa0\x80"',
            "an overlong encoding of a character": b'"\xc0\xaf"',
        },
    ),
    "TW-OVR-002": (
        {"1e308": b"1e308", "numbers close to 0": b"[-0, 4.9e-324, 1e-999]"},
        {"a number that is not finite": b"-1e309", "-Infinity": b"-Infinity"},
    ),
    "TW-OVR-003": (
        {"2^53": b"9007199254740992", "-2^53": b"-9007199254740992"},
        {"2^53 + 1": b"9007199254740993", "an integer of 400 digits": b"-1" + b"0" * 400},
    ),
    "TW-OVR-004": (
        {"the same name in two objects": b'{"a": {"a": [{"a": 1}, {"a": 1}]}, "A": 2, "": 3}'},
        {
            "two equal names, one of them escaped": b'{"a": 1, "\\u0061": 2}',
            "two members with the same name in a nested object": b'[[{"b": {"a": 1, "a": 1}}]]',
        },
    ),
    "TW-OVR-005": (
        {"an escaped surrogate pair": b'"\\ud83d\\ude00"'},
        {
            "a lone low surrogate": b'"x\\udc00"',
            "a reversed surrogate pair": b'"\\ude00\\ud83d"',
            "a lone surrogate in a name": b'{"\\ud800": 1}',
        },
    ),
    "TW-OVR-008": (
        {},
        {"an unescaped line end in a string": b'"a\nb"', "a number with a leading zero": b"01"},
    ),
    "TW-DSC-004": ({"64 nested levels": _deep(63)}, {}),
    "TW-DSC-012": ({}, {"65 nested levels": _deep(64)}),
}
"""JSON values at the limits of section 1.4, by requirement: first the valid values, then the invalid ones.

The checks send each value in an unknown member of an otherwise valid body. The server can then reject the body only
because of the rules for JSON.
"""


@check(
    "TW-OVR-008",
    "TW-OVR-001",
    "TW-OVR-002",
    "TW-OVR-003",
    "TW-OVR-004",
    "TW-OVR-005",
    "TW-SEC-016",
    "TW-JOB-087",
)
async def invalid_json_is_rejected(s: Session) -> None:
    """A body that violates the JSON rules of section 1.4 gets 400 `malformed_body`, or 422 if the fault is inside the
    input.
    """
    sample = s.any_sample()
    limit = s.server.limits.get("max_body_bytes", MAX_TESTED_BODY)
    for why, body in MALFORMED:
        if len(body) > limit:
            continue
        answer = await s.post(sample, body=body, header=JSON)
        result = answer.status, answer.code
        sound = result == (400, "malformed_body") or (
            result == (422, "invalid_input") and b'"input": ' in body
        )
        requirement = "TW-SEC-016" if "levels" in why else "TW-OVR-008"
        s.at(answer).response(requirement, sound, f"400 malformed_body for {why}")
        if why in NOT_JSON:
            refused = result in REFUSALS
            s.at(answer).response("TW-JOB-087", refused, f"400 malformed_body or 422 invalid_input for {why}")
    s.at(await s.post(sample)).status("TW-OVR-008", 201, "for a valid body")


@check("TW-JOB-009", "TW-JOB-010", "TW-JOB-080")
async def unsupported_media_type_returns_415(s: Session) -> None:
    """The server accepts a body whose media type is JSON in UTF-8, in any valid spelling. Any other media type and any
    content coding get 415.
    """
    sample = s.any_sample()
    body = compact(sample.body)
    wrong: list[tuple[str, Header]] = [
        ("TW-JOB-010", {"Content-Type": "text/plain"}),
        ("TW-JOB-010", {"Content-Type": "application/x-www-form-urlencoded"}),
        ("TW-JOB-010", {}),
        ("TW-JOB-009", {**JSON, "Content-Encoding": "gzip"}),
        ("TW-JOB-080", {"Content-Type": "application/json; charset=latin-1"}),
    ]
    for requirement, header in wrong:
        answer = await s.post(sample, body=body, header=header)
        s.at(answer).refused(requirement, 415, "unsupported_media_type", str(header))
    right = [
        ("TW-JOB-010", "application/json"),
        ("TW-JOB-010", "application/vnd.example+json"),
        ("TW-JOB-080", "application/json; charset=UTF-8"),
        ("TW-JOB-080", 'Application/JSON;charset="utf-8"'),
    ]
    for requirement, media in right:
        answer = await s.post(sample, body=body, header={"Content-Type": media})
        s.at(answer).status(requirement, 201, f"for {media}")
    answer = await s.post(sample, body=body, header=JSON)
    s.at(answer).status("TW-JOB-009", 201, "for a body without content coding")


@check("TW-JOB-008")
async def chunked_bodies_are_accepted(s: Session) -> None:
    """The server accepts a body in chunked transfer coding as well as a body with `Content-Length`."""
    sample = s.any_sample()
    body = compact(sample.body)
    pieces: list[Body] = [body, [body], [body[:1], body[1:5], body[5:]]]
    for each in pieces:
        answer = await s.post(sample, body=each, header=JSON)
        s.at(answer).status("TW-JOB-008", 201)


@check("TW-SEC-018", "TW-SEC-019")
async def markup_and_line_ends_are_returned_unchanged(s: Session) -> None:
    """Line ends, markup and the name `__proto__` in a value are returned unchanged. They cannot inject events into a
    stream.
    """
    text = "a\r\nid:9-9\n\ndata:x\r\u2028<script>\u0000"
    sample = s.script_sample(
        {"set": ["", {}]}, {"set": ["/__proto__", {"a": text}]}, {"set": ["/constructor", 1]}, initial=None
    )
    job, history = await s.run_to_end(sample)
    value = s.items(await s.read(job))[0]["value"]
    s.at(history).equal(
        "TW-SEC-019", value, {"__proto__": {"a": text}, "constructor": 1}, "members of any name, unchanged"
    )
    ids = history.logged_ids
    sound = "9-9" not in ids and history.reader.unfinished == b""
    s.at(history).expect("TW-SEC-018", sound, "no event injected by the value", ids)


@check(
    "TW-OVR-001",
    "TW-OVR-002",
    "TW-OVR-003",
    "TW-OVR-004",
    "TW-OVR-005",
    "TW-OVR-008",
    "TW-DSC-004",
    "TW-DSC-012",
)
async def json_limits_are_exact(s: Session) -> None:
    """The server accepts JSON values up to the limits of section 1.4. A value beyond a limit gets 400 `malformed_body`."""
    sample = s.any_sample()
    whole = compact(sample.body)

    async def send(body: bytes) -> tuple[int, str]:
        answer = await s.post(sample, body=body, header=JSON)
        return answer.status, answer.code

    def judge(requirement: str, what: str, got: tuple[int, str]) -> None:
        if requirement == "TW-OVR-001":  # a requirement of the profile `stream`
            s.expect(requirement, got in REFUSALS, f"400 malformed_body or 422 invalid_input for {what}", got)
            requirement = "TW-OVR-008"
        s.expect(requirement, got == (400, "malformed_body"), f"400 malformed_body for {what}", got)

    def carrying(value: bytes) -> bytes:
        return whole[:-1] + b', "x.colour": ' + value + b"}"

    for requirement, (sound, wrong) in JSON_LIMIT_CASES.items():
        for what, value in sound.items():
            got = await send(carrying(value))
            s.expect(requirement, got[0] == 201, f"201 for {what}", got)
        for what, value in wrong.items():
            judge(requirement, what, await send(carrying(value)))
    for requirement, what, body in (
        ("TW-OVR-001", "a byte order mark", b"\xef\xbb\xbf" + whole),
        ("TW-OVR-001", "UTF-16", whole.decode().encode("utf-16")),
        ("TW-OVR-008", "two JSON texts in one body", whole + whole),
        ("TW-OVR-008", "an empty body", b""),
    ):
        judge(requirement, what, await send(body))


@check("TW-DSC-004")
async def requests_at_the_limits_are_accepted(s: Session) -> None:
    """The server accepts a body of exactly `max_body_bytes`, and a job with exactly the maximum number of inputs."""
    sample = s.any_sample()
    limit = s.server.limits.get("max_body_bytes", MAX_TESTED_BODY + 1)
    if limit <= MAX_TESTED_BODY:
        body = compact(sample.body).ljust(limit)
        answer = await s.post(sample, body=body, header=JSON)
        s.at(answer).status("TW-DSC-004", 201, f"for a body of {limit} bytes")
    many = s.server.batch_sample() if "batches" in s.server.capabilities else None
    count = s.server.max_inputs(many) if many else MAX_TESTED_INPUTS + 1
    if many and count <= MAX_TESTED_INPUTS:
        answer = await s.post(many, json={"inputs": many.inputs[:1] * count})
        s.at(answer).status("TW-DSC-004", 201, f"for {count} inputs")
    if not s.assertions:
        s.skip_untested(f"the limits are too large for the suite to test: max_body_bytes is {limit}")


@check("TW-JOB-087", "TW-OVR-008", "TW-JOB-009", "TW-JOB-010", seconds=1, after="cancels")
async def invalid_cancel_is_rejected(s: Session) -> None:
    """A cancel request with an invalid body, media type or content coding gets an error, and the job continues."""
    sample = s.long_running_sample(1.0)
    job = await s.submit(sample)
    bodies: list[Any] = [[], 7, {"items": None}]
    for body in bodies:
        answer = await s.cancel(job, json=body)
        s.at(answer).refused("TW-JOB-087", 422, "invalid_input", f"the body {json_text(body)}")
    wrong: list[tuple[str, bytes, Header, int, str]] = [
        ("TW-JOB-010", b"{}", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ("TW-JOB-009", b"{}", {**JSON, "Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
        ("TW-OVR-008", b"{", JSON, 400, "malformed_body"),
    ]
    for requirement, text, header, status, code in wrong:
        answer = await s.cancel(job, body=text, header=header)
        s.at(answer).refused(requirement, status, code, f"the body {json_text(text)} with {header}")
        if requirement == "TW-OVR-008":
            refused = (answer.status, answer.code) in REFUSALS
            wanted = "400 malformed_body or 422 invalid_input for a body that is not JSON"
            s.at(answer).response("TW-JOB-087", refused, wanted)
    ended = await s.final_status(job)
    if all(each.holds for each in s.assertions):
        s.expect(
            "TW-JOB-087", ended == sample.ended, f"the status {sample.ended} at the end of the job", ended
        )
