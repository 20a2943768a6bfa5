"""The Ray actor of one worker (`Actor`), which runs in a process of its own and calls the endpoint's function."""

import asyncio
import inspect
import pickle
import sys
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Event, Semaphore
from typing import Any, NamedTuple

from tidewire_server.batching.batch_call import by_row, check_generator
from tidewire_server.batching.ray_workers.wire import DumpedError, dump_error, dump_result, load_inputs
from tidewire_server.endpoints import check_progress_notes_and_usage as check
from tidewire_server.endpoints.batch_options import as_called
from tidewire_server.endpoints.batch_signature import batch_shapes_of
from tidewire_server.endpoints.context import Context, RowContext
from tidewire_server.endpoints.signature_schemas import is_generator


class RowArrival(NamedTuple):
    """A row of a call, as the server sends it to the actor."""

    number: int
    attempt: int
    previous: Any
    cancelled: bool


class _RowWriter:
    """Stands in for the `ItemWriter` of a row in its `Context`: the reports of the function become events."""

    def __init__(self, call: "_Call", row: RowArrival) -> None:
        self._call = call
        self._number = row.number
        self.attempt, self.previous, self.cancelled = row.attempt, row.previous, row.cancelled

    def progress(self, current: Any, total: Any, *, unit: Any, phase: Any) -> None:
        check.progress(current, total, unit, phase, 0)
        self._call.put("progress", self._number, (current, total), {"unit": unit, "phase": phase})

    def note(self, text: str, level: str) -> None:
        check.note(text, level)
        self._call.put("note", self._number, (text, level), {})

    def usage(self, numbers: dict[str, Any]) -> None:
        self._call.put("usage", self._number, (), check.usage(numbers))


class _Call:
    """One call of the function, which runs in one thread while another one passes its events to Ray."""

    def __init__(self, max_in_flight: int) -> None:
        self.writers: dict[int, _RowWriter] = {}
        self.contexts: dict[int, Context] = {}
        self.stopped = False
        self.task: asyncio.Task[Any] | None = None
        """Task of an asynchronous function."""
        self.sent: SimpleQueue[dict[int, Any]] = SimpleQueue()
        """Late joiners for each yield."""
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._permits = Semaphore(max_in_flight)

    def add(self, rows: list[RowArrival]) -> None:
        for row in rows:
            self.writers[row.number] = writer = _RowWriter(self, row)
            self.contexts[row.number] = RowContext(writer)  # type: ignore[arg-type]

    def put(self, *event: Any) -> None:
        """Add an event. Wait while the server has not taken the earlier ones."""
        self._permits.acquire()
        self._events.put(event)

    def end(self, *event: Any) -> None:
        self._events.put(event)

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the events, as many at once as there are. The next batch is requested when the server has taken the last."""
        last = None
        while last not in {"returned", "raised"}:
            events = [self._events.get()]
            try:
                while True:
                    events.append(self._events.get_nowait())
            except Empty:
                last = events[-1][0]
            yield events
            self._permits.release(len(events))


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
        self._max_in_flight = max_in_flight
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1, "function")
        self._call = _Call(max_in_flight)
        self._failure: DumpedError | None = None
        sys.path += [folder for folder in path if folder not in sys.path]
        try:
            loaded: Any = pickle.loads(function)  # noqa: S301 - from the server, whose code the actor runs
            self._called = as_called(loaded)
            self._shapes = batch_shapes_of(self._called, name)
            self._function = self._thread.submit(loaded).result() if isinstance(loaded, type) else loaded
        except BaseException as error:  # noqa: BLE001 - the server logs it and starts another actor
            self._failure = dump_error(error)

    def ready(self) -> DumpedError | None:
        """Return the error of the constructor, or None if the actor can run calls."""
        return self._failure

    def live(self) -> None:
        """Never return. The server sees that the actor has died when this call fails."""
        Event().wait()

    # ---- one call ----------------------------------------------------------------------------------------------

    def run(
        self, arguments: Mapping[str, list[Any]], rows: list[RowArrival], size: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Call the function, and yield its events. The last event is `returned` or `raised`.

        Args:
            arguments: Dumped inputs for each parameter of the function.
            rows: Rows of the call, without padding.
            size: Number of inputs, with padding.
        """
        self._call = call = _Call(self._max_in_flight)
        call.add(rows)
        loaded: dict[str, Any] = {name: load_inputs(each, self._shapes) for name, each in arguments.items()}
        if (context := self._shapes.input.context) is not None:
            loaded[context] = Context(rows=call.contexts)
        self._thread.submit(self._work, call, loaded, size)
        yield from call.batches()

    def stop(self) -> None:
        """Ask the function to end: cancel its task, or close its generator between two yields. Set `ctx.cancelled`."""
        self._call.stopped = True
        for writer in tuple(self._call.writers.values()):
            writer.cancelled = True
        self._loop.call_soon_threadsafe(lambda: self._call.task and self._call.task.cancel())
        self._call.sent.put({})

    def cancel_row(self, number: int) -> None:
        """Set `ctx.rows[number].cancelled`."""
        if (writer := self._call.writers.get(number)) is not None:
            writer.cancelled = True

    def join(self, inputs: Mapping[int, Any], rows: list[RowArrival]) -> None:
        """Pass late joiners to the generator, which waits for them."""
        self._call.add(rows)
        values = load_inputs(list(inputs.values()), self._shapes)
        self._call.sent.put(dict(zip(inputs, values, strict=True)))

    def _work(self, call: _Call, arguments: dict[str, Any], size: int) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            result: list[Any] = []
            if is_generator(self._called):
                self._drive(call, arguments)
            else:
                returned = self._wait(call, self._function(**arguments))
                values = by_row(returned, size, 0, self._shapes.outputs)
                result = [dump_result(value, self._shapes.value.to_json) for value in values]
            call.end("returned", result)
        except BaseException as error:  # noqa: BLE001 - the server raises it again
            call.end("raised", dump_error(error))

    def _drive(self, call: _Call, arguments: dict[str, Any]) -> None:
        generator = self._wait(call, self._function(**arguments))
        check_generator(isinstance(generator, Generator | AsyncGenerator), generator)
        is_async = isinstance(generator, AsyncGenerator)
        send, close = (generator.asend, generator.aclose) if is_async else (generator.send, generator.close)
        to_json = self._shapes.value.to_json
        joined: dict[int, Any] | None = None
        try:
            while not call.stopped:
                try:
                    yielded = self._wait(call, send(joined))
                except (StopIteration, StopAsyncIteration):
                    return
                if isinstance(yielded, Mapping):
                    call.put("rows", {row: dump_result(value, to_json) for row, value in yielded.items()})
                else:  # nothing, or an object that the server rejects
                    call.put("yielded", yielded)
                if self._shapes.takes_late_joiners:
                    joined = call.sent.get()
        finally:
            self._wait(call, close())

    def _wait(self, call: _Call, result: Any) -> Any:
        """Return a result, or await it on the actor's event loop if it is awaitable."""
        if not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            return await result

        call.task = self._loop.create_task(wait())
        try:
            return self._loop.run_until_complete(call.task)
        finally:
            call.task = None
