"""The server under adverse conditions: late thread writes, full queues, odd errors, failing disks."""

import re
import socket
import threading
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator

from support.reference_server import QUICK, Fold, data, eventually, serving
from tidewire import Client
from tidewire.errors import RequestError
from tidewire_server import Context, ItemError, Server, Stream
from tidewire_server.errors import StreamClosedError
from tidewire_server.jobs import loop_watchdog


@pytest.mark.parametrize("count", [1, 2])
def test_a_thread_blocked_by_backpressure_writes_nothing_after_its_item_ended(count):
    server = Server(**(QUICK | {"default_concurrency_limit": None}))
    held, refused = threading.Event(), threading.Event()

    @server.endpoint
    def flood(stream: Stream[str], much: bool = True) -> None:
        assert (held if much else refused).wait(10)
        try:
            while much:
                stream.append("x" * 100_000)
        except StreamClosedError:
            refused.set()
            raise

    @server.endpoint
    async def stop(job: str) -> None:
        # Block the event loop, and so the commits, until the thread waits for space in the buffer.
        running = server.app.service._live[job]
        held.set()
        eventually(lambda: (fell := running._pending.backlog.fell) and fell._waiters)
        await running._end_item(0, "cancelled")

    with serving(server) as peer:
        job = peer.start("flood", inputs=[{"much": True}, {"much": False}][:count])
        eventually(lambda: peer.job(job)["state"]["items"][0]["status"] == "running")
        assert peer.run("stop", {"job": job})["status"] == "succeeded"
        fold = Fold().take(peer.events(job, "0-0"))
        assert fold.done is not None
        assert refused.is_set()
        ends = [items[0] for items in fold.states.values() if items[0]["status"] == "cancelled"]
        assert all(each == ends[0] for each in ends)
        assert peer.job(job)["state"]["items"] == fold.items


def test_max_queue_size_applies_if_only_threads_limit_concurrency():
    server = Server(**QUICK, max_threads=1, max_queue_size=2)
    over = threading.Event()

    @server.endpoint(concurrency_limit=None)
    def hold() -> None:
        over.wait(10)

    with serving(server) as peer:
        assert [peer.submit("hold").status_code for _ in range(5)] == [201, 201, 201, 429, 429]
        over.set()


def test_an_endpoint_may_have_a_queue_of_size_zero():
    server = Server(**QUICK)
    over = threading.Event()

    @server.endpoint(max_queue_size=0)
    def hold() -> None:
        over.wait(10)

    with serving(server) as peer:
        assert [peer.submit("hold").status_code for _ in range(2)] == [201, 429]
        over.set()


@pytest.mark.parametrize(
    ("options", "max_items"),
    [
        ({"concurrency_limit": 2}, 5),
        ({"concurrency_limit": None}, 7),
        ({"batch": True, "max_batch_size": 4}, 7),
    ],
)
def test_a_batch_larger_than_queue_and_slots_is_refused_permanently(options, max_items):
    server = Server(**QUICK, max_threads=4, max_queue_size=3)

    @server.endpoint(**options)
    def lengths(words: list[str]) -> list[int]:
        return [len(word) for word in words]

    with serving(server) as peer:
        words = {"words": "sea" if options.get("batch") else ["sea"]}
        assert peer.http.get("/v1/endpoints/lengths").json()["capabilities"]["batch"] == {
            "max_items": max_items
        }
        found = peer.submit("lengths", inputs=[words] * (max_items + 1))
        assert found.status_code == 422
        assert (found.json()["code"], found.json()["limit"]) == ("batch_too_large", max_items)
        job = peer.start("lengths", inputs=[words] * max_items)
        assert peer.ended(job)["status"] == "succeeded"


def test_endpoints_take_turns_for_worker_threads():
    server = Server(**QUICK, default_concurrency_limit=None, max_threads=1)
    order, filled = [], threading.Event()

    @server.endpoint
    def many() -> None:
        filled.wait(10)
        order.append("many")

    @server.endpoint
    def few() -> None:
        order.append("few")

    @server.endpoint
    def fewer() -> None:
        order.append("fewer")

    with serving(server) as peer:
        jobs = [peer.start(name) for name in ["many"] * 6 + ["few"] * 2 + ["fewer"]]
        filled.set()
        assert all(peer.ended(job)["status"] == "succeeded" for job in jobs)
    assert order == ["many", "few", "fewer", "many", "few", "many", "many", "many", "many"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 2**53 + 1, 10**400, True, "1"])
def test_invalid_usage_raises_at_the_call(number):
    server, messages = Server(**QUICK), []

    @server.endpoint
    async def report(stream: Stream[str]) -> None:
        try:
            stream.usage(tokens=number)
        except ValueError as error:
            messages.append(str(error))
        stream.usage(tokens=2**53)

    with serving(server) as peer:
        assert peer.run("report", inputs=[{}, {}])["done"]["usage"] == {"tokens": 2.0**54}
        assert "the usage 'tokens' must be a number" in messages[0]


@pytest.mark.parametrize(
    "report",
    [
        lambda ctx: ctx.note(3),
        lambda ctx: ctx.note(None),
        lambda ctx: ctx.note("\ud800"),
        lambda ctx: ctx.note("x", "bad"),
        lambda ctx: ctx.progress(float("nan")),
        lambda ctx: ctx.progress(2**53 + 1),
        lambda ctx: ctx.progress(1, True),
        lambda ctx: ctx.progress(1, "2"),
        lambda ctx: ctx.progress(1, unit=2),
        lambda ctx: ctx.progress(1, phase="\ud800"),
        lambda ctx: ctx.progress(1, phase="x" * 1001),
    ],
)
def test_an_invalid_note_or_progress_raises_at_the_call(report):
    server = Server(**QUICK)

    @server.endpoint
    def report_invalid(ctx: Context) -> str:
        with pytest.raises(ValueError, match="^(a note|progress)"):
            report(ctx)
        ctx.progress(2**53, 1.5, unit="x", phase="x" * 1000)
        ctx.note("x" * 2000, "error")
        return "done"

    assert server.call("report_invalid") == "done"


def test_inputs_of_unfinished_jobs_are_bounded_in_bytes():
    server = Server(**QUICK, max_input_bytes=2000)
    over = threading.Event()

    @server.endpoint
    def hold(text: str) -> int:
        over.wait(10)
        return len(text)

    with serving(server) as peer:
        alone = peer.start("hold", {"text": "x" * 3000})
        answer = peer.submit("hold", {"text": "x"})
        assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
        assert "max_input_bytes" in answer.json()["detail"]
        assert "retry-after" in answer.headers
        over.set()
        assert peer.ended(alone)["status"] == "succeeded"
        over.clear()
        two = [peer.start("hold", {"text": "x" * 900}) for _ in range(2)]
        assert peer.submit("hold", {"text": "x" * 900}).status_code == 429
        assert peer.submit("hold", {"text": 3}).status_code == 422
        peer.http.post(f"/v1/jobs/{two[1]}/cancel")
        shared = {"inputs": [{}, {}], "shared": {"text": "x" * 600}}
        assert peer.http.post("/v1/endpoints/hold/jobs", json=shared).status_code == 429
        two[1] = peer.start("hold", {"text": "x" * 900})
        over.set()
        assert all(peer.ended(job)["status"] == "succeeded" for job in two)


def test_a_function_that_blocks_the_event_loop_is_named_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(loop_watchdog, "MAX_BLOCKED_SECONDS", 0.02)
    monkeypatch.setattr(loop_watchdog, "WARNING_INTERVAL", 0.0)
    server = Server(**QUICK)

    @server.endpoint
    async def holds() -> str:
        threading.Event().wait(0.2)
        return "at last"

    @server.endpoint
    async def idle() -> None: ...

    with serving(server) as peer:

        def named():
            assert peer.value("holds") == "at last"
            text = (
                r"blocked for 0.\d s at \S+test_server_stress.py:\d+ in holds, .* running endpoints: 'holds'$"
            )
            return any(re.search(text, record.getMessage()) for record in caplog.records)

        eventually(named)


@pytest.mark.parametrize("inputs", [1, 2])
def test_an_invalid_value_is_logged_for_the_operator(inputs, caplog):
    server = Server(**QUICK)

    @server.endpoint(batch=inputs > 1)
    def wrong(n: list[int]) -> list[int]:
        return ["x" for _ in n]

    with serving(server) as peer:
        job_input = {"input": {"n": [1]}} if inputs == 1 else {"inputs": [{"n": 1}] * inputs}
        assert peer.run("wrong", **job_input)["status"] == "failed"
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(messages) == inputs
    assert all("endpoint 'wrong' produced an invalid value: " in each for each in messages)
    assert all("Input should be a valid integer" in each for each in messages)


@pytest.mark.parametrize(
    ("message", "members"),
    [
        ("\ud800", {}),
        (12, {}),
        ("x", {"thing": object()}),
        ("x", {"n": 2**60}),
    ],
)
def test_an_item_error_that_is_not_json_fails_only_its_item(message, members):
    server = Server(**(QUICK | {"default_concurrency_limit": None}))
    failed = threading.Event()

    @server.endpoint
    def either(fail: bool) -> str:
        if fail:
            raise ItemError(message, **members)
        failed.wait(10)
        return "fine"

    with serving(server) as peer:
        job = peer.start("either", inputs=[{"fail": True}, {"fail": False}])
        eventually(lambda: peer.job(job)["state"]["items"][0]["status"] == "failed")
        failed.set()
        bad, good = peer.ended(job)["state"]["items"]
        assert (bad["error"]["code"], good["value"]) == ("internal", "fine")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (lambda: ItemError("no", code="input_too_long"), "input_too_long"),
        (lambda: ItemError("no"), "item_refused"),
        (lambda: CodedError("no"), "item_refused.empty"),
    ],
)
def test_errors_of_a_validate_function_refuse_the_submit(error, code):
    server = Server(**QUICK)

    def raise_error(_given: object) -> None:
        raise error()

    @server.endpoint(validate=raise_error)
    def judged() -> None: ...

    with serving(server) as peer:
        answer = peer.submit("judged")
        found = answer.json()
        assert (answer.status_code, found["code"], found["pointer"]) == (422, code, "/input")


class CodedError(ValueError):
    code = "empty"


def raise_key_error(_given: object) -> Any:
    raise KeyError("secret")


@pytest.mark.parametrize(
    ("number", "options", "function"),
    [
        (Any, {"validate": raise_key_error}, "validate"),
        (Any, {"columns": raise_key_error}, "columns"),
        (Any, {"columns": lambda _given: ["not a pointer"]}, "columns returned a value that is not a list"),
        (Any, {"initial": raise_key_error}, "initial"),
        (list[Any], {"batch": True, "key": raise_key_error}, "key or cost"),
        (list[Any], {"batch": True, "cost": raise_key_error, "max_cost": 1}, "key or cost"),
        (list[Any], {"batch": True, "cost": lambda given: int("secret"), "max_cost": 1}, "key or cost"),
        (list[Any], {"batch": True, "key": lambda given: ["secret"]}, "key or cost"),
        (Annotated[int, BeforeValidator(raise_key_error)], {}, "a validator of the input"),
    ],
)
def test_a_function_that_fails_during_a_submit_is_named_and_its_exception_is_logged(
    number, options, function, caplog
):
    server = Server(**QUICK)

    def judged(number): ...

    judged.__annotations__["number"] = number
    server.endpoint(**options)(judged)
    with serving(server) as peer:
        answer = peer.submit("judged", {"number": 1})
    assert (answer.status_code, answer.json()["code"]) == (424, "endpoint.function_failed")
    what = function if " returned " in function else f"{function} raised an exception"
    assert answer.json()["detail"].startswith(f"endpoint 'judged': {what}")
    assert "secret" not in answer.text
    (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert isinstance(logged.exc_info[1].__cause__, KeyError | ValueError)


def test_an_initial_value_that_is_not_json_is_a_fault_of_the_function(caplog):
    server = Server(**QUICK)

    @server.endpoint(initial=lambda _: {"a": float("nan")})
    def judged() -> dict[str, float]: ...

    with serving(server) as peer:
        answer = peer.submit("judged", {})
    assert (answer.status_code, answer.json()["code"]) == (424, "endpoint.function_failed")
    assert answer.json()["detail"].startswith("endpoint 'judged': the initial value")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_client_does_not_repeat_a_submit_for_which_a_function_has_failed():
    server = Server(**QUICK)

    @server.endpoint(validate=raise_key_error)
    def judged() -> None: ...

    with server.running() as url, Client(url) as client:
        with pytest.raises(RequestError, match="endpoint 'judged'") as caught:
            client.submit("judged")
        assert (type(caught.value), caught.value.retryable) == (RequestError, False)


def test_the_disconnect_of_a_pipelining_reader_is_noticed(caplog):
    server = Server(**QUICK, heartbeat=0.05)
    over = threading.Event()

    @server.endpoint
    def hold() -> None:
        over.wait(10)

    with serving(server) as peer:
        job = peer.start("hold")
        host, port = peer.http.base_url.host, peer.http.base_url.port
        with socket.create_connection((host, port)) as reader:
            stream_request = b"GET /v1/jobs/%b/events HTTP/1.1\r\nhost: localhost\r\n\r\n" % job.encode()
            reader.sendall(stream_request + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert reader.recv(1000).startswith(b"HTTP/1.1 200")
            eventually(lambda: peer.metrics()["tidewire_open_streams"] == 1)
        eventually(lambda: peer.metrics()["tidewire_open_streams"] == 0)
        over.set()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_whitespace_around_a_cursor_is_ignored():
    server = Server(**QUICK)

    @server.endpoint
    def nothing() -> None: ...

    with serving(server) as peer:
        job = peer.ended(peer.start("nothing"))
        host, port = peer.http.base_url.host, peer.http.base_url.port
        with socket.create_connection((host, port)) as reader:
            cursor = job["cursor"].encode()
            reader.sendall(
                b"GET /v1/jobs/%b/events HTTP/1.1\r\nhost: localhost\r\nlast-event-id:  %b \t\r\n\r\n"
                % (job["id"].encode(), cursor)
            )
            assert reader.recv(1000).startswith(b"HTTP/1.1 204")


class FailingLog:
    """A log whose reads fail after the first `reads` calls."""

    def __init__(self, log: object, reads: int) -> None:
        self._log, self._reads = log, reads

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    async def read(self, *place: object) -> object:
        self._reads -= 1
        if self._reads < 0:
            raise OSError("the disk is gone")
        return await self._log.read(*place)


@pytest.mark.parametrize("reads", [0, 2])
def test_a_stream_whose_log_fails_sends_goaway_and_is_logged_once(reads, monkeypatch, caplog):
    server = Server(**QUICK)
    over = threading.Event()

    @server.endpoint
    def hold(stream: Stream[str]) -> None:
        while not over.wait(0.01):
            stream.append(
                "held" * 10_000
            )  # Blocks of this size are read from the log, not delivered directly.

    with serving(server) as peer:
        job = peer.start("hold")
        real = server.app.service.log

        async def failing(record: object) -> object:
            return FailingLog(await real(record), reads)

        monkeypatch.setattr(server.app.service, "log", failing)
        events = peer.events(job)
        assert [event.type for event in events if event.type in {"hello", "goaway"}] == ["hello", "goaway"]
        assert data(events[-1])["reason"] == "restart"
        monkeypatch.undo()
        over.set()
        assert peer.ended(job)["status"] == "succeeded"
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "the disk is gone" in record.exc_text


def test_an_error_before_the_response_is_a_problem_and_is_logged_once(monkeypatch, caplog):
    server = Server(**QUICK)

    @server.endpoint
    def nothing() -> None: ...

    with serving(server) as peer:
        job = peer.ended(peer.start("nothing"))["id"]

        async def failing(_record: object) -> object:
            raise OSError("the disk is gone")

        monkeypatch.setattr(server.app.service, "log", failing)
        for path, status in [("", 500), ("/events", 500), ("/events?errors=inband", 200)]:
            caplog.clear()
            answer = peer.http.get(f"/v1/jobs/{job}{path}")
            assert (answer.status_code, "internal" in answer.text) == (status, True)
            assert "disk" not in answer.text
            assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
