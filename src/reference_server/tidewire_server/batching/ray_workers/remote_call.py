"""One call of an endpoint's function on a Ray actor (`RemoteCall`), as the server sees it."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from tidewire_server.batching.ray_workers.cluster import CLUSTER
from tidewire_server.endpoints.context import Context
from tidewire_server.endpoints.yieldables import Last
from tidewire_server.errors import WorkerLostError

_CALLS: Final = itertools.count()


class RemoteCall:
    """A call on one actor. `replace` kills the actor, if a cancelled row has not ended after `cancel_timeout`."""

    def __init__(
        self, actor: Any, context: Context, cancel_timeout: float, replace: Callable[[], None]
    ) -> None:
        self.ended = False
        """Whether the function has ended, so that the actor can run another call."""
        self._number = next(_CALLS)
        self._actor = actor
        self._contexts = context.rows
        self._cancel_timeout = cancel_timeout
        self._replace = replace
        self._ended_rows: set[int] = set()
        """Rows that a generator has ended with `Last` or an exception."""
        self._events: Any = None
        """Events that have not arrived. None if the call has not started, or the actor is lost."""

    async def steps(self, inputs: Sequence[BaseModel]) -> AsyncGenerator[Any, None]:
        """Start the call. Yield what the function yields or returns, and apply its reports to the rows in between.

        Raises:
            WorkerLostError: The actor has died, or was replaced because a cancelled row did not end.
            Exception: The function raised this exception.
        """
        writers: dict[int, Any] = {number: context._writer for number, context in self._contexts.items()}
        rows = {number: (writer.attempt, writer.previous) for number, writer in writers.items()}
        # Ray pauses the actor's generator until the server has taken the last batch of events.
        run = self._actor.run.options(num_returns="streaming", _generator_backpressure_num_objects=1)
        self._events = run.remote(self._number, [each.__getstate__() for each in inputs], rows)
        for number, writer in writers.items():
            writer.on_cancel = partial(self._cancel_row, number, writer)
            if writer.cancelled:
                writer.on_cancel()
        try:
            async for ref in self._events:
                for event in await ref:
                    match event:
                        case ("yielded", step):
                            self._ended_rows.update(_ends(step))
                            yield step
                        case ("returned",):
                            self.ended = True
                        case ("raised", error):
                            self.ended = True
                            raise error
                        case (report, row, args, named):
                            getattr(self._contexts[row], report)(*args, **named)
        except CLUSTER.ray.exceptions.RayError as error:
            self._events = None
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise WorkerLostError(f"the Ray actor is lost: {reason}") from None

    async def stop(self) -> None:
        """If the function still runs, cancel all rows, and drop its events until it has ended, or its actor is replaced."""
        if not self.ended and self._events is not None:
            self._notify(list(self._contexts))
            asyncio.get_running_loop().call_later(self._cancel_timeout, self._overdue, None)
            with contextlib.suppress(CLUSTER.ray.exceptions.RayError):
                async for ref in self._events:
                    await ref
                self.ended = True

    def _cancel_row(self, number: int, writer: Any) -> None:
        self._notify([number])
        # If a job begins a new attempt, its rows must not interrupt those of other jobs. Otherwise the loss of one actor
        # could cause the replacement of all.
        if not writer.pending.closed:
            asyncio.get_running_loop().call_later(self._cancel_timeout, self._overdue, number)

    def _overdue(self, row: int | None) -> None:
        if not self.ended and row not in self._ended_rows:
            self._replace()

    def _notify(self, rows: list[int]) -> None:
        self._actor.cancel.options(concurrency_group="control").remote(self._number, rows)


def _ends(step: Any) -> list[int]:
    """Return the rows that end with a yielded mapping. Functions that return a list yield this list."""
    if not isinstance(step, dict):
        return []
    return [row for row, value in step.items() if isinstance(value, Last | Exception)]
