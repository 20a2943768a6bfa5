"""Leak checks: fixtures that fail a test after which threads, sockets or tasks are left.

Tasks are seen where the plugin runs the test on an event loop. A test that runs a loop of its own, or has one in the
thread of a blocking client, ends it: a task that was left behind there is cancelled with it, so such a test counts
its tasks itself, or looks at what the server sees.
"""

import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

PATIENCE = 10.0
"""Seconds for what is under way to end: a kernel's and a scheduler's, not a client's."""
A_MOMENT = 0.005
"""Seconds after which the garbage collector is asked, which takes longer than that."""
OTHERS = ("Trio thread ", "tqdm_monitor")
"""Names of threads that are not ours. Trio keeps idle threads for ten seconds, and the plugin that runs async tests waits
for events in them; what a client does in a thread has another name meanwhile. tqdm, with which transformers shows how a
checkpoint loads, keeps a thread for as long as the process lives."""
DESCRIPTORS = Path("/proc/self/fd")


def sockets() -> set[str]:
    """The sockets that this process holds, where the system tells."""
    found = set()
    for one in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        try:
            name = os.readlink(one)  # noqa: PTH115 - a Path would give what is no path
        except OSError:
            continue
        if name.startswith("socket:"):
            found.add(name)
    return found


def _more_than(
    threads: set[threading.Thread], open_before: set[str]
) -> tuple[set[threading.Thread], set[str]]:
    left = {one for one in threading.enumerate() if not one.name.startswith(OTHERS)}
    return left - threads, sockets() - open_before


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Fail a test after which more threads run, or more sockets are open, than before."""
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
    # The plugin makes a task of its own for each step of a test.
    return {task for task in anyio.get_running_tasks() if "_call_in_runner_task" not in repr(task.coro)}


@pytest.fixture
async def no_task_is_left(anyio_backend) -> AsyncIterator[None]:
    """Fail an async test after which more tasks run than before."""
    before = _tasks()
    yield
    with anyio.move_on_after(PATIENCE):
        while _tasks() - before:
            await anyio.sleep(0.01)
    left = _tasks() - before
    assert not left, f"left behind: tasks {sorted(task.name or '' for task in left)}"


def drop(held: list[object]) -> None:
    """Drop the last references to what a list holds, and to the cycles among it."""
    held.clear()
    gc.collect()
