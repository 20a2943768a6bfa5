"""Endpoints on Ray actors (`workers=ray_workers(…)`), on a real local cluster that the tests of this module share."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from support.reference_server import QUICK, Fold, eventually, serving
from tidewire_server import Append, Context, ItemError, Last, Server, ray_workers
from tidewire_server.batching.ray_workers import cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.heavy,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install -e '.[ray]'"),
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("default"),  # Ray itself causes warnings
]

slow = pytest.mark.slow

SECONDS = 60
"""A generous bound: an actor is a process, which imports the server."""


class OnGPU:
    def __init__(self):
        import torch

        self.weight = torch.eye(2, device="cuda")

    def __call__(self, xs: list[float]) -> list[tuple[float, str | None, int]]:
        products = self.weight.new_tensor([[x, 0.0] for x in xs]) @ self.weight
        return [(x, os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid()) for x in products[:, 0].tolist()]


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    """A local cluster that outlives the servers, because it takes longer to start than most tests."""
    import ray

    with cluster.on_loopback():
        ray.init(include_dashboard=False, num_cpus=2, logging_level="ERROR", log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


def actors(count, **options):
    return ray_workers(count, num_cpus=0, num_gpus=0, **options)


@contextlib.contextmanager
def served(function, workers, *, settings=None, **options):
    """A server with one endpoint, called `f`."""
    server = Server(**QUICK, **(settings or {}))
    server.endpoint(name="f", batch=True, workers=workers, **options)(function)
    with serving(server) as peer:
        yield peer


def test_server_call_starts_the_workers_and_stops_them():
    server = Server(**QUICK)

    @server.endpoint(name="f", batch=True, workers=actors(1, replace_timeout=SECONDS))
    def upper(words: list[str]) -> list[str]:
        return [word.upper() for word in words]

    assert server.call("f", words="a") == "A"
    workers = server.endpoints["f"].workers
    assert workers is not None
    assert workers.counts().ready == 0


def wait_for(path):
    """In an actor: wait until a test has made a file."""
    while not Path(path).exists():
        time.sleep(0.01)


def pid_in(path):
    """In a test: wait until an actor has written its process id to a file."""
    eventually(lambda: path.exists() and path.read_text(), within=SECONDS)
    return int(path.read_text())


def write_pid(path):
    part = Path(f"{path}.part")
    part.write_text(str(os.getpid()))
    part.rename(path)


def item(job, index=0):
    return job["state"]["items"][index]


# ---- batches ----------------------------------------------------------------------------------------------------


class Upper:
    """Loads its model once per actor."""

    def __init__(self):
        self.calls = 0

    def __call__(self, texts: list[str]) -> list[str | ItemError]:
        self.calls += 1
        return [
            f"{text.upper()} {len(texts)} {self.calls} {os.getpid()}"
            if text
            else ItemError("empty", code="empty")
            for text in texts
        ]


def test_class_is_created_once_in_each_actor_and_called_for_each_batch():
    with served(Upper, actors(1), max_batch_size=4, batch_timeout=30.0) as peer:
        first = peer.run("f", inputs=[{"texts": "a"}] * 4)["state"]["items"]
        second = peer.run("f", inputs=[{"texts": "b"}] * 3 + [{"texts": ""}])["state"]["items"]
        metrics = peer.metrics()

    words = [each["value"].split() for each in first + second[:3]]
    assert [each[:3] for each in words] == [["A", "4", "1"]] * 4 + [["B", "4", "2"]] * 3
    assert {each[3] for each in words} == {words[0][3]} != {str(os.getpid())}
    assert second[3]["error"]["code"] == "item_refused.empty"
    assert (
        metrics['tidewire_pool_workers{endpoint="f"}']
        == metrics['tidewire_pool_workers_ready{endpoint="f"}']
        == 1
    )
    assert (
        metrics['tidewire_pool_workers_lost{endpoint="f"}']
        == metrics['tidewire_pool_workers_busy{endpoint="f"}']
        == 0
    )


class Sample(BaseModel):
    text: str
    shape: int = 1
    gates: str | None = None


@slow
def test_batches_on_two_actors_run_at_the_same_time_and_share_no_key(tmp_path):
    def shapes(samples: list[Sample]) -> list[list[int]]:
        assert {type(each) for each in samples} == {Sample}
        Path(f"{tmp_path}/{samples[0].shape}").touch()
        for shape in (1, 2):
            wait_for(f"{tmp_path}/{shape}")
        return [[os.getpid(), *(each.shape for each in samples)] for _ in samples]

    with served(shapes, actors(2), key=lambda sample: sample.shape, batch_timeout=0.2) as peer:
        inputs = [{"text": "a", "shape": 1 + n % 2} for n in range(4)]
        values = [each["value"] for each in peer.run("f", inputs=inputs)["state"]["items"]]

    assert [each[1:] for each in values] == [[1, 1], [2, 2], [1, 1], [2, 2]]
    assert values[0][0] != values[1][0]


@slow
def test_yields_of_a_generator_are_streamed_and_rows_end_on_their_own(tmp_path):
    def spell(words: list[str], ctx: Context) -> Iterator[dict[int, Append[str] | Last]]:
        for n in range(max(map(len, words))):
            yield {
                row: Append(word[n]) if n + 1 < len(word) else Last(Append(word[n]))
                for row, word in enumerate(words)
                if n < len(word)
            }
            if n == 2:
                wait_for(f"{tmp_path}/go")

    with served(spell, actors(1), max_batch_size=2, batch_timeout=30.0) as peer:
        job = peer.start("f", inputs=[{"words": "abc"}, {"words": "abcdef"}])
        eventually(lambda: item(peer.job(job), 1)["value"] == "abc", within=SECONDS)
        assert [each["status"] for each in peer.job(job)["state"]["items"]] == ["succeeded", "running"]
        (tmp_path / "go").touch()
        fold = Fold().take(peer.events(job, "0-0"))

    assert [each["value"] for each in fold.items] == ["abc", "abcdef"]


def test_progress_notes_and_usage_arrive_while_the_function_runs(tmp_path):
    def report(words: list[str], ctx: Context) -> list[str]:
        ctx.progress(1, 4, unit="step")
        ctx.rows[0].note("half-way", "warning")
        ctx.rows[0].usage(tokens=3)
        with contextlib.suppress(ValueError):
            ctx.progress(float("nan"))
        wait_for(f"{tmp_path}/go")
        return words

    with served(report, actors(1)) as peer:
        job = peer.start("f", {"words": "a"})
        with peer.stream(job) as events:
            progress = events.until("progress")
            (tmp_path / "go").touch()
        state = peer.ended(job)["state"]

    assert '"current":1' in progress.data
    assert '"unit":"step"' in progress.data
    assert state["notes"] == [{"text": "half-way", "level": "warning"}]
    assert state["usage"] == {"tokens": 3}


@slow
def test_slow_server_pauses_a_generator_after_max_in_flight_yields(tmp_path):
    """The event loop is blocked, so that the server takes nothing."""
    import asyncio

    def count(n: list[int]) -> Iterator[dict[int, int]]:
        for i in range(100):
            Path(f"{tmp_path}/{i}").touch()
            yield {0: i}

    def written():
        return len(list(tmp_path.iterdir()))

    async def take_slowly():
        server = Server()
        server.endpoint(name="f", batch=True, workers=actors(1, max_in_flight=5))(count)
        endpoint = server.endpoints["f"]
        row = SimpleNamespace(run=SimpleNamespace(attempt=1, previous=None, cancelled=False))
        await endpoint.workers.start(5.0)
        try:
            inputs, context = [endpoint.input.read({"n": 1}, "")], Context(rows={0: Context(row)})
            async with aclosing(endpoint.workers.stream(inputs, context)) as steps:
                taken = 0
                async for _ in steps:
                    taken += 1
                    if taken == 1:
                        eventually(lambda: written() >= 6, within=SECONDS)
                        time.sleep(0.3)  # it would write all files within this time
                        # The server has taken up to five yields at once. Five more and one that waits are in the actor.
                        assert written() <= 11
                return taken
        finally:
            await endpoint.workers.close()

    assert asyncio.run(take_slowly()) == 100


# ---- exceptions -------------------------------------------------------------------------------------------------


class OwnError(Exception):
    """Cannot be restored from its message alone."""

    def __init__(self, code, *, limit):
        super().__init__(f"{code} above {limit}")


@slow
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: KeyError("missing"), "KeyError: 'missing'"),
        (lambda: OwnError("c", limit=3), f"{__name__}.OwnError: c above 3"),
        (lambda: SystemExit(3), "the function raised SystemExit"),
    ],
    ids=["built-in", "not restorable", "exit"],
)
def test_exception_is_logged_with_its_type_message_and_traceback(make, text, caplog):
    def fail(words: list[str]) -> list[str]:
        raise make()

    with served(fail, actors(1), settings={"debug": True}) as peer:
        problem = item(peer.run("f", {"words": "a"}))["error"]

    (record,) = [each for each in caplog.records if each.exc_info]
    assert str(record.exc_info[1]) == text
    assert "in fail" in caplog.text
    assert problem["code"] == "internal"
    assert "in fail" in problem["detail"]
    assert "test_ray_workers.py" in problem["detail"]


@slow
def test_wrong_number_of_values_is_an_invalid_value_and_bisect_finds_the_bad_row():
    def fussy(words: list[str]) -> list[str]:
        if "bad" in words:
            raise ValueError("bad")
        return words if len(words) > 1 else []

    with served(fussy, actors(1), bisect=True, max_batch_size=4, batch_timeout=30.0) as peer:
        items = peer.run("f", inputs=[{"words": word} for word in ("a", "b", "c", "bad")])["state"]["items"]

    assert [each.get("value") for each in items[:2]] == ["a", "b"]
    assert items[2]["error"]["detail"] == "the function returned 0 values for 1 inputs"
    assert items[3]["error"]["code"] == "internal"


# ---- cancellation -----------------------------------------------------------------------------------------------


@slow
def test_function_that_notices_a_cancel_keeps_its_actor(tmp_path):
    def work(pids: list[str], ctx: Context) -> list[str]:
        write_pid(pids[0])
        while not ctx.cancelled and not Path(f"{tmp_path}/go").exists():
            time.sleep(0.01)
        return [str(ctx.cancelled) for _ in pids]

    with served(work, actors(1)) as peer:
        job = peer.start("f", {"pids": str(tmp_path / "first")})
        first = pid_in(tmp_path / "first")
        peer.http.post(f"/v1/jobs/{job}/cancel")
        assert peer.ended(job)["status"] == "cancelled"
        (tmp_path / "go").touch()
        assert peer.value("f", {"pids": str(tmp_path / "second")}) == "False"
        assert pid_in(tmp_path / "second") == first
        assert peer.metrics()['tidewire_pool_workers_lost{endpoint="f"}'] == 0


@slow
def test_cancelled_row_is_marked_and_the_other_rows_continue(tmp_path):
    def work(names: list[str], ctx: Context) -> list[str]:
        write_pid(tmp_path / "pid")
        while not ctx.rows[0].cancelled:
            time.sleep(0.01)
        assert not ctx.cancelled
        return names

    with served(work, actors(1), max_batch_size=2, batch_timeout=30.0) as peer:
        first, second = peer.start("f", {"names": "a"}), peer.start("f", {"names": "b"})
        pid_in(tmp_path / "pid")
        peer.http.post(f"/v1/jobs/{first}/cancel")
        assert item(peer.ended(second))["value"] == "b"
        assert peer.job(first)["status"] == "cancelled"


def test_actor_of_a_function_that_does_not_notice_a_cancel_is_replaced(tmp_path):
    def work(pids: list[str]) -> list[str]:
        write_pid(pids[0])
        wait_for(f"{tmp_path}/go")
        return pids

    with served(work, actors(1)) as peer:
        job = peer.start("f", {"pids": str(tmp_path / "first")})
        first = pid_in(tmp_path / "first")
        peer.http.post(f"/v1/jobs/{job}/cancel")
        eventually(lambda: peer.metrics()['tidewire_pool_workers_lost{endpoint="f"}'] == 1, within=SECONDS)
        (tmp_path / "go").touch()
        assert peer.value("f", {"pids": str(tmp_path / "second")}) == str(tmp_path / "second")
        assert pid_in(tmp_path / "second") != first
        assert not Path(f"/proc/{first}").exists()


def pair(names: list[str], ctx: Context) -> Iterator[dict[int, Append[str]]]:
    """In the first attempt, the batch has two rows, and the function notices no cancel."""
    yield {row: Append(f"<{each.attempt} {each.previous}>") for row, each in ctx.rows.items()}
    if len(names) > 1:
        write_pid(names[0])
        wait_for("/never")
    yield {0: Append("end")}


@pytest.mark.parametrize(
    ("on_restart", "value"),
    [
        ("rerun", "<2 <1 None>>end"),
        pytest.param("continue", "<1 None><2 <1 None>>end", marks=slow),
        pytest.param("fail", "<1 None>", marks=slow),
    ],
)
def test_cancel_of_one_row_replaces_the_actor_and_the_other_row_follows_on_restart(
    on_restart, value, tmp_path
):
    with served(pair, actors(1), on_restart=on_restart, max_batch_size=2, batch_timeout=1.0) as peer:
        first, second = (peer.start("f", {"names": str(tmp_path / "pid")}) for _ in range(2))
        pid = pid_in(tmp_path / "pid")
        eventually(lambda: item(peer.job(second))["value"] == "<1 None>", within=SECONDS)
        peer.http.post(f"/v1/jobs/{first}/cancel")
        ended = peer.ended(second)
        assert peer.ended(first)["status"] == "cancelled"
        eventually(lambda: peer.metrics()['tidewire_pool_workers_lost{endpoint="f"}'] == 1, within=SECONDS)
        eventually(lambda: not Path(f"/proc/{pid}").exists(), within=SECONDS)

    assert item(ended)["value"] == value
    if on_restart == "fail":
        assert (ended["attempt"], item(ended)["error"]["code"]) == (1, "worker_lost")
    else:
        assert (ended["attempt"], ended["status"]) == (2, "succeeded")


@slow
def test_cancelled_row_of_a_function_without_a_context_replaces_the_actor(tmp_path):
    def work(names: list[str]) -> list[str]:
        if len(names) > 1:
            write_pid(tmp_path / "pid")
            wait_for("/never")
        return names

    with served(work, actors(1), max_batch_size=2, batch_timeout=1.0) as peer:
        first, second = peer.start("f", {"names": "a"}), peer.start("f", {"names": "b"})
        pid_in(tmp_path / "pid")
        peer.http.post(f"/v1/jobs/{first}/cancel")
        ended = peer.ended(second)

    assert (ended["attempt"], item(ended)["value"]) == (2, "b")


@slow
def test_generator_that_ends_a_cancelled_row_keeps_its_actor(tmp_path):
    def work(names: list[str], ctx: Context) -> Iterator[dict[int, Append[str] | Last]]:
        write_pid(tmp_path / "pid")
        while not ctx.rows[0].cancelled:
            time.sleep(0.01)
        yield {0: Last()}
        time.sleep(1)  # longer than cancel_timeout
        yield {1: Last(Append(names[1]))}

    with served(work, actors(1), max_batch_size=2, batch_timeout=30.0) as peer:
        first, second = peer.start("f", {"names": "a"}), peer.start("f", {"names": "b"})
        pid_in(tmp_path / "pid")
        peer.http.post(f"/v1/jobs/{first}/cancel")
        ended = peer.ended(second)
        lost = peer.metrics()['tidewire_pool_workers_lost{endpoint="f"}']

    assert (ended["attempt"], item(ended)["value"], lost) == (1, "b", 0)


# ---- death ------------------------------------------------------------------------------------------------------


def grow(names: list[str], ctx: Context) -> Iterator[dict[int, Append[str]]]:
    """Appends to what an earlier attempt has left, and waits in the first attempt."""
    (name,) = names
    yield {0: Append(f"<{ctx.rows[0].attempt} {ctx.rows[0].previous}>")}
    write_pid(f"{name}{ctx.rows[0].attempt}")
    if ctx.rows[0].attempt == 1:
        wait_for(f"{name}go")
    yield {0: Append("end")}


@pytest.mark.parametrize("log", ["memory", pytest.param("file", marks=slow)])
@pytest.mark.parametrize(
    ("on_restart", "value"),
    [("rerun", "<2 <1 None>>end"), ("continue", "<1 None><2 <1 None>>end"), ("fail", "<1 None>")],
)
def test_killed_actor_leads_to_a_new_attempt_or_to_worker_lost(on_restart, value, log, tmp_path):
    settings = {"log": f"sqlite:///{tmp_path}/log.db"} if log == "file" else {}
    with served(grow, actors(2), on_restart=on_restart, settings=settings) as peer:
        job = peer.start("f", {"names": str(tmp_path / "a")})
        other = peer.start("f", {"names": str(tmp_path / "b")})
        pid = pid_in(tmp_path / "a1")
        pid_in(tmp_path / "b1")
        with peer.stream(job, "0-0") as events:
            events.until_text("<1 None>")
            os.kill(pid, signal.SIGKILL)
            ended = peer.ended(job)
            restarts = [event for event in events if '"reason":"restart"' in event.data]
        fold = Fold().take(peer.events(job, "0-0"))
        (tmp_path / "bgo").touch()
        assert peer.ended(other)["attempt"] == 1

    assert item(ended)["value"] == value
    assert fold.items == ended["state"]["items"]
    if on_restart == "fail":
        assert (ended["attempt"], item(ended)["error"]["code"]) == (1, "worker_lost")
    else:
        assert (ended["attempt"], ended["status"], len(restarts)) == (2, "succeeded", 1)


@slow
def test_items_that_have_ended_and_cancelled_items_do_not_run_again(tmp_path):
    def work(names: list[str], ctx: Context) -> list[str]:
        write_pid(f"{names[0]}{ctx.rows[0].attempt}")
        if "first" not in names[0] and ctx.rows[0].attempt == 1:
            wait_for("/never")
        return [f"{ctx.rows[0].attempt}"]

    with served(work, actors(3), max_batch_size=1) as peer:
        names = [str(tmp_path / name) for name in ("first", "second", "third")]
        job = peer.start("f", inputs=[{"names": name} for name in names])
        eventually(lambda: item(peer.job(job))["status"] == "succeeded", within=SECONDS)
        pid_in(tmp_path / "third1")
        peer.http.post(f"/v1/jobs/{job}/cancel", json={"items": [2]})
        os.kill(pid_in(tmp_path / "second1"), signal.SIGKILL)
        ended = peer.ended(job)

    assert [each["status"] for each in ended["state"]["items"]] == ["succeeded", "succeeded", "cancelled"]
    assert [each["value"] for each in ended["state"]["items"][:2]] == ["1", "2"]
    assert ended["attempt"] == 2


@slow
def test_new_attempt_of_a_job_does_not_interrupt_the_batches_of_other_actors(tmp_path):
    """Each batch has one row of each job. The first actor dies, and the function of the second one runs on."""

    def work(names: list[str], ctx: Context) -> list[str]:
        if max(each.attempt for each in ctx.rows.values()) == 1:
            write_pid(tmp_path / names[0])
            wait_for(f"{tmp_path}/go")
        return [str(ctx.rows[row].attempt) for row in range(len(names))]

    options = {"max_batch_size": 2, "batch_timeout": 5.0, "key": lambda given: given.names}
    with served(work, actors(2), **options) as peer:
        both = peer.start("f", inputs=[{"names": "a"}, {"names": "b"}])
        first, second = peer.start("f", {"names": "a"}), peer.start("f", {"names": "b"})
        pid_in(tmp_path / "b")
        os.kill(pid_in(tmp_path / "a"), signal.SIGKILL)
        assert item(peer.ended(first))["value"] == "2"
        time.sleep(1)  # longer than cancel_timeout
        (tmp_path / "go").touch()
        assert item(peer.ended(second))["value"] == "1"
        assert [each["value"] for each in peer.ended(both)["state"]["items"]] == ["2", "2"]


@slow
def test_input_that_kills_each_actor_fails_after_max_attempts():
    def die(words: list[str]) -> list[str]:
        os.kill(os.getpid(), signal.SIGKILL)
        return words

    with served(die, actors(1), settings={"max_attempts": 2}) as peer:
        ended = peer.run("f", {"words": "a"})

    assert ended["attempt"] == 2
    assert item(ended)["error"]["code"] == "worker_lost"
    assert "max_attempts" in item(ended)["error"]["detail"]


@slow
def test_idle_actor_that_ray_kills_is_replaced_before_the_next_call(tmp_path):
    import ray

    server = Server()
    server.endpoint(name="f", batch=True, workers=actors(1))(Upper)
    with serving(server) as peer:
        first = peer.value("f", {"texts": "a"}).split()[3]
        (actor,) = server.endpoints["f"].workers._ready
        ray.kill(actor)
        eventually(lambda: peer.metrics()['tidewire_pool_workers_lost{endpoint="f"}'] == 1, within=SECONDS)
        eventually(lambda: peer.metrics()['tidewire_pool_workers_ready{endpoint="f"}'] == 1, within=SECONDS)
        job = peer.run("f", {"texts": "a"})

    assert job["attempt"] == 1
    assert item(job)["value"].split()[3] != first


# ---- starting ---------------------------------------------------------------------------------------------------


def loading(path):
    """A class whose constructor fails, and takes long, until a file exists."""

    class Loading:
        def __init__(self):
            if Path(f"{path}/slow").exists():
                wait_for(f"{path}/ready")
            if not Path(f"{path}/ready").exists():
                raise OSError("no weights")

        def __call__(self, words: list[str]) -> list[str]:
            return words

    return Loading


@slow
def test_constructor_that_raises_is_logged_and_called_again(tmp_path, caplog):
    with served(loading(tmp_path), actors(1, replace_timeout=1)) as peer:
        eventually(lambda: "no weights" in caplog.text, within=SECONDS)
        error = item(peer.run("f", {"words": "a"}))["error"]
        (tmp_path / "ready").touch()
        eventually(lambda: peer.metrics()['tidewire_pool_workers_ready{endpoint="f"}'] == 1, within=SECONDS)
        assert peer.value("f", {"words": "b"}) == "b"

    assert error["code"] == "unavailable"
    assert "no weights" not in error["detail"]
    assert "OSError: no weights" in caplog.text
    assert "failed to start" in caplog.text
    assert "start_timeout" not in caplog.text


@slow
def test_actor_that_is_not_ready_within_start_timeout_is_started_again(tmp_path, caplog):
    (tmp_path / "slow").touch()
    with served(loading(tmp_path), actors(1, start_timeout=0.5, replace_timeout=2)) as peer:
        assert item(peer.run("f", {"words": "a"}))["error"]["code"] == "unavailable"
        assert "start_timeout" in caplog.text


@slow
def test_batch_fails_if_no_actor_becomes_idle_within_replace_timeout(tmp_path):
    (tmp_path / "slow").touch()
    with served(loading(tmp_path), actors(1, replace_timeout=0.2)) as peer:
        error = item(peer.run("f", {"words": "a"}))["error"]
        (tmp_path / "ready").touch()
        eventually(lambda: peer.metrics()['tidewire_pool_workers_ready{endpoint="f"}'] == 1, within=SECONDS)
        assert peer.value("f", {"words": "b"}) == "b"

    assert error["code"] == "unavailable"
    assert "replace_timeout" in error["detail"]


@slow
def test_actors_end_with_the_server(tmp_path):
    with served(Upper, actors(2)) as peer:
        pid = int(peer.value("f", {"texts": "a"}).split()[3])

    eventually(lambda: not Path(f"/proc/{pid}").exists(), within=SECONDS)


@pytest.mark.gpu
def test_actor_loads_its_model_on_its_gpu_and_is_replaced_there():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    with served(OnGPU, ray_workers(1, num_gpus=1), on_restart="rerun") as peer:
        (first,) = peer.run("f", inputs=[{"xs": 2.0}])["state"]["items"]
        os.kill(first["value"][2], signal.SIGKILL)
        (second,) = peer.run("f", inputs=[{"xs": 3.0}])["state"]["items"]
    assert (first["value"][:2], second["value"][:2]) == ([2.0, "0"], [3.0, "0"])
    assert first["value"][2] != second["value"][2]
