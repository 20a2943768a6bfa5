"""Leak checks: fixtures that fail a test that leaves threads, sockets or tasks behind.

The task check works where the anyio plugin runs the test on an event loop. A test with its own loop, or with the loop
of a blocking client, cancels remaining tasks when that loop ends; such a test must count tasks itself, or check the
state of the server.
"""

import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from proof.forked_process import KEPT_SOCKETS

PATIENCE = 10.0
"""Seconds to wait for threads, sockets and tasks to end. Only the kernel and the scheduler need this time."""
A_MOMENT = 0.005
"""Seconds after which the garbage collector runs. A collection takes longer than this wait."""
OTHERS = ("Trio thread ", "tqdm_monitor")
"""Prefixes of the names of unrelated threads.

Trio keeps idle threads for ten seconds, and the anyio plugin waits in such threads. Threads of the client have other
names. tqdm, which transformers uses for progress bars, keeps a thread until the process ends.
"""
DESCRIPTORS = Path("/proc/self/fd")


def sockets() -> set[str]:
    """Return the open sockets of this process without those to fork servers; empty on systems without /proc."""
    found = set()
    for one in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        try:
            name = os.readlink(one)  # noqa: PTH115 - the target of the link is not a path
        except OSError:
            continue
        if name.startswith("socket:"):
            found.add(name)
    return found - KEPT_SOCKETS


def _more_than(
    threads: set[threading.Thread], open_before: set[str]
) -> tuple[set[threading.Thread], set[str]]:
    left = {one for one in threading.enumerate() if not one.name.startswith(OTHERS)}
    return left - threads, sockets() - open_before


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Fail a test that leaves more threads or open sockets than before."""
    threads_before, sockets_before = {*threading.enumerate()}, sockets()
    yield
    wait, until = 0.001, time.monotonic() + PATIENCE
    while any(left := _more_than(threads_before, sockets_before)) and time.monotonic() < until:
        threading.Event().wait(wait)
        if wait > A_MOMENT:
            gc.collect()
        wait = min(2 * wait, 10 * A_MOMENT)
    threads, left_open = left
    if threads or left_open:
        names = [thread.name for thread in threads]
        pytest.fail(f"left behind: threads {names}, sockets {sorted(left_open)}")


def _tasks() -> set[anyio.TaskInfo]:
    # The anyio plugin runs each step of a test in its own task.
    return {task for task in anyio.get_running_tasks() if "_call_in_runner_task" not in repr(task.coro)}


@pytest.fixture
async def no_task_is_left(anyio_backend) -> AsyncIterator[None]:
    """Fail an async test that leaves more tasks than before."""
    before = _tasks()
    yield
    with anyio.move_on_after(PATIENCE):
        while _tasks() - before:
            await anyio.sleep(0.01)
    left = _tasks() - before
    assert not left, f"left behind: tasks {sorted(task.name or '' for task in left)}"


def drop(held: list[object]) -> None:
    """Drop the last references to the elements of a list, and collect reference cycles."""
    held.clear()
    gc.collect()
