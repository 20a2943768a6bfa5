"""`client.map(…, resume_file=…)`: what a second run yields, repeats and refuses, and what the file contains."""

import errno
import hashlib
import itertools
import json
import os
import resource
import signal
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from pydantic import BaseModel

from support.client_timing import with_timing
from tidewire import AsyncClient, Client, Hooks, RetryPolicy
from tidewire.errors import (
    ConcurrentReadError,
    EndpointNotFoundError,
    InvalidInputError,
    InvalidValueError,
    ItemFailedError,
    JobExpiredError,
    PermissionDeniedError,
    RequestError,
    ResumeFileError,
    TransportError,
)
from tidewire.http.api_session import Timing
from tidewire.jobs.map.map_work import MAX_LOSSES
from tidewire.jobs.map.resume_file import BYTES_PER_INPUT
from tidewire.mapping import MapProgress
from tidewire.testing import FakeServer

VALUES = [2 * x for x in range(20)]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def server():
    with FakeServer() as server:
        server.endpoint("double").calls(lambda x: 2 * x)
        server.endpoint("other").calls(lambda x: x)
        server.endpoint("sum").calls(lambda value: value["a"] + value["b"])
        yield server


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def submitted(server):
    """Count for each input the jobs that the server has started."""
    started = [submit for submit in server.submits if submit.job_id is not None and not submit.replayed]
    return Counter(value for submit in started for value in submit.inputs)


def first_values(client, count, inputs, **arguments):
    """Leave the loop over a map after some values."""
    return [*itertools.islice(client.map("double", inputs, **arguments), count)]


# ---- a second run --------------------------------------------------------------------------------------------------


def test_a_complete_file_yields_all_values_without_a_server(server, client, file):
    assert list(client.map("double", range(20), batch_size=4, resume_file=file)) == VALUES
    with Client("http://127.0.0.1:1") as offline:
        assert list(offline.map("double", range(20), resume_file=file)) == VALUES
        assert list(offline.map(None, iter(range(20)), resume_file=str(file))) == VALUES


@pytest.mark.parametrize("batch_size", [1, 3, 4, 20])
@pytest.mark.parametrize("taken", [0, 1, 4, 6, 19])
def test_a_second_run_continues_with_any_batch_size(server, client, file, taken, batch_size):
    first_values(client, taken, range(20), batch_size=4, concurrency=2, resume_file=file)
    assert server.cancels == []
    assert list(client.map("double", range(20), batch_size=batch_size, resume_file=file)) == VALUES
    assert submitted(server) == dict.fromkeys(range(20), 1)


@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_no_more_than_concurrency_jobs_run_in_a_second_run(server, client, file, concurrency):
    first_values(client, 1, range(20), batch_size=2, concurrency=5, resume_file=file)
    seen = []
    again = client.map("double", range(20), concurrency=concurrency, resume_file=file, progress=seen.append)
    assert list(again) == VALUES
    assert max(progress.jobs for progress in seen) <= concurrency
    assert submitted(server) == dict.fromkeys(range(20), 1)


def test_appended_inputs_continue_and_a_shorter_list_yields_its_own_values(server, client, file):
    assert list(client.map("double", range(5), resume_file=file)) == VALUES[:5]
    assert list(client.map("double", range(3), resume_file=file)) == VALUES[:3]
    assert list(client.map("double", [], resume_file=file)) == []
    assert list(client.map("double", range(20), resume_file=file)) == VALUES
    assert submitted(server) == dict.fromkeys(range(20), 1)


def test_equal_inputs_are_separate(server, client, file):
    inputs = [7, 7, 7, 7]
    first_values(client, 1, inputs, batch_size=1, concurrency=2, resume_file=file)
    assert list(client.map("double", inputs, batch_size=1, resume_file=file)) == [14] * 4
    assert submitted(server) == {7: 4}


def test_the_inputs_may_be_endless(server, client, file):
    for count in (7, 12):
        values = first_values(client, count, itertools.count(), batch_size=2, concurrency=2, resume_file=file)
        assert values == VALUES[:count]
        # The client has consumed at most four inputs after the last value.
        assert submitted(server) == dict.fromkeys(range(len(submitted(server))), 1)
        assert count <= len(submitted(server)) <= count + 4


def test_endpoints_without_batches_have_the_same_file(server, client, file):
    server.endpoint("one", batch=None).calls(lambda value: value["a"] + value["b"])
    inputs = [{"a": a} for a in range(6)]
    values = client.map("one", inputs, b=10, resume_file=file)
    assert [next(values), next(values)] == [10, 11]
    values.close()
    assert list(client.map("one", inputs, b=10, resume_file=file)) == [10, 11, 12, 13, 14, 15]
    assert len(server.submits) == 6


@pytest.mark.anyio
async def test_an_async_loop_that_is_left_early_can_be_repeated_at_once(server, file):
    async with AsyncClient(server.url) as client:
        async for value in client.map("double", range(20), batch_size=4, resume_file=file):
            if value == 12:
                break
        async with client.map("double", range(20), resume_file=file) as values:
            assert [value async for value in values] == VALUES
    assert submitted(server) == dict.fromkeys(range(20), 1)


@pytest.mark.anyio
async def test_values_of_the_file_let_other_tasks_run(server, file):
    async with AsyncClient(server.url) as client:
        assert [value async for value in client.map("double", range(20), resume_file=file)] == VALUES
        turns = 0

        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await anyio.sleep(0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            assert [value async for value in client.map("double", range(20), resume_file=file)] == VALUES
            tasks.cancel_scope.cancel()
    assert turns >= 20


@pytest.mark.anyio
async def test_a_cancelled_wait_for_a_job_submits_nothing_twice(server, file):
    server.endpoint("slow").streams(["a", "b"]).stalls_after(1)
    async with AsyncClient(server.url) as client:
        values = client.map("slow", [1], resume_file=file)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, values)
            while not server.cuts:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        assert await anext(values) == "ab"
        assert [value async for value in values] == []
    assert len(server.submits) == 1
    assert len(lines(file)) == 4


def test_an_interrupted_blocking_loop_can_be_repeated_at_once(server, client, file):
    def interrupt(progress):
        if progress.ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(client.map("double", range(20), batch_size=4, resume_file=file, progress=interrupt))
    assert list(client.map("double", range(20), resume_file=file)) == VALUES
    assert submitted(server) == dict.fromkeys(range(20), 1)


def test_progress_counts_the_outcomes_of_the_file(client, file):
    first_values(client, 8, range(20), batch_size=4, concurrency=2, resume_file=file)
    seen = []
    assert list(client.map("double", range(20), resume_file=file, progress=seen.append)) == VALUES
    assert seen[-1] == MapProgress(taken=20, ended=20, failed=0, jobs=0, total=20, resumed=8)
    assert [each.resumed for each in seen] == sorted(each.resumed for each in seen)


# ---- jobs that the server no longer has ----------------------------------------------------------------------------


def test_inputs_of_an_expired_job_without_an_outcome_run_again(server, client, file):
    assert first_values(client, 2, range(9), batch_size=3, concurrency=2, resume_file=file) == [0, 2]
    for job in ("job-1", "job-2"):
        server.forget(job)
    assert list(client.map("double", range(9), batch_size=2, resume_file=file)) == VALUES[:9]
    assert submitted(server) == dict.fromkeys(range(9), 1) | dict.fromkeys([2, 3, 4, 5], 2)
    assert sorted([*submit.inputs] for submit in server.submits[2:]) == [[2], [3, 4], [5], [6, 7], [8]]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_inputs_of_a_lost_job_that_are_consumed_later_run_again(server, client, file, concurrency):
    """The second input of the lost job runs again first, because it had failed. No other job can run next to it."""
    problem = {"code": "worker_lost", "title": "lost", "status": 500, "retryable": True}
    recorded = [
        {"tidewire_map": 1, "key": "k", "endpoint": "double"},
        {
            "line": "submit",
            "number": 0,
            "inputs": [[0, 5]],
            "sha256": [digest("double", x) for x in range(6)],
        },
        {"line": "job", "id": "lost", "inputs": [[0, 5]]},
        {
            "line": "failure",
            "index": 1,
            "sha256": digest("double", 1),
            "error": {"what": "it failed", "problem": problem},
        },
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in recorded))
    arguments = {"concurrency": concurrency, "resume_file": file}
    assert list(client.map("double", range(8), **arguments)) == VALUES[:8]
    assert submitted(server) == dict.fromkeys(range(8), 1)


def test_inputs_of_a_job_that_expires_while_the_map_runs_run_again(server, client, file):
    values = client.map("double", range(6), batch_size=3, concurrency=2, resume_file=file)
    assert next(values) == 0
    server.forget("job-2")
    assert list(values) == VALUES[1:6]
    assert submitted(server) == dict.fromkeys(range(6), 1) | dict.fromkeys([3, 4, 5], 2)


@pytest.mark.parametrize("forgets", [True, False])
def test_without_a_file_inputs_of_a_job_that_expires_run_again(server, client, caplog, forgets):
    values = client.map("double", range(6), batch_size=3, concurrency=2)
    assert next(values) == 0
    if forgets:
        server.forget("job-2")
    else:
        del server._jobs["job-2"]  # The server responds with 404, and its message contains the id.
    assert list(values) == VALUES[1:6]
    assert submitted(server) == dict.fromkeys(range(6), 1) | dict.fromkeys([3, 4, 5], 2)
    assert "its 3 inputs without an outcome run again" in caplog.text
    assert caplog.text.count("job-2") == 1


def test_without_a_file_expired_jobs_of_an_idempotency_key_run_again_as_a_whole(server, client):
    arguments = {"batch_size": 3, "idempotency_key": "tonight"}
    expired = set()
    for attempt in range(1, 4):
        assert list(client.map("double", range(6), **arguments)) == VALUES[:6]
        assert submitted(server) == dict.fromkeys(range(6), attempt)
        # Repeated at once, the map finds the jobs of its last run.
        assert list(client.map("double", range(6), **arguments)) == VALUES[:6]
        assert submitted(server) == dict.fromkeys(range(6), attempt)
        for job in {submit.job_id for submit in server.submits if submit.replayed} - expired:
            server.forget(job)
            expired.add(job)


@pytest.mark.parametrize("losses", [MAX_LOSSES, MAX_LOSSES + 1])
def test_inputs_that_are_lost_again_and_again_end_the_map(server, client, losses):
    left = losses

    def forget_last(request):
        nonlocal left
        if request.method == "POST" and left:
            left -= 1
            server.forget(server.submits[-1].job_id)

    with Client(server.url, hooks=Hooks(on_request=forget_last)) as hooked:
        if losses > MAX_LOSSES:
            with pytest.raises(JobExpiredError):
                list(hooked.map("double", [1]))
        else:
            assert list(hooked.map("double", [1])) == [2]
    assert len(server.submits) == MAX_LOSSES + 1


def test_losses_with_an_outcome_in_between_do_not_end_the_map(server):
    """Each job delivers one value, is cut in the next one, and is gone when the client reconnects."""
    count = MAX_LOSSES + 3
    cut = server.endpoint("cut")
    for left in range(count, 0, -1):
        cut.returns("whole")
        for _ in range(left - 1):
            cut.streams(["a", "b"]).cuts_after(1)

    with Client(server.url, hooks=Hooks(on_reconnect=lambda event: server.forget(event.job_id))) as client:
        assert list(client.map("cut", range(count))) == ["whole"] * count
    assert [len(submit.inputs) for submit in server.submits] == [*range(count, 0, -1)]


# ---- failures ------------------------------------------------------------------------------------------------------


def flaky(server):
    """Add an endpoint whose inputs 1, 2 and 3 fail; the failure of 2 is retryable. Repeated inputs succeed."""
    endpoint = server.endpoint("flaky")
    endpoint.returns("a")
    endpoint.fails("item_refused", "out of luck", hint="odd")
    endpoint.fails("worker_lost", "the worker ended")
    endpoint.streams(["half"]).fails("internal", "a fault")
    endpoint.returns("again")


def outcomes(results):
    return [
        (str(each), each.index, each.status, each.value, each.problem, each.retryable, str(each.__cause__))
        if isinstance(each, ItemFailedError)
        else each
        for each in results
    ]


def test_a_second_run_repeats_retryable_failures_and_reports_the_others_again(server, client, file):
    flaky(server)
    server.endpoint("flaky").refuses("invalid_input", "/inputs/4: no number", pointer="/inputs/4")
    arguments = {"return_exceptions": True, "resume_file": file}
    first = list(client.map("flaky", range(5), **arguments))
    assert [isinstance(each, ItemFailedError) for each in first] == [False, True, True, True, True]
    second = list(client.map("flaky", range(5), **arguments))
    assert second[2] == "again"
    assert [outcomes(second)[at] for at in (0, 1, 3, 4)] == [outcomes(first)[at] for at in (0, 1, 3, 4)]
    assert isinstance(second[4].__cause__, InvalidInputError)
    third = list(client.map("flaky", range(5), retry_failed=True, **arguments))
    assert third == ["a", "again", "again", "again", "again"]
    assert submitted(server) == {0: 1, 1: 2, 2: 2, 3: 2, 4: 1}
    assert list(client.map("flaky", range(5), **arguments)) == third


def test_a_failure_is_raised_at_its_place_in_each_run(server, client, file):
    flaky(server)
    for _ in range(3):
        values = client.map("flaky", range(4), resume_file=file, batch_size=4)
        assert next(values) == "a"
        with pytest.raises(ItemFailedError, match="out of luck") as caught:
            next(values)
        assert (caught.value.index, caught.value.code) == (1, "item_refused")
    assert len(server.submits) == 1


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        ({"code": "invalid_input"}, InvalidInputError),
        ({"code": "forbidden"}, PermissionDeniedError),
    ],
)
def test_a_refused_input_is_raised_again_without_a_request(server, client, file, refusal, kind):
    server.endpoint("picky").calls(lambda x: x)
    server.endpoint("picky").refuses(**refusal, detail="/inputs/2: no number", pointer="/inputs/2")
    messages = []
    for _ in range(2):
        values = client.map("picky", range(6), resume_file=file)
        assert [next(values), next(values)] == [0, 1]
        with pytest.raises(kind, match="input 2 was refused: no number") as caught:
            next(values)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert len(server.submits) == 2
    assert list(client.map("picky", range(6), resume_file=file, retry_failed=True)) == [*range(6)]


def test_inputs_that_were_too_large_together_continue_in_smaller_jobs(server, client, file):
    server.endpoint("double").refuses("body_too_large")
    assert first_values(client, 1, range(100, 108), batch_size=8, resume_file=file) == [200]
    server.endpoint("double").refuses("body_too_large")
    assert list(client.map("double", range(100, 116), batch_size=8, resume_file=file)) == [
        2 * x for x in range(100, 116)
    ]
    assert submitted(server) == dict.fromkeys(range(100, 116), 1)


def test_an_input_that_is_not_json_fails_in_each_run(server, client, file):
    for _ in range(2):
        bad, good = client.map("double", [object(), 4], return_exceptions=True, resume_file=file)
        assert (bad.index, good) == (0, 8)
    assert list(client.map("double", [3, 4], resume_file=file)) == [6, 8]
    assert submitted(server) == {3: 1, 4: 1}


class Total(BaseModel):
    total: int


def test_values_of_the_file_are_validated_against_returns(server, client, file):
    server.endpoint("add").calls(lambda x: {"total": x})
    assert list(client.map("add", [1, 2], resume_file=file)) == [{"total": 1}, {"total": 2}]
    assert list(client.map("add", [1, 2], returns=Total, resume_file=file)) == [
        Total(total=1),
        Total(total=2),
    ]
    with pytest.raises(InvalidValueError, match="not a valid int"):
        list(client.map("add", [1, 2], returns=int, resume_file=file))
    assert len(server.submits) == 1


# ---- other inputs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [1, 4, 8])
@pytest.mark.parametrize("other", [-1, object(), "3"], ids=["number", "no JSON", "text"])
def test_an_input_that_differs_raises_at_its_index(server, client, file, taken, other):
    first_values(client, taken, range(8), batch_size=4, concurrency=2, resume_file=file)
    before = len(server.submits)
    values = client.map("double", [0, 1, 2, other, 4], return_exceptions=True, resume_file=file)
    assert [next(values) for _ in range(3)] == [0, 2, 4]
    with pytest.raises(ResumeFileError, match=r"input 3 is not the input .*run\.jsonl") as caught:
        next(values)
    assert caught.value.index == 3
    assert "pass a new file" in caught.value.advice
    assert len(server.submits) == before
    assert list(client.map("double", range(8), resume_file=file)) == VALUES[:8]


def test_shared_members_belong_to_the_inputs(client, file):
    inputs = [{"a": a} for a in range(3)]
    assert list(client.map("sum", inputs, b=1, resume_file=file)) == [1, 2, 3]
    merged = [{"b": 1.0, "a": a} for a in range(3)]
    assert list(client.map("sum", merged, b=5, resume_file=file)) == [1, 2, 3]
    with pytest.raises(ResumeFileError, match="input 0 "):
        list(client.map("sum", inputs, b=2, resume_file=file))


def test_a_file_belongs_to_one_endpoint(client, file):
    list(client.map("double", range(3), resume_file=file))
    with pytest.raises(ResumeFileError, match="belongs to the endpoint 'double', not to 'other'"):
        list(client.map("other", range(3), resume_file=file))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"resume_file": "x", "idempotency_key": "k"}, ValueError, "either resume_file or idempotency_key"),
        ({"retry_failed": True}, ValueError, "retry_failed needs a resume_file"),
        ({"resume_file": 3}, TypeError, "resume_file must be a path, not 3"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_at_once(client, arguments, kind, message):
    with pytest.raises(kind, match=message):
        client.map("double", [1], **arguments)


# ---- the file ------------------------------------------------------------------------------------------------------


def digest(endpoint, value):
    return hashlib.sha256(json.dumps(endpoint).encode() + json.dumps(value).encode()).hexdigest()


def test_the_file_has_the_documented_lines(server, client, file):
    server.endpoint("double").refuses("invalid_input", "/inputs/1: no", pointer="/inputs/1")
    with pytest.raises(InvalidInputError):
        list(client.map("double", [0, 1, 2], resume_file=file))
    list(client.map("double", [0, 1, 2], resume_file=file, return_exceptions=True))
    header, *rest = lines(file)
    assert (header["tidewire_map"], header["endpoint"], len(header["key"]) > 20) == (1, "double", True)
    digests = [digest("double", x) for x in range(3)]
    assert rest[0] == {"line": "submit", "number": 0, "inputs": [[0, 2]], "sha256": digests}
    assert (rest[1]["line"], rest[1]["index"], rest[1]["sha256"]) == ("failure", 1, digests[1])
    assert rest[1]["error"]["problem"]["code"] == "invalid_input"
    assert rest[2:] == [
        {"line": "job", "id": "job-1", "inputs": [[0, 0]]},
        {"line": "value", "index": 0, "sha256": digests[0], "value": 0},
        {"line": "job", "id": "job-2", "inputs": [[2, 2]]},
        {"line": "value", "index": 2, "sha256": digests[2], "value": 4},
    ]


@pytest.mark.anyio
async def test_an_outcome_is_in_the_file_before_the_values_before_it_have_arrived(server, file):
    """The first job hangs. The next check finds that the second job has ended, and records its outcome."""
    server.endpoint("slow", batch=None).calls(lambda x: 2 * x)

    async def nap(_):
        await anyio.sleep(0.001)

    async def hold_first_stream(event):
        if event.url.endswith("/job-1/events"):
            async with AsyncClient(server.url) as other:
                await other.job("job-2").result()
            while '"value":4' not in file.read_text():
                await anyio.sleep(0.001)
            server.forget("job-2")

    client = AsyncClient(server.url, hooks=Hooks(on_request=hold_first_stream))
    async with with_timing(client, Timing(sleep=nap)):
        assert [value async for value in client.map("slow", [1, 2], resume_file=file)] == [2, 4]
    assert [line["value"] for line in lines(file) if line.get("line") == "value"] == [4, 2]
    assert len(server.submits) == 2


def test_a_value_that_is_yielded_is_in_the_file(client, file):
    for value in client.map("double", range(20), batch_size=3, resume_file=file):
        assert value in [line["value"] for line in lines(file) if line.get("line") == "value"]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_an_incomplete_last_line_is_removed(server, client, file, cut):
    assert list(client.map("double", range(6), batch_size=2, resume_file=file)) == VALUES[:6]
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    assert list(client.map("double", range(6), resume_file=file)) == VALUES[:6]
    assert submitted(server) == dict.fromkeys(range(6), 1)
    assert lines(file)[-1]["value"] == 10


def test_a_file_that_ends_after_any_byte_loses_nothing_and_runs_nothing_twice(server, client, file):
    assert list(client.map("double", range(3), batch_size=2, resume_file=file)) == VALUES[:3]
    whole = file.read_bytes()
    for size in range(whole.index(b"\n") + 1, len(whole), 11):
        file.write_bytes(whole[:size])
        assert list(client.map("double", range(3), batch_size=2, resume_file=file)) == VALUES[:3]
        assert submitted(server) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 20])
def test_a_submit_whose_response_is_not_in_the_file_is_repeated_unchanged(
    server, client, file, batch_size, concurrency
):
    """The file of a process that was killed after the server had started a job, and before the job's id was recorded."""
    first_values(client, 5, range(8), batch_size=4, concurrency=2, resume_file=file)
    before, _, _ = file.read_bytes().rpartition(b'{"line":"job"')
    file.write_bytes(before)
    again = client.map("double", range(20), batch_size=batch_size, concurrency=concurrency, resume_file=file)
    assert list(again) == VALUES
    assert submitted(server) == dict.fromkeys(range(20), 1)
    assert [submit.replayed for submit in server.submits[2:3]] == [True]


def test_an_incomplete_first_line_starts_a_new_file(client, file):
    file.write_text('{"tidewire_map":1,"key":"abc')
    assert list(client.map("double", range(3), resume_file=file)) == VALUES[:3]
    assert lines(file)[0]["endpoint"] == "double"


def damaged(text, number, line):
    rows = text.splitlines()
    rows[number] = line
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "nonsense",
        '{"line":"value","index":0}',
        '{"line":"value","index":-1,"sha256":"","value":1}',
        '{"line":"else","index":0}',
        '{"line":"job","id":"x","inputs":[[7,9]]}',
        '{"line":"job","id":"","inputs":[]}',
        '{"line":"submit","number":0,"inputs":[[0,9]],"sha256":["a"]}',
        # One wrong digit must not take memory or time for all indices below it.
        '{"line":"submit","number":0,"inputs":[[0,1000000000000000]],"sha256":["a"]}',
        '{"line":"submit","number":0,"inputs":[[1000000000000000,1000000000000000]],"sha256":["a"]}',
        '{"line":"value","index":1000000000000000,"sha256":"","value":1}',
        '{"line":"failure","index":1000000000000000,"sha256":"","error":{"what":"x"}}',
        '{"line":"value","index":0,"value":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"line":"failure","index":0,"sha256":"","error":{"what":"x","problem":{"code":1}}}',
        "\x00\x00\x00",
    ],
)
def test_a_damaged_line_is_reported_with_its_number(client, file, line):
    list(client.map("double", range(6), resume_file=file))
    text = damaged(file.read_text(), 3, line)
    file.write_text(text)
    with pytest.raises(ResumeFileError, match=r"line 4 of the resume file .*run\.jsonl is damaged"):
        list(client.map("double", range(6), resume_file=file))
    assert file.read_text() == text


@pytest.mark.parametrize(
    "content",
    [
        b"notes\n",
        b"notes",
        b"{",
        b'{"line":"value"}\n',
        b'{"tidewire_map":"x"}\n',
        b"\x7fELF" * 5000,
        b'{"tidewire_map":1,' + b" " * 5000,
    ],
)
def test_another_file_is_never_changed(server, client, file, content):
    file.write_bytes(content)
    with pytest.raises(ResumeFileError, match="not a resume file"):
        list(client.map("double", range(3), resume_file=file))
    assert file.read_bytes() == content
    assert server.requests == []


def test_a_file_of_a_later_format_is_refused(client, file):
    file.write_text('{"tidewire_map":2,"key":"k","endpoint":"double","more":1}\n')
    with pytest.raises(ResumeFileError, match="has format 2, and this client knows only 1"):
        list(client.map("double", range(3), resume_file=file))


def test_an_empty_file_is_a_new_file(client, file):
    file.touch()
    assert list(client.map("double", range(3), resume_file=file)) == VALUES[:3]
    assert lines(file)[0]["endpoint"] == "double"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing/run.jsonl", "No such file or directory"),
        (".", "Is a directory"),
        ("/dev/null", "not a regular file"),
        ("notes/run.jsonl", "Not a directory"),
    ],
)
def test_a_path_that_cannot_be_used_is_reported_before_any_request(server, client, tmp_path, path, message):
    (tmp_path / "notes").touch()
    with pytest.raises(ResumeFileError, match=f"cannot open the resume file .*{message}"):
        list(client.map("double", range(3), resume_file=tmp_path / path))
    assert server.requests == []


def test_a_new_file_is_not_written_if_there_is_no_such_endpoint(client, file):
    with pytest.raises(EndpointNotFoundError):
        list(client.map("none", range(3), resume_file=file))
    assert list(client.map("double", range(3), resume_file=file)) == VALUES[:3]


# ---- one map at a time ---------------------------------------------------------------------------------------------


def test_a_second_map_is_refused_while_the_first_one_runs(server, client, file):
    first = client.map("double", range(20), batch_size=2, resume_file=file)
    assert next(first) == 0
    with ThreadPoolExecutor(1) as other:
        refused = other.submit(lambda: list(client.map("double", range(20), resume_file=file)))
        with pytest.raises(ResumeFileError, match=r"run\.jsonl is in use by another map"):
            refused.result()
    first.close()
    assert list(client.map("double", range(20), resume_file=file)) == VALUES


def test_a_map_takes_over_the_file_of_one_whose_loop_has_raised_an_error(server, client, file):
    """A notebook keeps the last traceback, and therefore the local variables of the function that raised the error."""

    def evaluate():
        values = client.map("double", range(20), batch_size=2, resume_file=file)
        for value in values:
            if value == 6:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        evaluate()
    assert list(client.map("double", range(20), resume_file=file)) == VALUES
    assert submitted(server) == dict.fromkeys(range(20), 1)
    with pytest.raises(ConcurrentReadError, match="this map was closed"):
        list(caught.traceback[-1].frame.f_locals["values"])


@pytest.mark.anyio
async def test_an_async_map_takes_over_the_file_of_one_whose_loop_has_raised_an_error(server, file):
    async with AsyncClient(server.url) as client:

        async def evaluate():
            values = client.map("double", range(20), batch_size=2, resume_file=file)
            async for value in values:
                if value == 6:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            await evaluate()
        assert [value async for value in client.map("double", range(20), resume_file=file)] == VALUES
    assert submitted(server) == dict.fromkeys(range(20), 1)
    del caught


@pytest.mark.anyio
async def test_an_async_map_is_refused_while_the_loop_of_another_task_processes_a_value(server, file):
    got, processes, continues = [], anyio.Event(), anyio.Event()
    async with AsyncClient(server.url) as client, anyio.create_task_group() as tasks:

        async def first():
            async for value in client.map("double", range(20), batch_size=2, resume_file=file):
                got.append(value)
                processes.set()
                await continues.wait()

        tasks.start_soon(first)
        await processes.wait()
        with pytest.raises(ResumeFileError, match=r"run\.jsonl is in use by another map"):
            await anext(client.map("double", range(20), resume_file=file))
        continues.set()
    assert got == VALUES


@pytest.mark.anyio
async def test_an_async_map_takes_over_the_file_of_a_task_that_has_ended(server, file):
    async with AsyncClient(server.url) as client:
        values = client.map("double", range(20), batch_size=2, resume_file=file)

        async def first():
            assert await anext(values) == 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
        assert [value async for value in client.map("double", range(20), resume_file=file)] == VALUES
        with pytest.raises(ConcurrentReadError, match="this map was closed"):
            assert [value async for value in values]
    assert submitted(server) == dict.fromkeys(range(20), 1)


@pytest.mark.anyio
async def test_a_map_takes_over_the_file_of_one_whose_wait_was_cancelled(server, file):
    server.endpoint("slow").streams(["a", "b"]).stalls_after(1)
    async with AsyncClient(server.url) as client:
        first = client.map("slow", [1], resume_file=file)
        with anyio.move_on_after(0.2):
            await anext(first)
        assert [value async for value in client.map("slow", [1], resume_file=file)] == ["ab"]
        with pytest.raises(ConcurrentReadError, match="this map was closed"):
            await anext(first)
    assert len(server.submits) == 1


def test_the_file_is_released_when_a_map_ends_or_fails(client, file):
    values = client.map("double", range(3), resume_file=file)
    assert list(values) == VALUES[:3]
    failing = client.map("double", [0, 7], resume_file=file)
    assert next(failing) == 0
    with pytest.raises(ResumeFileError):
        next(failing)
    assert list(client.map("double", range(3), resume_file=file)) == VALUES[:3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_does_not_keep_the_lock(server, client, file):
    """A child that outlives its killed parent would otherwise keep the next run from starting."""
    values = client.map("double", range(20), batch_size=2, resume_file=file)
    next(values)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.write(writes, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(reads, 1) == b"x"
        values.close()
        assert list(client.map("double", range(20), resume_file=file)) == VALUES
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)


# ---- limits --------------------------------------------------------------------------------------------------------


def test_values_of_a_long_file_are_not_held_in_memory(client, file):
    """The file has the documented format, so a program can write it without the client."""
    count, size = 400, 100_000
    value = json.dumps("x" * size)
    with file.open("w") as out:
        out.write('{"tidewire_map":1,"key":"k","endpoint":"long"}\n')
        for index in range(count):
            out.write(
                f'{{"line":"value","index":{index},"sha256":"{digest("long", index)}","value":{value}}}\n'
            )
    tracemalloc.start()
    try:
        assert sum(len(text) for text in client.map("long", range(count), resume_file=file)) == count * size
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.heavy
def test_memory_for_the_lines_of_a_file_is_bounded(client, file):
    count = 30_000
    with file.open("w") as out:
        out.write('{"tidewire_map":1,"key":"k","endpoint":"double"}\n')
        for index in range(count):
            out.write(
                f'{{"line":"value","index":{index},"sha256":"{digest("double", 0)}","value":[{index}]}}\n'
            )
    assert list(client.map("double", [0], resume_file=file)) == [[0]]
    tracemalloc.start()
    try:
        values = client.map("double", [0], resume_file=file)
        assert next(values) == [0]
        # Arrays that grow have some spare room.
        assert tracemalloc.get_traced_memory()[0] < 1.2 * BYTES_PER_INPUT * count + 100_000
        values.close()
    finally:
        tracemalloc.stop()


def test_a_full_disk_ends_the_map_and_the_next_run_continues(server, client, file):
    """The limit for the size of a file has the same effect as a full disk: a write fails, perhaps after a part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    seen = []
    try:
        for limit in (20, 300, 800, 1100, 1300, 1600):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            values = client.map("double", range(8), batch_size=4, resume_file=file)
            message = f"cannot write the resume file .*run.jsonl: {os.strerror(errno.EFBIG)}"
            with pytest.raises(ResumeFileError, match=message):
                seen.extend(values)
            assert file.stat().st_size <= limit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert seen
    assert list(client.map("double", range(8), resume_file=file)) == VALUES[:8]
    assert submitted(server) == dict.fromkeys(range(8), 1)


def test_the_error_of_a_busy_server_says_how_to_continue(server, file):
    server.endpoint("double").refuses("unavailable", "starting", times=2)
    with Client(server.url, retry=RetryPolicy(attempts=2)) as client:
        with pytest.raises(RequestError, match=r"starting .*call map\(\) again with the same file\.$"):
            list(client.map("double", range(8), resume_file=file))
        assert list(client.map("double", range(8), resume_file=file)) == VALUES[:8]


def test_an_unreachable_server_leaves_a_file_that_continues(server, client, file):
    first_values(client, 2, range(8), batch_size=2, concurrency=2, resume_file=file)
    with Client("http://127.0.0.1:1", retry=RetryPolicy(attempts=1)) as offline:
        values = offline.map("double", range(8), resume_file=file)
        assert [next(values), next(values)] == [0, 2]
        with pytest.raises(TransportError):
            next(values)
    assert list(client.map("double", range(8), resume_file=file)) == VALUES[:8]
    assert submitted(server) == dict.fromkeys(range(8), 1)
