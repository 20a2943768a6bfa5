"""Faulty endpoint functions, alone and in a batch.

Other items are unaffected, every job ends, and the server survives.
"""

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from support.controlled_server import held
from support.reference_server import Fold, Peer, eventually, serving
from tidewire_server import Server
from tidewire_server.serving.exposure_check import ExposedServerError

FAULTS = {
    "raise": "internal",
    "refuse": "https://example.com/no",
    "exit": "internal",
    "interrupt": "internal",
    "type": "invalid_value",
    "nan": "invalid_value",
    "surrogate": "invalid_value",
    "object": "invalid_value",
}


@pytest.fixture(scope="module")
def peer():
    with held() as url, Peer(url) as found:
        yield found


@pytest.fixture(autouse=True)
def _server_still_works(peer):
    yield
    assert peer.value("plain", {"how": "well"}) == "fine"
    assert peer.http.get("/readyz").status_code == 200


@pytest.mark.parametrize("endpoint", ["plain", "on_loop", "alone"])
@pytest.mark.parametrize("how", FAULTS)
def test_a_faulty_function_fails_its_item(peer, endpoint, how):
    job = peer.run(endpoint, {"how": how})
    (item,) = job["state"]["items"]
    assert (job["status"], item["error"]["code"]) == ("failed", FAULTS[how])
    assert item["error"]["retryable"] is (how == "refuse")
    assert "secret" not in str(job)


@pytest.mark.parametrize("how", ["cancel", "close", "unknown"])
def test_a_function_that_raises_a_base_exception_fails_its_item(peer, how):
    for endpoint in ("plain", "on_loop", "yields", "alone", "in_slots", "by_row", "in_step"):
        assert peer.run(endpoint, {"how": how})["status"] == "failed", endpoint


@pytest.mark.parametrize("endpoint", ["in_slots", "by_row", "parted"])
def test_a_faulty_item_of_a_batch_fails_alone(peer, endpoint):
    behaviors = [each for how in FAULTS for each in ("well", how)]
    job = peer.run(endpoint, inputs=[{"how": how} for how in behaviors])
    items = job["state"]["items"]
    assert {each["batch"]["size"] for each in items} == {16}
    assert [each["status"] for each in items] == ["succeeded", "failed"] * len(FAULTS)
    assert [each["error"]["code"] for each in items[1::2]] == list(FAULTS.values())
    assert {each["value"] for each in items[::2]} == {"fine"}
    Fold().take(peer.events(job["id"], "0-0"))


@pytest.mark.parametrize("endpoint", ["plain", "alone", "by_row"])
def test_a_value_of_ten_megabytes_arrives_complete(peer, endpoint):
    fold = Fold().take(peer.events(peer.start(endpoint, {"how": "large"}), "0-0"))
    assert fold.items[0]["value"] == "x" * 10_000_000


def test_a_state_beyond_max_state_bytes_fails_only_its_job_in_a_batch(peer):
    holding = [peer.start("in_slots", {"how": "wait"}) for _ in range(2)]
    both = peer.start("in_slots", inputs=[{"how": "large"}, {"how": "large"}])
    one = peer.start("in_slots", {"how": "large"})
    small = peer.start("in_slots", {"how": "well"})
    items = peer.ended(both)["state"]["items"]
    assert [each["status"] for each in items] == ["succeeded", "failed"]
    assert items[1]["error"]["code"] == "state_too_large"
    assert {peer.ended(job)["status"] for job in (*holding, one, small)} == {"succeeded"}


@pytest.mark.parametrize("then", ["exit", "return", "raise"])
def test_a_function_that_forks_continues_in_the_parent(peer, then):
    for endpoint in ("plain", "alone"):
        assert peer.value(endpoint, {"how": f"fork and {then}"}) == "parent"


@pytest.mark.parametrize("endpoint", ["hang", "hang_together"])
def test_a_hanging_function_is_abandoned_on_cancel_or_deadline(peer, endpoint):
    input_ = {} if endpoint == "hang" else {"n": 1}
    job = peer.start(endpoint, input_)
    eventually(lambda: peer.job(job)["status"] == "running")
    peer.http.post(f"/v1/jobs/{job}/cancel")
    assert peer.ended(job)["status"] == "cancelled"
    late = peer.run(endpoint, input_, deadline_ms=30)
    assert late["state"]["items"][0]["error"]["code"] == "deadline_exceeded"
    peer.http.delete(f"/v1/jobs/{peer.start(endpoint, input_)}")


def test_a_function_that_swallows_cancellation_keeps_only_its_slot(peer):
    job = peer.start("swallow", inputs=[{"n": 1}, {"n": 2}])
    eventually(lambda: peer.job(job)["status"] == "running")
    peer.http.post(f"/v1/jobs/{job}/cancel")
    assert peer.ended(job)["status"] == "cancelled"
    eventually(lambda: "swallowed" in peer.value("came"))
    assert peer.metrics()['tidewire_items_running{endpoint="swallow"}'] == 2
    assert peer.ended(peer.start("swallow", {"n": 3}, deadline_ms=30))["status"] == "failed"


def test_joining_and_cancelled_items_do_not_disturb_a_running_batch(peer):
    stays = peer.start("endless", {"words": "a"})
    for round_ in range(12):
        jobs = [peer.start("endless", {"words": "b"}) for _ in range(1 + round_ % 5)]
        for job in jobs:
            peer.http.post(f"/v1/jobs/{job}/cancel")
            assert peer.ended(job)["status"] == "cancelled"
    peer.http.post(f"/v1/jobs/{stays}/cancel")
    fold = Fold().take(peer.events(stays, "0-0"))
    assert set(fold.items[0]["value"]) == {"a"}
    assert fold.items[0]["status"] == "cancelled"


@pytest.mark.heavy
def test_a_leftover_thread_does_not_keep_a_process_with_server_run_alive(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(
        textwrap.dedent("""
            import asyncio, threading
            from tidewire_server import Server

            server = Server(shutdown_timeout=0.1, cancel_timeout=0.1)

            @server.endpoint
            async def stuck() -> None:
                await asyncio.to_thread(threading.Event().wait, 3600)

            server.run(port=0)
        """)
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with Peer(url) as peer:
            job = peer.start("stuck")
            eventually(lambda: peer.job(job)["status"] == "running")
        process.terminate()
        try:
            assert process.wait(20) == 0
        finally:
            process.kill()


# ---- the setting `debug` -------------------------------------------------------------------------------------------


def failing_server(**settings):
    server = Server(**settings)

    @server.endpoint
    def divide(by: int = 0) -> float:
        return 1 / by

    @server.endpoint(batch=True)
    async def divide_all(by: list[int]) -> list[float]:
        return [1 / each for each in by]

    return server


@pytest.mark.parametrize("endpoint", ["divide", "divide_all"])
def test_debug_sends_the_traceback_to_the_caller(endpoint, caplog):
    with serving(failing_server(debug=True)) as peer:
        (item,) = peer.run(endpoint, {"by": 0})["state"]["items"]
    error = item["error"]
    assert error["code"] == "internal"
    assert f"{endpoint!r} failed:\nTraceback (most recent call last):" in error["detail"]
    assert "1 / " in error["detail"]
    assert error["detail"].endswith("ZeroDivisionError: division by zero")
    assert "tidewire_server" not in error["detail"]
    assert "debug is on: callers receive the tracebacks" in caplog.text


def test_without_debug_the_caller_learns_how_to_get_the_traceback():
    with serving(failing_server()) as peer:
        (item,) = peer.run("divide")["state"]["items"]
    assert "ZeroDivisionError" not in item["error"]["detail"]
    assert "Server(debug=True) or `tidewire serve --debug`" in item["error"]["detail"]


def test_a_long_traceback_is_cut_at_its_beginning():
    server = Server(debug=True)

    @server.endpoint
    def fails(n: int = 5000) -> int:
        raise RuntimeError("x" * n + "\udc80 end")

    with serving(server) as peer:
        (short,), (long,) = (peer.run("fails", {"n": n})["state"]["items"] for n in (1, 20_000))
    assert short["error"]["detail"].endswith(r"RuntimeError: x\udc80 end")
    assert len(long["error"]["detail"]) < 8200
    assert long["error"]["detail"].endswith(r"xx\udc80 end")


@pytest.mark.heavy
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_debug_is_refused_on_an_address_that_other_machines_can_reach(host):
    refused = r"refusing to serve on .* with debug, .* turn off debug \(--debug or TIDEWIRE_DEBUG\)"
    with pytest.raises(SystemExit, match=refused):
        failing_server(debug=True, tokens=["sesame"]).run(host=host, port=0)
    with pytest.raises(ExposedServerError), failing_server(debug=True, tokens=["sesame"]).running(host=host):
        pass


@pytest.mark.parametrize("batch", [False, True])
def test_a_bug_of_the_server_at_the_end_of_an_item_ends_the_job(monkeypatch, batch):
    from tidewire_server.jobs.job import Job

    async def broken(self, index, value):
        raise LookupError("a bug")

    monkeypatch.setattr(Job, "_succeeded", broken)
    server = Server()

    @server.endpoint(batch=batch)
    def same(n):
        return n

    with serving(server) as peer:
        found = peer.run("same", {"n": 1})
    assert (found["status"], found["state"]["items"][0]["error"]["code"]) == ("failed", "internal")


def test_a_task_of_a_function_that_exits_does_not_end_the_server(caplog):
    server = Server()

    async def load() -> int:
        await asyncio.sleep(0)
        sys.exit("no model")

    @server.endpoint
    async def gathers() -> list[int]:
        return await asyncio.gather(load(), load())

    @server.endpoint
    async def catches() -> str:
        try:
            await asyncio.create_task(load())
        except SystemExit as error:
            return str(error)
        return "loaded"

    with serving(server) as peer:
        assert peer.run("gathers")["state"]["items"][0]["error"]["code"] == "internal"
        assert peer.value("catches") == "no model"
    assert "a task of a function raised SystemExit; the server continues" in caplog.text
    assert 'sys.exit("no model")' in caplog.text


def test_a_task_that_exits_when_the_server_stops_does_not_keep_other_tasks_from_ending(caplog):
    server, running, ended = Server(), set(), []

    async def exits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            sys.exit("stopped")

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append("cleaned up")

    @server.endpoint
    async def starts() -> int:
        running.update(asyncio.create_task(each()) for each in (exits, cleans_up))
        await asyncio.sleep(0)
        return 1

    with serving(server) as peer:
        assert peer.value("starts") == 1
    assert ended == ["cleaned up"]
    assert [str(task.exception()) for task in running if not task.cancelled()] == ["stopped"]
    assert 'sys.exit("stopped")' in caplog.text


def test_the_log_has_the_line_of_a_function_that_raises_stop_iteration(caplog):
    server = Server()

    @server.endpoint
    def first(n: int) -> int:
        return next(i for i in range(n) if i > n)

    with serving(server) as peer:
        assert peer.run("first", {"n": 1})["status"] == "failed"
    assert "return next(i for i in range(n) if i > n)" in caplog.text
