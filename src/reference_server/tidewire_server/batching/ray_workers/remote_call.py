"""One call of an endpoint's function on a Ray actor (`RemoteCall`), as the server sees it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from tidewire_server.batching.ray_workers.actor import RowArrival
from tidewire_server.batching.ray_workers.wire import dump_inputs, load_error, load_result
from tidewire_server.endpoints.context import Context
from tidewire_server.errors import WorkerLostError


class RemoteCall:
    """A call on one actor. All methods must be called on the event loop."""

    def __init__(self, actor: Any, arguments: Mapping[str, Any]) -> None:
        self.ended = False
        """Whether the function has ended, so that the actor can run another call."""
        self.lost = False
        """Whether the actor has died."""
        self.result: list[Any] | None = None
        """Results of the rows, if the function is not a generator."""
        contexts = [each for each in arguments.values() if isinstance(each, Context)]
        self._rows: Mapping[int, Context] = contexts[0].rows if contexts else {}
        self._inputs = {name: each for name, each in arguments.items() if not isinstance(each, Context)}
        self._actor = actor
        self._events: Any = None

    async def yields(self) -> AsyncGenerator[Any, None]:
        """Start the call. Yield what the function yields, and apply its reports to the rows in between.

        Raises:
            WorkerLostError: The actor has died.
            Exception: The function raised this exception.
        """
        from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415 - only if it is used

        inputs = {name: dump_inputs(values) for name, values in self._inputs.items()}
        size = max(map(len, inputs.values()))
        # Ray pauses the actor's generator until the server has taken the last batch of events.
        run = self._actor.run.options(num_returns="streaming", _generator_backpressure_num_objects=1)
        try:
            self._events = run.remote(inputs, self._arrivals(self._rows), size)
            async for ref in self._events:
                for kind, *event in await ref:
                    if kind == "yielded":
                        yield event[0]
                    elif kind == "rows":
                        yield {row: load_result(value) for row, value in event[0].items()}
                    elif kind == "returned":
                        self.ended = True
                        self.result = [load_result(value) for value in event[0]]
                    elif kind == "raised":
                        self.ended = True
                        raise load_error(event[0])
                    else:
                        row, args, named = event
                        getattr(self._rows[row], kind)(*args, **named)
        except RayTaskError:
            self.ended = True
            raise
        except RayError as error:
            self.lost = True
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise WorkerLostError(f"the Ray actor is lost: {reason}") from None
        finally:
            for row in self._rows.values():
                if row._writer is not None:
                    row._writer.on_cancel = None

    def _arrivals(self, rows: Mapping[int, Context]) -> list[RowArrival]:
        """Describe rows for the actor, which from now on is notified when they are cancelled."""
        arrivals = []
        for number, row in rows.items():
            if (writer := row._writer) is not None:
                writer.on_cancel = partial(self._control, "cancel_row", number)
                arrivals.append(RowArrival(number, writer.attempt, writer.previous, writer.cancelled))
        return arrivals

    def join(self, inputs: Mapping[int, Any]) -> None:
        """Send late joiners to the function, which waits for them after each yield."""
        rows = {number: self._rows[number] for number in inputs if number in self._rows}
        dumped = dict(zip(inputs, dump_inputs(list(inputs.values())), strict=True))
        self._control("join", dumped, self._arrivals(rows))

    async def stop(self, timeout: float) -> bool:
        """Ask the function to end, and drop its remaining events. Return whether it has ended within the time-out."""
        from ray.exceptions import RayError  # noqa: PLC0415 - only if it is used

        if self._events is not None:
            self._control("stop")
            try:
                async with asyncio.timeout(timeout):
                    async for ref in self._events:
                        await ref
            except (TimeoutError, RayError):
                return False
        self.ended = True
        return True

    def _control(self, method: str, *args: Any) -> None:
        getattr(self._actor, method).options(concurrency_group="control").remote(*args)
