"""Threads that tokenize and compile: a share for each caller, and none for the other kind of work."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from tidewire_server.generation.engine_interface import EngineFullError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine.fair_thread_pool import CallerThreads
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint
from tidewire_server.generation.torch_engine.request_reader import RequestReader
from tidewire_server.principals import CALLER


class Calls:
    """Functions that record their name and wait until the gate is open."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = threading.Event()
        self._changed = threading.Condition()

    def wait(self, name: str) -> str:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        assert self.open.wait(30)
        return name

    async def until(self, count: int) -> None:
        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: len(self.begun) >= count, timeout=30)

        assert await asyncio.to_thread(wait)


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    yield calls
    calls.open.set()


def start(
    threads: CallerThreads, caller: str, function: Callable[[str], str], name: str
) -> "asyncio.Task[str]":
    """Start a call of a caller, and let it take its place in the queue."""

    async def call() -> str:
        CALLER.set(caller)
        return await threads.run(function, name)

    return asyncio.get_running_loop().create_task(call())


async def test_a_caller_uses_half_of_the_threads_and_the_others_take_turns(calls: Calls):
    threads = CallerThreads("test", 4, max_waiting=10)
    hers = [start(threads, "ann", calls.wait, f"ann {i}") for i in range(6)]
    await calls.until(2)
    his = [start(threads, "bob", calls.wait, f"bob {i}") for i in range(2)]
    await calls.until(4)
    assert sorted(calls.begun) == ["ann 0", "ann 1", "bob 0", "bob 1"]
    calls.open.set()
    assert await asyncio.gather(*hers, *his) == [*(f"ann {i}" for i in range(6)), "bob 0", "bob 1"]


async def test_callers_take_turns_at_a_single_thread(calls: Calls):
    threads = CallerThreads("test", 1, max_waiting=10)
    tasks = [start(threads, "ann", calls.wait, f"ann {i}") for i in range(3)]
    await calls.until(1)
    tasks += [start(threads, name, calls.wait, f"{name} 0") for name in ("bob", "eve")]
    await asyncio.sleep(0)
    calls.open.set()
    await asyncio.gather(*tasks)
    assert calls.begun == ["ann 0", "ann 1", "bob 0", "eve 0", "ann 2"]


async def test_calls_of_a_caller_above_the_limit_are_refused(calls: Calls):
    threads = CallerThreads("test", 1, max_waiting=2)
    tasks = [start(threads, "ann", calls.wait, f"ann {i}") for i in range(3)]
    await calls.until(1)
    with pytest.raises(EngineFullError, match="2 requests of this caller wait for their test"):
        await start(threads, "ann", calls.wait, "ann 3")
    tasks.append(start(threads, "bob", calls.wait, "bob 0"))
    await asyncio.sleep(0)
    calls.open.set()
    await asyncio.gather(*tasks)


async def test_a_waiting_call_that_is_cancelled_is_not_made(calls: Calls):
    threads = CallerThreads("test", 1, max_waiting=2)
    first, second = (start(threads, "ann", calls.wait, f"ann {i}") for i in range(2))
    await calls.until(1)
    second.cancel()
    third = start(threads, "ann", calls.wait, "ann 2")
    await asyncio.sleep(0)
    calls.open.set()
    assert [await first, await third] == ["ann 0", "ann 2"]
    assert calls.begun == ["ann 0", "ann 2"]


async def test_an_exception_reaches_the_caller_and_frees_the_thread():
    threads = CallerThreads("test", 1, max_waiting=2)
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(str, 5) == "5"


async def test_a_thread_has_the_stack_that_a_recursion_needs():
    """The default of some platforms is half a megabyte for a thread."""

    def recurse(depth: int) -> int:
        # A call through C takes about a kilobyte of the stack.
        return 0 if depth == 0 else 1 + max(map(recurse, [depth - 1]))

    threads = CallerThreads("test", 1, max_waiting=2, stack_bytes=64 << 20)
    assert await threads.run(recurse, 400) == 400
    assert threading.stack_size() == 0


async def test_schemas_that_are_compiled_do_not_delay_prompts(random_checkpoint: Checkpoint, calls: Calls):
    class Reader(RequestReader):
        def compile_schema(self, schema: object) -> None:
            calls.wait(str(schema))

    reader = Reader(random_checkpoint, context=128)
    compiling = [asyncio.create_task(reader.check(Generate(prompt=str(i), json_schema={}))) for i in range(8)]
    await calls.until(1)
    long = Generate(prompt="d" * 110, max_tokens=16)
    assert not reader.surely_fits(long)
    await reader.check(long)
    assert len(calls.begun) == 1
    calls.open.set()
    await asyncio.gather(*compiling)
