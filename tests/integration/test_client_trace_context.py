"""The Python client sends the caller's `traceparent` with each request, if the caller has a span of OpenTelemetry."""

import contextlib
import subprocess
import sys
import threading

import pytest
from opentelemetry import context, trace

from support.server_address import address_of
from tidewire import AsyncClient, Client
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy
from tidewire_server import Server, Stream

TRACE = 0x0AF7651916CD43DD8448EB211C80319C


@contextlib.contextmanager
def span(number, flags=1, trace_id=TRACE):
    """Make a span current that belongs to this trace, as an instrumented program does."""
    state = trace.TraceState([("vendor", "secret")])
    found = trace.SpanContext(
        trace_id=trace_id,
        span_id=number,
        is_remote=False,
        trace_flags=trace.TraceFlags(flags),
        trace_state=state,
    )
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(found)))
    try:
        yield f"00-{trace_id:032x}-{number:016x}-{flags:02x}"
    finally:
        context.detach(token)


@pytest.fixture
def seen():
    """Path and `traceparent` of each request that the server has received."""
    return []


@pytest.fixture
def gate():
    return threading.Event()


@pytest.fixture
def url(seen, gate):
    def principal(scope):
        headers = [(name, value.decode()) for name, value in scope["headers"]]
        assert not {b"tracestate", b"baggage"} & {name for name, _ in headers}
        found = [value for name, value in headers if name == b"traceparent"]
        seen.append((scope["method"], scope["path"].rpartition("/")[2], *found))
        return "ann"

    server = Server(principal=principal, heartbeat=1.0, retry=0.01)

    @server.endpoint
    def talk(stream: Stream[str]) -> None:
        for letter in "stream of results":
            stream.append(letter)
        gate.wait(20)
        stream.append(".")

    with server.running() as url:
        yield url
    gate.set()


def test_blocking_client_sends_the_span_of_each_call(url, seen, gate):
    with Client(url) as client:
        with span(1) as submitting:
            job = client.submit("talk")
        with span(2, flags=0) as reading:
            assert job.read().status in {"queued", "running"}
        job.read()
    gate.set()
    assert seen[0] == ("POST", "jobs", submitting)
    assert seen[1] == ("GET", job.id, reading)
    assert seen[2] == ("GET", job.id)


def test_blocking_client_sends_the_span_of_the_loop_with_each_reconnect(url, seen, gate):
    gate.set()
    cut = Cut(mark=b"hello", after=1, how="rst")
    with FaultProxy(address_of(url), lambda number: cut if number < 2 else None) as proxy:
        with Client(proxy.url) as client, span(3) as looping:
            assert [update.value for update in client.submit("talk")][-1] == "stream of results."
    assert [each[1] for each in seen] == ["jobs", "events", "events"]
    assert {each[2] for each in seen} == {looping}


@pytest.mark.anyio
async def test_async_client_sends_the_span_of_its_task(url, seen, gate, anyio_backend):
    gate.set()
    async with AsyncClient(url) as client:
        with span(4) as first:
            job = await client.submit("talk")
        with span(5) as second:
            again = client.job(job.id)
            assert [text async for text in again.iter_text()]
        assert await job.result()
    assert seen[0] == ("POST", "jobs", first)
    assert ("GET", "events", second) in seen


def test_headers_of_the_caller_take_precedence(url, seen, gate):
    gate.set()
    with Client(url, headers={"Traceparent": "mine"}) as client, span(6):
        client.run("talk")
    assert {each[2] for each in seen} == {"mine"}


def test_a_span_that_is_not_valid_is_not_sent(url, seen, gate):
    gate.set()
    with Client(url) as client, span(7, trace_id=0), span(0):
        client.run("talk")
    assert seen
    assert {len(each) for each in seen} == {2}


PROGRAM = """
import sys
from tidewire.testing import FakeServer
from tidewire import Client
with FakeServer() as server:
    server.endpoint("shout").returns("HELLO")
    with Client(server.url) as client:
        assert client.run("shout", text="hello") == "HELLO"
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "imported"
"""


def test_a_program_without_opentelemetry_does_not_import_it():
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], check=True, timeout=60)
