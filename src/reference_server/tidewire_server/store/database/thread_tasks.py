"""Tasks that the event loop passes to a thread of a store.

The event loop passes all tasks of one iteration together, and the thread takes all that wait. Many jobs therefore share one
transaction. The thread also wakes up less often and competes less for the interpreter lock.
"""

import asyncio
import logging
import queue
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from tidewire_server.store.store_errors import HeadMovedError, StoreError

_log = logging.getLogger(__name__)

MAX_TOGETHER: Final = 256
"""Number of tasks in one group above which no further tasks are added."""

_UNFINISHED: Final = object()


class Task:
    """Work of a thread, with the future that receives its result."""

    __slots__ = ("created", "failed", "future", "large", "loop", "outcome", "then", "work")

    def __init__(
        self,
        work: Any,
        then: Callable[[Any], None] | None,
        failed: Callable[[], None] | None = None,
        *,
        large: bool = False,
    ) -> None:
        """Create a task. This must happen on the event loop.

        Args:
            work: Work in the form that the thread expects.
            then: Function that is called on the event loop with the result, even if the caller was cancelled.
            failed: Function that is called on the event loop if the task has failed, even if the caller was cancelled.
            large: Whether the work writes many bytes.
        """
        self.large = large
        self.work = work
        self.then = then
        self.failed = failed
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.outcome: Any = _UNFINISHED
        """Result of the work, a `Failure`, or `_UNFINISHED`."""
        self.created = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether the task has an outcome."""
        return self.outcome is not _UNFINISHED

    def fail(self, error: Exception) -> None:
        """Set the outcome of the task to an error."""
        self.outcome = Failure(error)


class Failure:
    """Outcome of a task that has failed. It contains the exception to raise."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def own_error(self) -> Exception:
        """Return an exception for one caller. The traceback of a shared exception would grow with each raise."""
        error = self.error
        if isinstance(error, StoreError):
            return error.copy()
        return HeadMovedError(*error.args) if isinstance(error, HeadMovedError) else error


class TaskQueue:
    """Tasks that wait for one thread."""

    def __init__(self) -> None:
        self._pending: list[Task] = []
        """Tasks that the event loop passes to the thread at the end of its current iteration."""
        self._passed: queue.SimpleQueue[list[Task] | None] = queue.SimpleQueue()
        self.unsettled: set[Task] = set()
        """Tasks whose callers wait for a result."""

    # ---- on the event loop ---------------------------------------------------------------------------------------

    def add(self, task: Task) -> asyncio.Future[Any]:
        """Add a task, and return the future of its result."""
        if not self._pending or self._pending[-1].loop is not task.loop:
            task.loop.call_soon(self.pass_tasks)
        self._pending.append(task)
        self.unsettled.add(task)
        return task.future

    def pass_tasks(self) -> None:
        """Pass the tasks of this iteration of the event loop to the thread."""
        tasks, self._pending = self._pending, []
        if tasks:
            self._passed.put(tasks)

    def end(self) -> None:
        """Let the thread end after the tasks that wait now."""
        self._passed.put(None)

    def settle(self, tasks: Iterable[Task]) -> None:
        """Deliver the outcomes of tasks to their callers."""
        for task in tasks:
            self.unsettled.discard(task)
            outcome, future = task.outcome, task.future
            if isinstance(outcome, Failure):
                if task.failed is not None:
                    task.failed()
                if not future.done():
                    future.set_exception(outcome.own_error())
                continue
            try:
                if task.then is not None:
                    task.then(outcome)
            except Exception as error:  # noqa: BLE001 - a bug, but the other tasks of the group must be delivered
                _log.exception("internal server error after a transaction of the store")
                if not future.done():
                    future.set_exception(error)
            if not future.done():
                future.set_result(outcome)

    # ---- in the thread -------------------------------------------------------------------------------------------

    def next(self, timeout: float | None = None) -> tuple[list[Task], bool]:
        """Wait for tasks. Return the next group of tasks, and whether the thread must end after this group.

        Args:
            timeout: Time to wait, in seconds. After that, the group is empty.
        """
        try:
            tasks = self._passed.get(timeout=timeout)
        except queue.Empty:
            return [], False
        if tasks is None:
            return [], True
        try:
            while len(tasks) < MAX_TOGETHER:
                more = self._passed.get_nowait()
                if more is None:
                    return tasks, True
                tasks += more
        except queue.Empty:
            pass
        return tasks, False

    def deliver(self, tasks: list[Task]) -> None:
        """Let the event loop deliver the outcomes of tasks. If the event loop is closed, nothing waits for them."""
        if tasks:
            try:
                tasks[0].loop.call_soon_threadsafe(self.settle, tasks)
            except RuntimeError:
                return
