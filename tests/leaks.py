"""What a test leaves behind fails it: threads and sockets, those of event loops and their tasks among them.

For tests that run their own event loop, or none: the one that the plugin keeps for async tests has sockets, too.
"""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE = 10.0
"""Seconds for what is under way to end: a kernel's and a scheduler's, not a client's."""
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
    return {*threading.enumerate()} - threads, sockets() - open_before


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Fail a test after which more threads run, or more sockets are open, than before."""
    threads_before, sockets_before = {*threading.enumerate()}, sockets()
    yield
    threads, left = _more_than(threads_before, sockets_before)
    for _ in range(round(PATIENCE / 0.05)):
        if not threads and not left:
            return
        gc.collect()
        threading.Event().wait(0.05)
        threads, left = _more_than(threads_before, sockets_before)
    pytest.fail(f"left behind: threads {[thread.name for thread in threads]}, sockets {sorted(left)}")
