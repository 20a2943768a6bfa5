"""The Ray actor of one worker (`Actor`), which runs in a separate process and calls the endpoint's function."""

import pickle
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue
from threading import Event, Semaphore
from typing import Any

from tidewire_server.batching.batch_call import by_row, check_generator
from tidewire_server.batching.generator_yields import checked_rows
from tidewire_server.endpoints import check_progress_notes_and_usage as check
from tidewire_server.endpoints.batch_options import as_called
from tidewire_server.endpoints.batch_signature import batch_shapes_of
from tidewire_server.endpoints.context import Context, RowContext
from tidewire_server.endpoints.invocation import exit_replacement
from tidewire_server.endpoints.signature_schemas import is_generator
from tidewire_server.endpoints.yieldables import UNSET, Append, Last
from tidewire_server.errors import InvalidValueError, ItemError


class _RowRun:
    """Replaces `ItemRun` in the actor, because the row's `ItemRun` exists only in the server process."""

    def __init__(self, row: tuple[int, int], cancelled: Any, attempt: int, previous: Any) -> None:
        self._row, self._cancelled = row, cancelled
        self.attempt, self.previous = attempt, previous

    @property
    def cancelled(self) -> bool:
        return self._row in self._cancelled


class _RowWriter:
    """Replaces `ItemWriter` in the actor. It sends the function's progress, notes and usage to the server process as events."""

    def __init__(self, put: Any, row: tuple[int, int], cancelled: Any, attempt: int, previous: Any) -> None:
        self._put, self._row = put, row
        self.run = _RowRun(row, cancelled, attempt, previous)

    def progress(self, current: Any, total: Any, *, unit: Any, phase: Any) -> None:
        check.progress(current, total, unit, phase, 0)
        self._put("progress", self._row[1], (current, total), {"unit": unit, "phase": phase})

    def note(self, text: str, level: str) -> None:
        check.note(text, level)
        self._put("note", self._row[1], (text, level), {})

    def usage(self, numbers: dict[str, Any]) -> None:
        self._put("usage", self._row[1], (), check.usage(numbers))


class Actor:
    """Holds one instance of the endpoint's class, or its function, and calls it for one batch at a time.

    All user code runs in one thread, because some libraries bind objects to the thread that has created them.
    """

    def __init__(self, name: str, function: bytes, path: list[str], max_in_flight: int) -> None:
        """Load the function or class, and create an instance of the class.

        Args:
            name: Name of the endpoint.
            function: The pickled function or class.
            path: Folders from which the server imports modules.
            max_in_flight: See `ray_workers`.
        """
        sys.path += [folder for folder in path if folder not in sys.path]
        loaded: Any = pickle.loads(function)  # noqa: S301 - from the server, whose code the actor runs
        self._called = as_called(loaded)
        self._shapes = batch_shapes_of(self._called, name)
        self._thread = ThreadPoolExecutor(1, "function")
        self._function = self._thread.submit(loaded).result() if isinstance(loaded, type) else loaded
        self._max_in_flight = max_in_flight
        self._cancelled: set[tuple[int, int]] = set()
        """Cancelled rows, each as (number of the call, number of the row)."""

    def live(self) -> None:
        """Never return. When the actor dies, this call fails, which notifies the server."""
        Event().wait()

    def cancel(self, call: int, rows: list[int]) -> None:
        """Set `ctx.rows[row].cancelled` for some rows. If all rows are cancelled, a generator is closed between two yields."""
        self._cancelled.update((call, row) for row in rows)

    def run(self, call: int, inputs: list[Any], rows: dict[int, tuple[int, Any]]) -> Iterator[list[Any]]:
        """Call the function, and yield its events. Each yielded list contains all events since the previous list.

        Args:
            call: Number of the call. Later calls have higher numbers.
            inputs: Attributes of each input. The input itself cannot be pickled if its class was created at run time.
            rows: Attempt and previous value of each row, without padding.
        """
        # Forget cancelled rows of earlier calls. A cancellation can also arrive before its call, or after the call has ended.
        self._cancelled -= {each for each in tuple(self._cancelled) if each[0] < call}
        events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        permits = Semaphore(self._max_in_flight)

        def put(*event: Any) -> None:
            permits.acquire()
            events.put(event)

        writers: dict[int, Any] = {
            number: _RowWriter(put, (call, number), self._cancelled, *row) for number, row in rows.items()
        }
        context = Context(rows={number: RowContext(writer) for number, writer in writers.items()})
        self._thread.submit(self._call, put, inputs, context)
        last = None
        while last not in {"returned", "raised"}:
            batch = [events.get()]
            while not events.empty():
                batch.append(events.get())
            last = batch[-1][0]
            yield batch  # pauses until the server has taken the batch
            permits.release(len(batch))

    def _call(self, put: Callable[..., None], inputs: list[Any], context: Context) -> None:
        try:
            for step in self._steps(inputs, context):
                put("yielded", step)
            put("returned")
        except BaseException as error:  # noqa: BLE001 - the server raises it again
            put("raised", _portable(error))

    def _steps(self, inputs: list[Any], context: Context) -> Iterator[list[Any] | dict[int, Any]]:
        """Yield each mapping that a generator yields, or the list of values that another function returns."""
        kind = self._shapes.input.made
        models = [kind.__new__(kind) for _ in inputs]
        for model, state in zip(models, inputs, strict=True):
            model.__setstate__(state)
        returned = self._function(**self._shapes.input.batch_arguments(models, context))
        if not is_generator(self._called):
            yield [self._dumped(value) for value in by_row(returned, len(inputs), 0, self._shapes.outputs)]
            return
        check_generator(isinstance(returned, Generator), returned)
        with closing(returned):
            for yielded in returned:
                yield {row: self._dumped(value) for row, value in checked_rows(yielded).items()}
                if context.cancelled:
                    return

    def _dumped(self, value: Any) -> Any:
        """Convert the value of a row to JSON. The server then needs neither the value's class nor the GPU of its tensors."""
        to_json = self._shapes.value.to_json
        try:
            match value:
                case BaseException():
                    return _portable(value)
                case Append():
                    return Append(value.x if isinstance(value.x, str) else to_json(value.x), value.at)
                case Last():
                    return value if value.value is UNSET else Last(self._dumped(value.value))
            return to_json(value)
        except Exception as error:  # noqa: BLE001 - fails only this row
            return _portable(error)


def _portable(error: BaseException) -> Exception:
    """Return an exception that the server can unpickle, even if it cannot import the class. The traceback becomes a note."""
    portable: Exception = RuntimeError(traceback.format_exception_only(error)[-1].strip())
    match error:
        case ItemError():
            portable = ItemError(error.message, code=error.code, **error.members)
        case InvalidValueError():
            portable = InvalidValueError(str(error))
        case BaseException() if not isinstance(error, Exception):
            portable = exit_replacement(error)
    portable.add_note("".join(traceback.format_exception(error)).rstrip())
    return portable
