"""Daemon threads that call the functions of endpoints. Daemon threads do not keep the process from exiting.

After a call, a thread waits for a short time for the next call. Otherwise each call of a function would start a thread,
which takes longer than everything else that the server does for a short call (bench/arrays.py).
"""

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

IDLE: Final = 0.1
"""Time that a thread waits for its next call before it ends, in seconds."""

_Call = tuple[Callable[[], Any], Callable[[Any], None], str]

_idle: Final[list["_Worker"]] = []
"""Idle threads. The thread that became idle last is at the end of the list, and gets the next call."""

# Clear the list in a forked process, because its threads do not exist there. A call that is passed to one would never end.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


class _Worker:
    def __init__(self, call: _Call) -> None:
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        self.calls.put(call)
        threading.Thread(target=self._work, name=call[2], daemon=True).start()

    def _work(self) -> None:
        thread = threading.current_thread()
        while True:
            try:
                function, report, thread.name = self.calls.get(timeout=IDLE)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # `start_call` has just removed this worker, and is passing a call to it
                    continue
                return
            result = function()
            # Become idle before calling `report`, because `report` often starts the next call.
            _idle.append(self)
            report(result)
            # Release the objects of the last call while the thread waits.
            del function, report, result


def start_call(function: Callable[[], Any], report: Callable[[Any], None], name: str) -> None:
    """Call a function in an idle thread, or in a new thread if no thread is idle.

    The caller must limit the number of calls that run at the same time.

    Args:
        function: The function to call. It must not raise an exception.
        report: Function that is called in the same thread with the result. It must return quickly, and must not raise an
            exception.
        name: Name of the thread during the call.
    """
    call = (function, report, name)
    try:
        worker = _idle.pop()
    except IndexError:
        _Worker(call)
    else:
        worker.calls.put(call)
