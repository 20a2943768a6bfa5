"""One trace from the submit of a job, over all its streams, to its function, collected from a server process with the SDK."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.killable_server import Killed
from support.postgres_server import needs_postgres
from support.reference_server import eventually
from support.server_address import address_of
from support.traced_server import SECRET, read_spans
from tidewire import Client
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CALLER}-01"
FUNCTION = "support.traced_server:traced_server"


class Traced(Killed):
    """A server process, and its spans."""

    def __init__(self, folder: Path, **settings):
        self.file = folder / "spans.jsonl"
        super().__init__(folder, FUNCTION, spans=str(self.file), **settings)

    def client(self, traceparent=PARENT, url=None):
        headers = {} if traceparent is None else {"traceparent": traceparent}
        return Client(url or self.url, headers=headers)

    def spans(self, *names):
        """Wait until spans with these names have ended, as often as they are named. Return these, in this order."""

        def found():
            remaining, chosen = read_spans(self.file), []
            for name in names:
                match = next((span for span in remaining if span["name"] == name), None)
                if match is None:
                    return None
                remaining.remove(match)
                chosen.append(match)
            return chosen

        return eventually(found)


@pytest.fixture
def server(tmp_path):
    with Traced(tmp_path) as server:
        yield server


def span_id(span):
    return span["context"]["span_id"].removeprefix("0x")


def parent_id(span):
    return None if span["parent_id"] is None else span["parent_id"].removeprefix("0x")


def trace_ids(spans):
    return {span["context"]["trace_id"].removeprefix("0x") for span in spans}


def test_one_trace_from_the_caller_over_the_stream_to_the_function(server):
    with server.client() as client:
        job = client.submit("talk", words=3)
        assert job.result() == f"{SECRET} " * 3
    submit, run, stream = server.spans("submit talk", "run talk", "stream talk")
    assert trace_ids([submit, run, stream]) == {TRACE}
    assert parent_id(submit) == parent_id(stream) == CALLER
    assert parent_id(run) == span_id(submit)
    assert submit["attributes"] == {
        "tidewire.endpoint": "talk",
        "tidewire.job.id": job.id,
        "tidewire.replayed": False,
        "tidewire.status": "accepted",
    }
    assert stream["attributes"] == {
        "tidewire.endpoint": "talk",
        "tidewire.job.id": job.id,
        "tidewire.stream.resumed": False,
        "tidewire.status": "done",
    }
    numbers = {
        name: run["attributes"].pop(name) for name in ("tidewire.queue_time", "tidewire.time_to_first_event")
    }
    assert all(0 <= number < 20 for number in numbers.values())
    assert run["attributes"] == {
        "tidewire.endpoint": "talk",
        "tidewire.job.id": job.id,
        "tidewire.item.index": 0,
        "tidewire.attempt": 1,
        "tidewire.status": "succeeded",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 3,
        "tidewire.usage.seconds": 0.5,
    }
    assert (submit["kind"], run["kind"], stream["kind"]) == (
        "SpanKind.SERVER",
        "SpanKind.CONSUMER",
        "SpanKind.SERVER",
    )


def test_a_streamed_chat_completion_has_the_trace_of_a_submit(server):
    body = {"model": "generate", "messages": [{"role": "user", "content": SECRET}], "stream": True}
    with server.http.stream(
        "POST", "/openai/v1/chat/completions", json=body, headers={"traceparent": PARENT}
    ) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line for line in answer.iter_lines() if line]
        job = answer.headers["tidewire-job"].rpartition("/")[2]
    assert lines[-1] == "data: [DONE]"
    submit, run = server.spans("submit generate", "run generate")
    assert trace_ids([submit, run]) == {TRACE}
    assert (parent_id(submit), parent_id(run)) == (CALLER, span_id(submit))
    assert {each["attributes"]["tidewire.job.id"] for each in (submit, run)} == {job}
    statuses = [each["attributes"]["tidewire.status"] for each in (submit, run)]
    assert statuses == ["accepted", "succeeded"]
    assert run["attributes"]["gen_ai.usage.output_tokens"] == 2
    assert SECRET not in server.file.read_text()


def test_a_job_without_a_caller_has_a_trace_of_its_own(server):
    with server.client(None) as client:
        client.run("talk", words=1)
        client.run("talk", words=1)
    spans = server.spans("submit talk", "run talk", "stream talk", "submit talk", "run talk", "stream talk")
    first, *_, second, _, _ = spans
    assert len(trace_ids(spans)) == 2
    assert parent_id(first) is parent_id(second) is None


@pytest.mark.parametrize("endpoint", ["in_task", "in_thread"])
def test_the_function_continues_the_trace_in_requests_to_other_servers(server, endpoint):
    with server.client() as client:
        job = client.submit(endpoint)
        value = job.result()
    (run,) = server.spans(f"run {endpoint}")
    assert value == {"traceparent": f"00-{TRACE}-{span_id(run)}-01", "job": job.id}


def test_a_function_does_not_continue_the_trace_of_the_request_or_job_that_started_it(server):
    other = "1" * 32
    with server.client() as first, server.client(f"00-{other}-{CALLER}-01") as second:
        running = first.submit("one_at_a_time", pause=0.2)
        waiting = [client.submit("one_at_a_time", pause=0.0) for client in (second, first, second)]
        assert running.result()["traceparent"].startswith(f"00-{TRACE}-")
        found = [job.result() for job in waiting]
    assert [each["traceparent"][3:35] for each in found] == [other, TRACE, other]
    assert [each["job"] for each in found] == [job.id for job in waiting]


def test_each_row_of_a_batch_has_a_span_in_its_own_trace_and_the_call_has_none(server):
    other = "1" * 32
    with server.client() as first, server.client(f"00-{other}-{CALLER}-01") as second:
        jobs = [client.submit("in_batch", n=1) for client in (first, second)]
        assert [job.result() for job in jobs] == [{"job": None}, {"job": None}]
    runs = server.spans("run in_batch", "run in_batch")
    assert trace_ids(runs) == {TRACE, other}
    assert {run["attributes"]["tidewire.job.id"] for run in runs} == {job.id for job in jobs}


def test_times_of_the_queue_and_of_the_first_event(server):
    with server.client() as client:
        # One submit, so that the second item waits for the whole run of the first one.
        client.submit_batch("one_at_a_time", [{"pause": 0.3}] * 2).wait()
        client.submit("pieces").wait()
    first, second, pieces = server.spans("run one_at_a_time", "run one_at_a_time", "run pieces")
    assert first["attributes"]["tidewire.queue_time"] >= 0
    assert second["attributes"]["tidewire.queue_time"] >= 0.1
    # A function that returns its value writes nothing before it ends.
    assert "tidewire.time_to_first_event" not in first["attributes"]
    assert pieces["attributes"]["tidewire.time_to_first_event"] >= 0.05


# ---- reconnects and restarts ---------------------------------------------------------------------------------------


def test_a_client_that_is_cut_twice_and_a_server_that_is_killed_give_one_trace(server):
    cut = Cut(mark=SECRET.encode(), after=1, occurrence=2, how="rst")
    with FaultProxy(address_of(server.url), lambda number: cut if number < 2 else None) as proxy:
        with server.client(url=proxy.url) as client:
            job, text, killed = client.submit("talk", words=100), "", False
            for update in job:
                text = update.value
                if len(text) > 20 * len(SECRET) and not killed:
                    killed = True
                    server.kill()
                    server.start()
    assert text == f"{SECRET} " * 100
    # The run and the streams that the kill has interrupted have no end.
    spans = server.spans("submit talk", "stream talk", "stream talk", "run talk", "stream talk")
    submit, first, second, run, last = spans
    assert trace_ids(spans) == trace_ids(read_spans(server.file)) == {TRACE}
    assert [each["attributes"]["tidewire.status"] for each in (first, second)] == ["disconnected"] * 2
    assert [each["attributes"]["tidewire.stream.resumed"] for each in (first, second, last)] == [
        False,
        True,
        True,
    ]
    assert (parent_id(run), run["attributes"]["tidewire.attempt"]) == (span_id(submit), 2)
    assert "tidewire.queue_time" not in run["attributes"]
    assert {span["attributes"]["tidewire.job.id"] for span in spans} == {job.id}


def test_a_job_that_waits_during_a_restart_keeps_its_trace_and_its_time_in_the_queue(server):
    other = "1" * 32
    with server.client(f"00-{other}-{CALLER}-01") as first, server.client() as client:
        running = first.submit("one_at_a_time", pause=60.0)
        waiting = client.submit("one_at_a_time", pause=0.0)
        eventually(lambda: running.status() == "running")
        server.again()
        running.cancel()
        assert waiting.result()["traceparent"][3:35] == TRACE
    interrupted, run = server.spans("run one_at_a_time", "run one_at_a_time")
    assert (trace_ids([interrupted]), trace_ids([run])) == ({other}, {TRACE})
    assert interrupted["attributes"]["tidewire.status"] == "cancelled"
    assert (run["attributes"]["tidewire.attempt"], run["attributes"]["tidewire.queue_time"] > 0) == (1, True)


@pytest.mark.heavy
def test_a_planned_stop_ends_the_spans(server):
    with server.client() as client:
        job = client.submit("talk", words=10_000)
        next(iter(job))
        server.stop()
    (run,) = server.spans("run talk")
    assert run["attributes"]["tidewire.status"] == "interrupted"
    streams = [span for span in read_spans(server.file) if span["name"] == "stream talk"]
    assert streams


def test_a_reader_of_another_trace_is_linked(server):
    other = f"00-{'1' * 32}-{'2' * 16}-01"
    with server.client() as client, server.client(other) as reader:
        job = client.submit_batch("talk", [{"words": 1}])
        assert reader.batch_job(job.id).results()
    submit, stream = server.spans("submit talk", "stream talk")
    assert trace_ids([stream]) == {TRACE}
    assert parent_id(stream) == span_id(submit)
    assert [link["context"]["span_id"] for link in stream["links"]] == [f"0x{'2' * 16}"]


def test_a_repeated_submit_is_linked_to_the_first(server):
    other = f"00-{'1' * 32}-{'2' * 16}-01"
    with server.client() as client, server.client(other) as again:
        jobs = [each.submit("talk", words=1, idempotency_key="k") for each in (client, again)]
        assert jobs[0].id == jobs[1].id
    first, second = server.spans("submit talk", "submit talk")
    assert second["attributes"]["tidewire.replayed"] is True
    assert trace_ids([second]) == {"1" * 32}
    assert [link["context"]["span_id"].removeprefix("0x") for link in second["links"]] == [span_id(first)]


class TestSeveralServers:
    pytestmark = needs_postgres

    def test_the_trace_continues_at_another_server_of_the_database(self, tmp_path, database_url):
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(Traced(folders[0], log=database_url))
            with first.client() as client:
                job = client.submit("talk", words=2)
                assert job.result()
            second = stack.enter_context(Traced(folders[1], log=database_url))
            with second.client(None) as client:
                assert client.job(job.id).result()
                assert [*client.job(job.id)]
            (submit,) = first.spans("submit talk")
            (stream,) = second.spans("stream talk")
        assert trace_ids([submit, stream]) == {TRACE}
        assert parent_id(stream) == span_id(submit)


# ---- hostile input -------------------------------------------------------------------------------------------------


def answer_to(server, *headers):
    """Submit a job with these header lines."""
    lines = [("content-type", "application/json"), *headers]
    return server.http.post("/v1/endpoints/in_task/jobs", json={"input": {}}, headers=lines)


HOSTILE = [
    "",
    "x",
    "00",
    PARENT[:-1],
    PARENT + "0",
    PARENT + "-extra",
    PARENT.replace("00-", "ff-", 1),
    PARENT.upper(),
    PARENT.replace(TRACE, "0" * 32),
    PARENT.replace(CALLER, "0" * 16),
    PARENT.replace("a", "g"),
    PARENT.replace("-01", "-0x"),
    f"01-{TRACE}-{CALLER}-01-{'x' * 60_000}",
    "00-" * 10_000,
    "é" * 50,
    f"{PARENT},{PARENT}",
]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: value[:20])
def test_a_traceparent_that_is_not_valid_is_ignored(server, value):
    response = answer_to(server, ("traceparent", value.encode()))
    assert response.status_code == 201
    server.ended(response.json()["id"])
    submit, run = server.spans("submit in_task", "run in_task")
    assert parent_id(submit) is None
    assert trace_ids([submit, run]).isdisjoint({TRACE, TRACE.upper(), "0" * 32})
    assert server.errors() == ""


@pytest.mark.parametrize(("length", "parent"), [(512, CALLER), (513, None)])
def test_a_traceparent_of_a_later_version_is_read_up_to_its_maximum_length(server, length, parent):
    value = f"01-{TRACE}-{CALLER}-01-".ljust(length, "x")
    assert answer_to(server, ("traceparent", value)).status_code == 201
    (submit,) = server.spans("submit in_task")
    assert parent_id(submit) == parent


def test_two_headers_are_ignored(server):
    assert answer_to(server, ("traceparent", PARENT), ("traceparent", PARENT)).status_code == 201
    (submit,) = server.spans("submit in_task")
    assert parent_id(submit) is None


def test_tracestate_is_not_read(server):
    lines = [("tracestate", f"=={SECRET}\t,,={'x' * 20_000}")] * 2
    assert answer_to(server, ("traceparent", PARENT), *lines).status_code == 201
    (submit,) = server.spans("submit in_task")
    assert parent_id(submit) == CALLER
    assert submit["context"]["trace_state"] == "[]"
    assert server.errors() == ""


def test_a_caller_that_is_not_sampled_has_no_spans(server):
    with server.client(PARENT[:-1] + "0") as client:
        value = client.run("in_task")
    assert value["traceparent"][3:35] == TRACE
    assert value["traceparent"].endswith("-00")
    with server.client() as client:
        client.run("talk", words=1)
    server.spans("submit talk", "run talk", "stream talk")
    assert {span["name"] for span in read_spans(server.file)} == {"submit talk", "run talk", "stream talk"}


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("item_error", "item_refused.refused"),
        ("exception", "internal"),
        ("value", "invalid_value"),
        ("long", f"a.{'x' * 98}"),
    ],
)
def test_a_failure_is_a_code_without_a_text(server, how, code):
    with server.client() as client:
        client.submit("fail", how=how).wait()
    (run,) = server.spans("run fail")
    assert run["attributes"]["tidewire.error.code"] == code
    assert run["status"] == {"status_code": "ERROR"}
    assert run["events"] == []


def test_a_refused_submit_has_a_code(server):
    with server.client() as client, pytest.raises(Exception, match="words"):
        client.submit("talk", words=SECRET)
    (submit,) = server.spans("submit talk")
    assert submit["attributes"] == {
        "tidewire.endpoint": "talk",
        "tidewire.status": "refused",
        "tidewire.error.code": "invalid_input",
    }


def test_spans_contain_no_input_value_or_name_of_a_caller(tmp_path):
    with Traced(tmp_path, tokens=[f"{SECRET}-ann:{SECRET}-token"]) as server:
        with Client(server.url, token=f"{SECRET}-token", headers={"traceparent": PARENT}) as client:
            for endpoint, members in [
                ("talk", {"words": 1}),
                ("pieces", {}),
                ("in_batch", {"n": 1}),
                *(("fail", {"how": how}) for how in ("item_error", "exception", "value")),
            ]:
                client.submit(endpoint, **members).wait() if endpoint != "in_batch" else None
            with pytest.raises(Exception, match="words"):
                client.submit("talk", words=SECRET)
        server.spans(
            "run talk", "run pieces", "run fail", "run fail", "run fail", "submit talk", "submit talk"
        )
    assert SECRET not in server.file.read_text()


def test_the_number_of_usage_attributes_is_bounded(server):
    with server.client() as client:
        client.run("much_usage")
    (run,) = server.spans("run much_usage")
    assert len([name for name in run["attributes"] if name.startswith("tidewire.usage.")]) == 32


# ---- without an SDK, and without OpenTelemetry ---------------------------------------------------------------------


def test_without_an_sdk_the_span_of_the_caller_is_passed_on_and_jobs_without_one_have_no_trace(tmp_path):
    with Traced(tmp_path, sdk=False) as server:
        with server.client() as client:
            assert client.run("in_task")["traceparent"] == PARENT
        with server.client(None) as client:
            assert "traceparent" not in client.run("in_task")
    assert not server.file.exists()


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from tidewire import Client
from tidewire_server import Server
from tidewire_server.tracing import trace_headers, trace_id
server = Server()

@server.endpoint
def double(n: int) -> int:
    assert not trace_headers() and trace_id() is None
    return 2 * n

with server.running() as url, Client(url, headers={"traceparent": sys.argv[1]}) as client:
    assert client.run("double", n=2) == 4
"""


@pytest.mark.heavy
def test_without_opentelemetry_the_server_runs():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, PARENT],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
