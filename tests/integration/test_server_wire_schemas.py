"""All events and bodies that the server sends validate against the schemas of the specification."""

import asyncio
from typing import Any

import pytest

from support.reference_server import QUICK, Peer, data, eventually, serving
from support.spec_document import SCHEMA_OF_EVENT, validator
from tidewire_server import ItemError, Server, Stream


@pytest.fixture(scope="module")
def peer():
    server = Server(**(QUICK | {"heartbeat": 0.05, "shutdown_timeout": 0.1}))

    @server.endpoint(columns=["/text", "/ids"], initial={"text": "", "ids": []}, concurrency_limit=None)
    async def write(n: int = 5, stream: Stream[dict[str, Any]] = None) -> None:  # type: ignore[assignment]
        for number in range(n):
            stream.row("é ", number)
            stream.progress(number, n, unit="row", phase="writing")
            await asyncio.sleep(0.001)
        stream.truncate(1, at="/text")
        stream.note("done soon")
        stream.usage(rows=n)

    @server.endpoint
    async def fail(stream: Stream[str]) -> None:
        raise ItemError("no", code="empty")

    @server.endpoint(examples=[{}])
    async def wait() -> None:
        await asyncio.sleep(10)

    with serving(server) as peer:
        yield peer


def validate_body(schema: str, content: Any) -> None:
    validator(schema).validate(content)


def validate_stream(peer: Peer, job: str, **parameters: str) -> set[str]:
    seen = set()
    for event in peer.events(job, **parameters):
        validate_body(SCHEMA_OF_EVENT[event.type], data(event))
        seen.add(event.type)
    return seen


def test_every_event_validates_against_its_schema(peer):
    write = peer.start("write")
    assert {"hello", "snapshot", "message", "progress", "done"} <= validate_stream(peer, write, after="0-0")
    assert validate_stream(peer, write, diffs="0") >= {"hello", "snapshot", "done"}
    several = peer.submit("write", inputs=[{}, {"n": 2}]).json()["id"]
    validate_stream(peer, several, after="0-0")
    validate_stream(peer, peer.start("fail"), after="0-0")
    assert validate_stream(peer, "nothing", errors="inband") == {"problem"}


def test_events_of_a_queued_job_validate_against_their_schemas(peer):
    first, second = peer.start("wait"), peer.start("wait")
    seen = set()
    with peer.stream(second) as reading:
        for event in reading:
            validate_body(SCHEMA_OF_EVENT[event.type], data(event))
            seen.add(event.type)
            if seen >= {"hello", "queue", "snapshot", "ping"}:
                peer.http.post(f"/v1/jobs/{second}/cancel")
    assert "done" in seen
    peer.http.delete(f"/v1/jobs/{first}")


def test_every_body_validates_against_its_schema(peer):
    validate_body("discovery", peer.http.get("/v1").json())
    for each in peer.http.get("/v1").json()["endpoints"]:
        validate_body("endpoint", peer.http.get(each["href"]).json())
    submitted = peer.submit("write")
    validate_body("job", submitted.json())
    job = submitted.json()["id"]
    validate_body("job", peer.ended(job))
    validate_body("job", peer.ended(peer.start("fail")))
    validate_body("job", peer.http.post(f"/v1/jobs/{job}/cancel").json())
    eventually(lambda: len(peer.http.get("/v1/jobs?limit=2").json()["jobs"]) == 2)
    validate_body("job-list", peer.http.get("/v1/jobs?limit=2").json())
    for answer in (
        peer.http.get("/v1/jobs/none"),
        peer.http.get("/nothing"),
        peer.http.put("/v1"),
        peer.submit("write", {"m": 1}),
        peer.http.post("/v1/endpoints/write/jobs", content=b"{"),
    ):
        validate_body("problem", answer.json())
