"""Pool of the Ray actors of one endpoint (`ActorPool`). It starts and replaces actors, and runs each call on an idle actor.

actor    | event                                                 | then
---------+-------------------------------------------------------+---------------------------------------------------
starting | it has loaded the function                            | it is idle
starting | the constructor raises, or `start_timeout` is over    | another one starts, after `_RETRY_DELAY`
idle     | a call takes it                                       | it is busy
idle     | it dies                                               | another one starts
busy     | the call ends                                         | it is idle
busy     | it dies                                               | another one starts, the call raises WorkerLostError
busy     | `cancel_timeout` is over since the cancel of a row    | it is killed, then as above
         |   that still runs                                     |
"""

import asyncio
import contextlib
import itertools
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from tidewire_server.batching.ray_workers.actor import Actor
from tidewire_server.batching.ray_workers.cluster import CLUSTER
from tidewire_server.endpoints.batch_options import SlotCounts
from tidewire_server.endpoints.context import Context
from tidewire_server.endpoints.yieldables import Last
from tidewire_server.errors import ItemError, WorkerLostError

_RETRY_DELAY: Final = 3.0
"""Seconds to wait before the next attempt, after an actor could not be started."""

_CALLS: Final = itertools.count()

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayWorkers:
    """Ray actors for one endpoint. `ray_workers` documents the fields."""

    count: int
    address: str | None
    max_in_flight: int
    start_timeout: float
    replace_timeout: float
    actor_options: dict[str, Any]

    def pool(self, name: str, function: Callable[..., Any]) -> "ActorPool":
        """See `Workers.pool`."""
        return ActorPool(self, name, function)


class ActorPool:
    """See `WorkerPool`."""

    def __init__(self, options: RayWorkers, name: str, function: Callable[..., Any]) -> None:
        self._options = options
        self._name = name
        self._function = function
        self._cancel_timeout = 0.0
        self._slots: list[asyncio.Task[None]] = []
        """One task for each actor. The task starts another actor whenever its actor dies."""
        self._ready: set[Any] = set()
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        """Actors without a call. Some of them may have died, and are no longer in `_ready`."""
        self._busy = 0
        self._lost = 0

    async def call(self, inputs: Sequence[BaseModel], context: Context) -> Any:
        (values,) = [step async for step in self.stream(inputs, context)]
        return values

    async def stream(self, inputs: Sequence[BaseModel], context: Context) -> AsyncGenerator[Any, None]:
        actor, loop = await self._take(), asyncio.get_running_loop()
        self._busy += 1
        number, has_ended, events = next(_CALLS), False, None
        writers: dict[int, Any] = {row: each._writer for row, each in context.rows.items()}
        ended_rows: set[int] = set()

        def notify(rows: list[int]) -> None:
            actor.cancel.options(concurrency_group="control").remote(number, rows)

        def replace_unless_ended(row: int | None) -> None:
            if not has_ended and row not in ended_rows and actor in self._ready:
                message = (
                    "endpoint %r: the function did not end within cancel_timeout, so its actor is replaced"
                )
                _log.warning(message, self._name)
                CLUSTER.do(_kill, actor)

        def cancel_row(row: int) -> None:
            notify([row])
            # Ignore the row if its job has begun a new attempt. Otherwise this actor would be replaced too, which interrupts
            # other jobs, and the loss of one actor could cause the replacement of all actors.
            if not writers[row].pending.closed:
                loop.call_later(self._cancel_timeout, replace_unless_ended, row)

        try:
            # Ray pauses the actor's generator until the server has taken the last batch of events.
            run = actor.run.options(num_returns="streaming", _generator_backpressure_num_objects=1)
            rows = {row: (writer.run.attempt, writer.run.previous) for row, writer in writers.items()}
            events = run.remote(number, [each.__getstate__() for each in inputs], rows)
            for row, writer in writers.items():
                writer.run.on_cancel = partial(cancel_row, row)
                if writer.run.cancelled:
                    cancel_row(row)
            async for ref in events:
                for event in await ref:
                    match event:
                        case ("yielded", step):
                            ended_rows.update(_ends(step))
                            yield step
                        case ("returned",):
                            has_ended = True
                        case ("raised", error):
                            has_ended = True
                            raise error
                        case (report, row, args, named):
                            getattr(context.rows[row], report)(*args, **named)
        except CLUSTER.ray.exceptions.RayError as error:
            events = None
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise WorkerLostError(f"the Ray actor is lost: {reason}") from None
        finally:
            try:
                if not has_ended and events is not None:
                    # Drop all later events of the function until it has ended, or until its actor is replaced.
                    notify(list(writers))
                    loop.call_later(self._cancel_timeout, replace_unless_ended, None)
                    with contextlib.suppress(CLUSTER.ray.exceptions.RayError):
                        async for ref in events:
                            await ref
                        has_ended = True
            finally:
                self._busy -= 1
                if has_ended:
                    self._idle.put_nowait(actor)
                elif actor in self._ready:
                    CLUSTER.do(_kill, actor)

    async def _take(self) -> Any:
        timeout = self._options.replace_timeout
        try:
            async with asyncio.timeout(timeout):
                while (actor := await self._idle.get()) not in self._ready:
                    pass
                return actor
        except TimeoutError:
            reason = f"no worker of endpoint {self._name!r} was idle within {timeout:g} s (replace_timeout)"
            raise ItemError(reason, code="unavailable") from None

    # ---- actors --------------------------------------------------------------------------------------------------

    async def start(self, cancel_timeout: float) -> None:
        if not self._slots:
            await CLUSTER.join(self._options.address)
            self._cancel_timeout = cancel_timeout
            self._idle = asyncio.Queue()
            self._slots = [asyncio.create_task(self._keep_running()) for _ in range(self._options.count)]

    async def close(self) -> None:
        if self._slots:
            for task in self._slots:
                task.cancel()
            await asyncio.wait(self._slots)
            self._slots = []
            await CLUSTER.leave()

    def counts(self) -> SlotCounts:
        return SlotCounts(self._options.count, len(self._ready), self._busy, self._lost)

    async def _keep_running(self) -> None:
        """Start an actor, wait until it dies, and start the next one."""
        while True:
            actor: Any = None
            try:
                actor = await CLUSTER.do(self._create)
                async with asyncio.timeout(self._options.start_timeout):
                    await actor.__ray_ready__.remote()
                self._ready.add(actor)
                self._idle.put_nowait(actor)
                await actor.live.options(concurrency_group="control").remote()
            except Exception as error:  # noqa: BLE001 - the user's constructor can raise any exception
                if actor in self._ready:
                    self._lost += 1
                    _log.warning("endpoint %r: a Ray actor has died, and another one starts", self._name)
                else:
                    late = f"was not ready within start_timeout ({self._options.start_timeout:g} s)"
                    reason = late if isinstance(error, TimeoutError) else "failed to start"
                    message = "endpoint %r: a Ray actor %s, and another one starts"
                    _log.error(message, self._name, reason, exc_info=error)
                    await asyncio.sleep(_RETRY_DELAY)
            finally:
                self._ready.discard(actor)
                if actor is not None:  # the actor may still be alive, but unreachable
                    await CLUSTER.do(_kill, actor)

    def _create(self) -> Any:
        ray, options = CLUSTER.ray, self._options
        remote = ray.remote(max_restarts=0, concurrency_groups={"control": 2}, **options.actor_options)(Actor)
        function = ray.cloudpickle.dumps(self._function)
        return remote.remote(self._name, function, sys.path, options.max_in_flight)


def _ends(step: Any) -> list[int]:
    """Return the rows that end with a yielded mapping. If the function returns a list, `step` is this list."""
    if not isinstance(step, dict):
        return []
    return [row for row, value in step.items() if isinstance(value, Last | Exception)]


def _kill(actor: Any) -> None:
    with contextlib.suppress(CLUSTER.ray.exceptions.RayError, ValueError):
        CLUSTER.ray.kill(actor)
