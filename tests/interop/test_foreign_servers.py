"""The project's client against servers written from the specification alone, and their wire format."""

import ast
import http.client
import json
import re
import sys
from itertools import pairwise

import pytest

from support.foreign_programs import (
    INTEROP,
    SERVERS,
    TEXT,
    address,
    cut_inside_events,
    javascript_server,
    needs_node,
    server,
)
from support.spec_document import SCHEMA_OF_EVENT, breaches
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
    with FaultProxy(address(url), plan=cut_inside_events(CUTS, how)) as proxy, Client(proxy.url) as client:
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
        FaultProxy(address(url), plan=lambda n: Cut(after=20) if n == 0 else None) as proxy,
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
            address(url), lambda n: Cut(mark=b"id:1-5\n", after=2, how="stall") if n < 2 else None
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
        FaultProxy(address(url), plan=cut_inside_events(CUTS, how)) as proxy,
        Client(proxy.url) as client,
    ):
        assert read_all(client.submit("words", text=TEXT, delay_ms=8)) == TEXT
        assert len(proxy.cuts) >= 2


# ---- the wire format -------------------------------------------------------------------------------------------

EVENT_ID = r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}"
EVENT = re.compile(
    rf"(?:id:(?P<id>{EVENT_ID})\n)?(?:event:(?P<type>[A-Za-z][A-Za-z0-9_]*)\n)?(?:retry:(?P<retry>[0-9]{{1,7}})\n)?data:(?P<data>.+)\n\n"
)


class Answer:
    def __init__(self, url, method, path, body=None, **headers):
        connection = http.client.HTTPConnection(*address(url), timeout=10)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body if body is None else json.dumps(body), headers=named)
        response = connection.getresponse()
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()
        connection.close()

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def events(self):
        """The events of a stream, each validated against the grammar and the schema of its type."""
        assert self.headers["Content-Type"] == "text/event-stream"
        assert self.headers["Cache-Control"] == "no-store, no-transform"
        assert self.headers["X-Accel-Buffering"] == "no"
        found = []
        at = 0
        while at < len(self.text):
            event = EVENT.match(self.text, at)
            assert event, f"no event by the grammar: {self.text[at : at + 200]!r}"
            at = event.end()
            kind = event["type"] or "message"
            data = json.loads(event["data"])
            assert breaches(SCHEMA_OF_EVENT[kind], data) == []
            assert (event["id"] is None) == (kind not in {"snapshot", "message", "done"})
            found.append((event["id"], kind, data))
        assert found[0][1] == "hello"
        return found


def start_job(url, **input_):
    answer = Answer(
        url, "POST", "/v1/endpoints/words/jobs", {"input": input_}, Content_Type="application/json"
    )
    assert answer.status == 201
    assert breaches("job", answer.json) == []
    return answer.json["id"]


def events(url, job, **headers):
    return Answer(url, "GET", f"/v1/jobs/{job}/events", Accept="text/event-stream", **headers)


def test_discovery_and_descriptions_validate_against_their_schemas(url):
    found = Answer(url, "GET", "/v1")
    assert breaches("discovery", found.json) == []
    for endpoint in found.json["endpoints"]:
        assert breaches("endpoint", Answer(url, "GET", f"/v1/endpoints/{endpoint['name']}").json) == []


def test_the_log_of_a_job_is_contiguous_and_ends_with_done(url):
    job = start_job(url, text=TEXT, delay_ms=1)
    answer = events(url, job, Last_Event_ID="0-0")
    logged = [(name, kind) for name, kind, _ in answer.events if name]
    assert [name for name, _ in logged] == [f"1-{seq}" for seq in range(1, len(logged) + 1)]
    assert logged[0][1] == "snapshot"
    assert logged[-1][1] == "done"
    checks = [
        data["check"] for _, kind, data in answer.events if kind == "message" and isinstance(data, dict)
    ]
    assert len(checks) >= 2, "one at the 64th change, one at the end"


def test_each_cursor_gets_the_specified_response(url):
    job = start_job(url, text="a b c")
    whole = [event for event in events(url, job, Last_Event_ID="0-0").events if event[0]]
    head = len(whole)
    for seq in range(1, head):
        assert [event for event in events(url, job, Last_Event_ID=f"1-{seq}").events if event[0]] == whole[
            seq:
        ]
    assert events(url, job, Last_Event_ID=f"1-{head}").status == 204
    assert events(url, job, Last_Event_ID="0-1").status == 204
    for cursor, reason in (("", "compacted"), (f"1-{head + 1}", "rewound"), ("17-2", "rewound")):
        _, snapshot, done = events(url, job, Last_Event_ID=cursor).events
        assert (snapshot[0], snapshot[1], snapshot[2]["reason"]) == (f"1-{head - 1}", "snapshot", reason)
        assert snapshot[2]["state"]["status"] == "running"
        assert done == whole[-1]
    for cursor in ("01-3", "1", "-1-1", "99999999999-1", "1-1 ", "x"):
        answer = Answer(url, "GET", f"/v1/jobs/{job}/events?after={cursor.replace(' ', '%20')}")
        assert (answer.status, answer.json["code"]) == (400, "bad_cursor")
    both = Answer(url, "GET", f"/v1/jobs/{job}/events?after=1-1", Last_Event_ID=f"1-{head - 1}")
    assert [event for event in both.events if event[0]] == whole[-1:], "the header is the younger one"


def test_a_submit_may_be_answered_with_the_stream(url):
    answer = Answer(url, "POST", "/v1/endpoints/words/jobs", {"input": {"text": "a b"}},
                    Accept="text/event-stream", Content_Type="application/json")  # fmt: skip
    assert answer.status == 200
    assert answer.headers["Content-Location"] == f"{answer.headers['Location']}/events"
    assert [kind for _, kind, _ in answer.events][1] == "snapshot"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", f"/v1/jobs/{'A' * 22}", None, 404, "job_not_found"),
        ("GET", "/v1/endpoints/nope", None, 404, "endpoint_not_found"),
        ("POST", "/v1", None, 405, "method_not_allowed"),
        ("GET", "/v1/endpoints/words/jobs", None, 405, "method_not_allowed"),
        ("POST", "/v1/endpoints/words/jobs", [], 422, "invalid_input"),
        ("POST", "/v1/endpoints/words/jobs", {}, 422, "invalid_input"),
        ("POST", "/v1/endpoints/words/jobs", {"input": {"text": "a"}, "inputs": [{"text": "a"}]}, 422, "invalid_input"),
        ("POST", "/v1/endpoints/words/jobs", {"input": {"text": "a", "more": 1}}, 422, "invalid_input"),
        ("POST", "/v1/endpoints/words/jobs", {"input": {"text": "x" * 70_000}}, 413, "body_too_large"),
    ],
)  # fmt: skip
def test_errors_are_registered_problems(url, method, path, body, status, code):
    answer = Answer(url, method, path, body, Content_Type="application/json")
    assert (answer.status, answer.json["status"], answer.json["code"]) == (status, status, code)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert breaches("problem", answer.json) == []
    assert status != 405 or answer.headers["Allow"]
    assert status != 422 or "pointer" in answer.json


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
    for file in sorted(INTEROP.glob("**/*.?js")):
        for name in re.findall(r'from "([^"]+)"', file.read_text(encoding="utf-8")):
            assert name.startswith(("node:", "./", "../")), f"{file.name} imports {name}"
