"""The project's client against servers written from the specification alone.

`tests/suite/test_reference.py` judges the wire format of these servers.
"""

import ast
import re
import sys
from itertools import pairwise

import pytest

from support.foreign_programs import (
    INTEROP,
    SERVERS,
    TEXT,
    cut_inside_events,
    javascript_server,
    needs_node,
    server,
)
from support.server_address import address_of
from tidewire import Checkpoint, Client, RetryPolicy
from tidewire.errors import (
    EndpointNotFoundError,
    InvalidInputError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    RateLimitError,
)
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

CUTS = 12


@pytest.fixture(params=SERVERS, scope="module")
def url(request):
    with server(request.param) as url:
        yield url


@pytest.fixture(scope="module")
def javascript_url():
    with server("javascript") as url:
        yield url


def read_all(job):
    """Assemble the text from the updates of a job, as an application would."""
    text = ""
    for update in job:
        text = text[: len(text) - update.deleted] + update.text
    return text


# ---- the client of this project --------------------------------------------------------------------------------


def test_a_text_arrives_in_several_updates(url):
    with Client(url) as client:
        updates = [update.text for update in client.submit("words", text=TEXT, delay_ms=1)]
    assert "".join(updates) == TEXT
    assert len(updates) > 5


def test_an_empty_text_is_a_result(url):
    with Client(url) as client:
        assert client.run("words", text="") == ""


def test_invalid_input_is_refused_with_a_pointer(url):
    with Client(url) as client, pytest.raises(InvalidInputError) as caught:
        client.run("words", text=5)
    assert caught.value.pointer.startswith("/input")


def test_unknown_endpoints_and_jobs_raise(url):
    with Client(url) as client:
        with pytest.raises(EndpointNotFoundError):
            client.run("wrods", text="a")
        with pytest.raises(JobNotFoundError):
            client.job("A" * 22).result()


def test_a_cancelled_job_keeps_its_partial_value(url):
    with Client(url) as client:
        job = client.submit("words", text=TEXT, delay_ms=100)
        for update in job:
            if update.text:
                job.cancel()
                break
        with pytest.raises(JobCancelledError) as caught:
            job.result()
    assert caught.value.value
    assert TEXT.startswith(caught.value.value)


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_cuts_within_events_neither_lose_nor_repeat_text(url, how):
    with FaultProxy(address_of(url), plan=cut_inside_events(CUTS, how)) as proxy, Client(proxy.url) as client:
        job = client.submit("words", text=TEXT, delay_ms=1)
        assert read_all(job) == TEXT
        assert job.result() == TEXT
        assert len(proxy.cuts) >= CUTS - 1, "the first connection may have been the submit's"
    assert not any(seen.endswith(b"\n\n") for seen in proxy.cuts), "each cut was inside an event"


def test_another_client_resumes_from_a_checkpoint(url):
    with Client(url) as client:
        job = client.submit("words", text=TEXT, delay_ms=1)
        first = ""
        for update in job:
            first += update.text
            if len(first) > 20:
                break
        saved = job.checkpoint().to_json()
    with Client(url) as client:
        assert first + read_all(client.job(checkpoint=Checkpoint.from_json(saved))) == TEXT


def test_an_ended_job_can_be_read_by_id(url):
    with Client(url) as client:
        job = client.submit("words", text=TEXT)
        job.result()
        assert client.job(job.id).result() == TEXT


@needs_node
def test_values_arrive_in_order(javascript_url):
    with Client(javascript_url) as client:
        seen = [update.value for update in client.submit("count", n=5, delay_ms=1)]
    assert seen[-1] == 4
    assert all(one <= other for one, other in pairwise(value for value in seen if value is not None))


@needs_node
def test_a_failed_job_has_its_message_and_partial_value(javascript_url):
    with Client(javascript_url) as client, pytest.raises(JobFailedError, match="no further") as caught:
        client.run("fail", text="so far 😀", message="no further")
    assert caught.value.value == "so far 😀"


@needs_node
def test_batch_items_fail_independently(javascript_url):
    with Client(javascript_url) as client:
        batch = client.submit_batch("fail", [{"text": "a", "message": "x"}, {"text": "b", "message": "y"}])
        results = batch.results(return_exceptions=True)
        assert [type(result) for result in results] == [ItemFailedError, ItemFailedError]
        assert [result.index for result in results] == [0, 1]
        assert client.submit_batch("words", [{"text": "a"}, {"text": "b c"}], delay_ms=1).results() == [
            "a",
            "b c",
        ]
        with pytest.raises(InvalidInputError) as caught:
            client.submit_batch("words", [{"text": "a"}], delay_ms=-1)
        assert caught.value.pointer == "/shared/delay_ms"


@needs_node
def test_a_submit_retried_after_a_cut_starts_one_job():
    with (
        javascript_server(max_jobs=1) as url,
        FaultProxy(address_of(url), plan=lambda n: Cut(after=20) if n == 0 else None) as proxy,
        Client(proxy.url, retry=RetryPolicy(max_delay=0.01)) as client,
    ):
        job = client.submit("words", text="a b", delay_ms=60_000)
        # The server accepts only one job, and one exists, so the retried submit cannot have started a second
        # one.
        assert len(proxy.cuts) == 1
        with Client(url, retry=RetryPolicy(patience=0.5)) as other:
            with pytest.raises(RateLimitError):
                other.submit("words", text="c")
            job.cancel()
            with pytest.raises(JobCancelledError):
                job.result()
            assert other.run("words", text="c") == "c"


@needs_node
def test_a_silent_connection_is_replaced():
    with (
        javascript_server(heartbeat_ms=100) as url,
        FaultProxy(
            address_of(url), lambda n: Cut(mark=b"id:1-5\n", after=2, how="stall") if n < 2 else None
        ) as proxy,
        Client(proxy.url) as client,
    ):
        assert read_all(client.submit("words", text=TEXT, delay_ms=1)) == TEXT
        assert len(proxy.cuts) >= 1


@needs_node
def test_planned_closes_do_not_count_as_failed_attempts():
    with javascript_server(rotate_ms=60) as url, Client(url, retry=RetryPolicy(attempts=3)) as client:
        assert read_all(client.submit("words", text=TEXT, delay_ms=8)) == TEXT


@needs_node
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_snapshot_replaces_trimmed_events(how):
    with (
        javascript_server(max_log_bytes=200) as url,
        FaultProxy(address_of(url), plan=cut_inside_events(CUTS, how)) as proxy,
        Client(proxy.url) as client,
    ):
        assert read_all(client.submit("words", text=TEXT, delay_ms=8)) == TEXT
        assert len(proxy.cuts) >= 2


# ---- statements in the appendix --------------------------------------------------------------------------------


def test_the_standard_library_server_is_small_and_has_no_dependencies():
    source = (INTEROP / "stdlib_server.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported <= set(sys.stdlib_module_names)


def test_the_javascript_programs_need_no_packages():
    for file in sorted(INTEROP.glob("javascript/*.?js")):
        for name in re.findall(r'from "([^"]+)"', file.read_text(encoding="utf-8")):
            assert name.startswith(("node:", "./", "../")), f"{file.name} imports {name}"
