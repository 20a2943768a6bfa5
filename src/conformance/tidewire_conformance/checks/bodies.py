"""Sections 1.4 and 2.4 at their bounds: what is just allowed is taken, and what is wrong in a corner is not.

The fault stands in a member of the submit that is not known: nothing but the rules of JSON can refuse it.
"""

from tidewire_conformance.checks.errors import JSON, refused, some_work
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session
from tidewire_conformance.strict_json import compact

LARGEST_BODY = 4 * 2**20
"""Bytes of a body that the suite sends to see it taken."""
MOST_INPUTS = 64
"""Inputs of a job that the suite submits to see them taken."""


def _deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


SOUND = [
    ("TW-OVR-003", "2^53", b"9007199254740992"),
    ("TW-OVR-003", "-2^53", b"-9007199254740992"),
    ("TW-OVR-002", "1e308", b"1e308"),
    ("TW-OVR-002", "a number that is nearly 0", b"[-0, 4.9e-324, 1e-999]"),
    ("TW-OVR-005", "a pair of surrogates", b'"\\ud83d\\ude00"'),
    ("TW-OVR-004", "one name in two objects", b'{"a": {"a": [{"a": 1}, {"a": 1}]}, "A": 2, "": 3}'),
    ("TW-DSC-004", "64 levels", _deep(63)),
]
WRONG = [
    ("TW-OVR-003", "2^53 + 1", b"9007199254740993"),
    ("TW-OVR-003", "an integer of 400 digits", b"-1" + b"0" * 400),
    ("TW-OVR-002", "a number that is not finite", b"-1e309"),
    ("TW-OVR-002", "-Infinity", b"-Infinity"),
    ("TW-OVR-004", "two names of which one is escaped", b'{"a": 1, "\\u0061": 2}'),
    ("TW-OVR-004", "two members of one name, far down", b'[[{"b": {"a": 1, "a": 1}}]]'),
    ("TW-OVR-005", "the second half of a pair", b'"x\\udc00"'),
    ("TW-OVR-005", "a pair the wrong way round", b'"\\ude00\\ud83d"'),
    ("TW-OVR-005", "half a pair in a name", b'{"\\ud800": 1}'),
    ("TW-OVR-001", "a surrogate in three bytes", b'"\xed\xa0\x80"'),
    ("TW-OVR-001", "a character in more bytes than it needs", b'"\xc0\xaf"'),
    ("TW-OVR-008", "a raw line end in a string", b'"a\nb"'),
    ("TW-OVR-008", "a number with a leading zero", b"01"),
    ("TW-DSC-012", "65 levels", _deep(64)),
]


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
async def the_rules_of_json_hold_up_to_their_bounds(s: Session) -> None:
    """Each value that section 1.4 just allows is taken, and each that it forbids gets 400 `malformed_body`."""
    work = some_work(s)
    whole = compact(work.body)

    async def told(body: bytes) -> tuple[int, str]:
        answer = await s.wire.ask("POST", work.submit_to, body=body, header=JSON)
        return answer.status, answer.code

    for sentence, what, value in SOUND:
        got = await told(whole[:-1] + b', "x.colour": ' + value + b"}")
        s.expect(sentence, got[0] == 201, f"201 for {what}", got)
    for sentence, what, value in WRONG:
        got = await told(whole[:-1] + b', "x.colour": ' + value + b"}")
        s.expect(sentence, got == (400, "malformed_body"), f"400 malformed_body for {what}", got)
    for sentence, what, body in (
        ("TW-OVR-001", "a byte order mark", b"\xef\xbb\xbf" + whole),
        ("TW-OVR-001", "UTF-16", whole.decode().encode("utf-16")),
        ("TW-OVR-008", "two bodies in one", whole + whole),
        ("TW-OVR-008", "an empty body", b""),
    ):
        got = await told(body)
        s.expect(sentence, got == (400, "malformed_body"), f"400 malformed_body for {what}", got)


@check("TW-DSC-004")
async def a_limit_is_reached_before_it_is_passed(s: Session) -> None:
    """A body of exactly `max_body_bytes` is taken, and so is a job of exactly as many inputs as are allowed."""
    work = some_work(s)
    limit = s.server.limits.get("max_body_bytes", LARGEST_BODY + 1)
    if limit <= LARGEST_BODY:
        body = compact(work.body).ljust(limit)
        answer = await s.wire.ask("POST", work.submit_to, body=body, header=JSON)
        s.expect("TW-DSC-004", answer.status == 201, f"201 for a body of {limit} bytes", f"{answer.status} {answer.code}",
                 at=answer)  # fmt: skip
    many = s.server.batching() if "batches" in s.server.capabilities else None
    count = s.server.limits_of_batch(many) if many else MOST_INPUTS + 1
    if many and count <= MOST_INPUTS:
        answer = await s.wire.ask("POST", many.submit_to, json={"inputs": many.inputs[:1] * count})
        s.expect(
            "TW-DSC-004",
            answer.status == 201,
            f"201 for {count} inputs",
            f"{answer.status} {answer.code}",
            at=answer,
        )
    if not s.assertions:
        s.untested(f"no limit is within reach: max_body_bytes is {limit}")


@check("TW-JOB-077", "TW-JOB-079", "TW-JOB-010", "TW-OVR-008")
async def a_cancel_of_another_shape_cancels_nothing(s: Session) -> None:
    """A body that is no object, `items` of null, another media type and no JSON are refused; the job goes on."""
    work = s.server.lasting(1.0) or s.untested("no example lasts and grows; tidewire.script would serve")
    job = await s.submit(work)
    for sentence, body in (("TW-JOB-077", []), ("TW-JOB-077", 7), ("TW-JOB-079", {"items": None})):
        answer = await s.wire.ask("POST", f"{job.path}/cancel", json=body)
        refused(s, sentence, answer, 422, "invalid_input", f"the body {body}")
    for sentence, text, media, status, code in (
        ("TW-JOB-010", b"{}", "text/plain", 415, "unsupported_media_type"),
        ("TW-OVR-008", b"{", "application/json", 400, "malformed_body"),
    ):
        answer = await s.wire.ask("POST", f"{job.path}/cancel", body=text, header={"Content-Type": media})
        refused(s, sentence, answer, status, code, f"{text!r} as {media}")
    done = (await s.stream(job)).of_type("done")
    ended = done[0].json.get("status") if done else "no done"
    if all(each.holds for each in s.assertions):
        s.expect("TW-JOB-077", ended == work.ended, f"a job that ends as {work.ended}", ended)
