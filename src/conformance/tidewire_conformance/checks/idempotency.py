"""Checks for section 6.3: repeated requests to submit a job with the same `Idempotency-Key`."""

import asyncio
import secrets

from tidewire_conformance.judging.server_probe import SampleRequest
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, JSON, Session
from tidewire_conformance.wire.json_violations import compact
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import Header


def _keyed(s: Session) -> SampleRequest:
    """Return a sample request for a caller who may use idempotency keys. If the caller may not, skip the check."""
    if "idempotency" not in s.server.capabilities and not s.wire.header:
        s.skip_not_declared("the server does not declare `idempotency`, and the run has no credentials")
    return s.any_sample()


def _key() -> str:
    return secrets.token_hex(16)


async def _submit(
    s: Session, sample: SampleRequest, key: str, body: bytes | None = None, header: Header | None = None
) -> RecordedExchange:
    fields = {**JSON, "Accept": "application/json", "Idempotency-Key": key, **(header or {})}
    sent = compact(sample.body) if body is None else body
    return await s.post(sample, body=sent, header=fields, seconds=30 + sample.seconds)


@check("TW-JOB-024", "TW-JOB-028", "TW-JOB-029", "TW-JOB-035")
async def repeated_submit_returns_the_same_job(s: Session) -> None:
    """A repeated request with the same key and body returns the same job with `Idempotency-Replayed`. A request with
    another key creates a new job.
    """
    sample = _keyed(s)
    key = _key()
    first, again = await _submit(s, sample, key), await _submit(s, sample, key)
    other = await _submit(s, sample, _key())
    requirement = "TW-JOB-024" if s.wire.header else "TW-JOB-035"
    s.at(again).equal(requirement, again.member("id"), first.member("id"), f"the job {first.member('id')}")
    s.at(again).expect("TW-JOB-028", again.member("id") == first.member("id"), "the job of the first request")
    differs = other.status == 201 and other.member("id") != first.member("id")
    s.at(other).expect("TW-JOB-028", differs, "a new job for another key", other.member("id"))
    replayed = again.response_header("idempotency-replayed")
    s.at(again).equal("TW-JOB-029", replayed, "true", "Idempotency-Replayed: true")
    unasked = first.response_header("idempotency-replayed")
    s.at(first).empty("TW-JOB-029", unasked, "no Idempotency-Replayed in the first response")
    got = again.status, again.response_header("location")
    wanted = 201, first.response_header("location")
    s.at(again).equal("TW-JOB-029", got, wanted, f"201 and Location {wanted[1]}")


@check("TW-JOB-019", "TW-JOB-028", "TW-JOB-030", "TW-JOB-029")
async def repeated_submit_returns_the_ended_job(s: Session) -> None:
    """A repeated request gets the same job even after the job has ended. If it asks for a stream, the stream begins
    with a snapshot.
    """
    sample = _keyed(s)
    key = _key()
    first = await _submit(s, sample, key, header=EVENT_STREAM)
    s.skip_unless(first.of_type("done"), f"{first} returned no stream up to done")
    again = await _submit(s, sample, key)
    same = again.status == 201 and f"/{again.member('id')}" in first.response_header("location")
    s.at(again).response("TW-JOB-028", same, "201 and the same job")
    stream = await _submit(s, sample, key, header=EVENT_STREAM)
    kinds = stream.logged_types
    s.at(stream).expect(
        "TW-JOB-030", kinds[:1] == ["snapshot"], "a snapshot as the first logged event", kinds
    )
    replayed = stream.status == 200 and stream.response_header("idempotency-replayed") == "true"
    s.at(stream).response("TW-JOB-029", replayed, "200 and Idempotency-Replayed: true")
    links = stream.response_header("location"), stream.response_header("content-location")
    s.at(stream).expect("TW-JOB-019", all(links), "Location and Content-Location", links)


@check("TW-JOB-031")
async def key_reuse_with_another_body_returns_422(s: Session) -> None:
    """If a key is used again and the body differs by only one byte, the request gets 422 `idempotency_key_reused`."""
    sample = _keyed(s)
    key = _key()
    await _submit(s, sample, key)
    answer = await _submit(s, sample, key, compact(sample.body) + b" ")
    s.at(answer).refused("TW-JOB-031", 422, "idempotency_key_reused")


@check("TW-JOB-026")
async def keys_are_case_sensitive_and_scoped_to_the_endpoint(s: Session) -> None:
    """A key that was used before starts a new job if it is sent to another endpoint, or in another letter case."""
    sample = _keyed(s)
    key = "Key-" + _key()
    first = await _submit(s, sample, key)
    others = [("the key in another letter case", await _submit(s, sample, key.swapcase()))]
    elsewhere = next((each for each in s.server.samples if each.endpoint != sample.endpoint), None)
    if elsewhere is not None:
        others.append((f"the endpoint {elsewhere.endpoint}", await _submit(s, elsewhere, key)))
    for why, answer in others:
        differs = answer.status == 201 and answer.member("id") != first.member("id")
        s.at(answer).response("TW-JOB-026", differs, f"a new job for {why}")


@check("TW-JOB-025")
async def invalid_key_returns_400(s: Session) -> None:
    """An idempotency key has 1 to 255 visible ASCII characters, and any other key gets 400 `bad_parameter`."""
    sample = _keyed(s)
    for key in ("with a space", "x" * 256, ""):
        s.at(await _submit(s, sample, key)).refused(
            "TW-JOB-025", 400, "bad_parameter", f"a key of {len(key)} characters"
        )
    for key in ("!", "~" * 223 + _key()):
        answer = await _submit(s, sample, key if len(key) > 1 else key + _key())
        s.at(answer).status("TW-JOB-025", 201, "for a valid key")


@check("TW-JOB-034")
async def rejected_submit_does_not_use_up_its_key(s: Session) -> None:
    """After the server has rejected a request with a key, a valid request with the same key starts a new job."""
    sample = _keyed(s)
    wrong: list[tuple[int, bytes | None, Header]] = [
        (422, b"{}", {}),
        (400, b"{", {}),
        (415, None, {"Content-Type": "text/plain"}),
        (406, None, {"Accept": "text/html"}),
    ]
    for status, body, header in wrong:
        key = _key()
        answer = await _submit(s, sample, key, body, header)
        s.at(answer).response("TW-JOB-034", answer.status == status, f"{status} for an invalid request")
        right = await _submit(s, sample, key)
        replayed = right.response_header("idempotency-replayed")
        wanted = f"201 and a new job after a request that was rejected with {status}"
        got = f"{right.status} {right.code}{replayed and ', a replay of the rejected request'}"
        s.at(right).expect("TW-JOB-034", right.status == 201 and not replayed, wanted, got)


@check("TW-JOB-033", needs=["delete"])
async def key_of_purged_job_returns_410(s: Session) -> None:
    """A request to submit a job with the key of a purged job gets 410 `job_expired`."""
    sample = _keyed(s)
    key = _key()
    first = await _submit(s, sample, key)
    await s.wire.request("DELETE", f"/v1/jobs/{first.member('id')}")
    s.at(await _submit(s, sample, key)).refused("TW-JOB-033", 410, "job_expired")


@check("TW-JOB-028", "TW-JOB-032")
async def concurrent_submits_start_one_job(s: Session) -> None:
    """Concurrent requests with the same key start one job. Each request gets that job, or 409 if the job is not yet
    committed.
    """
    sample = _keyed(s)
    key = _key()
    answers = await asyncio.gather(*(_submit(s, sample, key) for _ in range(5)))
    jobs = {str(answer.member("id")) for answer in answers if answer.status == 201}
    s.at(answers[-1]).expect("TW-JOB-028", len(jobs) == 1, "one job for all requests", sorted(jobs))
    for answer in answers:
        sound = answer.outcome in {"201", "409 idempotency_in_flight"}
        s.at(answer).response("TW-JOB-032", sound, "201, or 409 idempotency_in_flight")


MAX_KEY = 255
"""Maximum length of an idempotency key, in characters."""


@check("TW-JOB-026")
async def keys_are_compared_in_full(s: Session) -> None:
    """Two keys that differ in one byte are different, even if the byte is the last one of the longest possible key.

    The same holds for two keys that a server might take for two notations of the same text.
    """
    sample = _keyed(s)
    unique = _key()
    filler = (unique * MAX_KEY)[: MAX_KEY - 1]
    pairs = [
        (f"{filler}a", f"{filler}b", "a key that differs in the last of 255 characters"),
        (f"a{filler}", f"b{filler}", "a key that differs in the first of 255 characters"),
        (unique, f'"{unique}"', "the same key in quotation marks"),
        (f"{unique}%41", f"{unique}A", "a key with %41 instead of A"),
        (f"{unique}+", f"{unique}%20", "a key with %20 instead of +"),
        (f"{unique},", f"{unique};", "a key that differs in its punctuation"),
        (f"00{unique}", f"0{unique}", "a key with another number of leading zeros"),
    ]
    for one, other, why in pairs:
        first, second = await asyncio.gather(_submit(s, sample, one), _submit(s, sample, other))
        again = await _submit(s, sample, one)
        s.skip_unless(
            first.status == 201 and again.member("id") == first.member("id"),
            "a repeated request with the same key did not return the same job",
        )
        differs = second.status == 201 and second.member("id") != first.member("id")
        s.at(second).response("TW-JOB-026", differs, f"a new job for {why}")
