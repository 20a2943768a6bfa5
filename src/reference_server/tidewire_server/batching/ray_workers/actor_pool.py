"""The Ray actors of one endpoint (`ActorPool`): it starts and replaces them, and gives each call an idle one.

actor    | event                                                 | then
---------+-------------------------------------------------------+---------------------------------------------------
starting | it has loaded the function                            | it is idle
starting | the constructor raises, or `start_timeout` is over    | another one starts, after a delay that doubles
idle     | a call takes it                                       | it is busy
idle     | it dies                                               | another one starts
busy     | the call ends                                         | it is idle
busy     | it dies                                               | another one starts, the call raises WorkerLostError
busy     | `cancel_timeout` is over since the call was cancelled | it is killed, and another one starts
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from tidewire_server.batching.ray_workers.actor import Actor
from tidewire_server.batching.ray_workers.cluster import CLUSTER
from tidewire_server.batching.ray_workers.remote_call import RemoteCall
from tidewire_server.batching.ray_workers.wire import load_error
from tidewire_server.endpoints.batch_options import SlotCounts
from tidewire_server.errors import ItemError

_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""Bounds of the delay after an actor could not be started, in seconds."""

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

    def pool(self, name: str, function: Callable[..., Any], *, late_joiners: bool) -> "ActorPool":
        """See `Workers.pool`."""
        return ActorPool(self, name, function, late_joiners=late_joiners)


class ActorPool:
    """See `WorkerPool`."""

    def __init__(
        self, options: RayWorkers, name: str, function: Callable[..., Any], *, late_joiners: bool
    ) -> None:
        self._options = options
        self._name = name
        self._function = function
        self._late_joiners = late_joiners
        self._cancel_timeout = 0.0
        self._slots: list[asyncio.Task[None]] = []
        """Tasks, each of which keeps one actor running."""
        self._ready: set[Any] = set()
        self._idle: list[Any] = []
        self._busy: set[Any] = set()
        self._failed: set[int] = set()
        """Slots whose last start has failed."""
        self._lost = 0
        self._changed = asyncio.Condition()

    async def call(self, **arguments: Any) -> list[Any] | None:
        """See `WorkerPool.call`."""
        async with self._begin(arguments) as call, aclosing(call.yields()) as yields:
            async for _ in yields:
                pass
            return call.result

    async def stream(self, **arguments: Any) -> AsyncGenerator[Any, Any]:
        """See `WorkerPool.stream`."""
        async with self._begin(arguments) as call, aclosing(call.yields()) as yields:
            async for yielded in yields:
                joined = yield yielded
                if self._late_joiners:
                    call.join(joined or {})

    @contextlib.asynccontextmanager
    async def _begin(self, arguments: dict[str, Any]) -> AsyncIterator[RemoteCall]:
        """Take an actor for one call. At the end, stop the function if it still runs, and kill the actor if necessary."""
        actor = await self._take()
        call = RemoteCall(actor, arguments)
        try:
            try:
                yield call
            finally:
                if not (call.ended or call.lost or await call.stop(self._cancel_timeout)):
                    _log.warning(
                        "endpoint %r: the function did not return within cancel_timeout, so its actor is replaced",
                        self._name,
                    )
        finally:
            self._busy.discard(actor)
            if not call.ended:
                await self._kill(actor)
            elif actor in self._ready:
                self._idle.append(actor)
                await self._notify()

    async def _take(self) -> Any:
        if not self._slots:
            await self.start(self._cancel_timeout)
        try:
            async with asyncio.timeout(self._options.replace_timeout), self._changed:
                while not self._idle:
                    if len(self._failed) == self._options.count:
                        raise self._unavailable("no actor could be started; the server's log has the reason")
                    await self._changed.wait()
                actor = self._idle.pop()
        except TimeoutError:
            waited = f"no actor was idle within {self._options.replace_timeout:g} s (replace_timeout)"
            raise self._unavailable(waited) from None
        self._busy.add(actor)
        return actor

    def _unavailable(self, reason: str) -> ItemError:
        return ItemError(
            f"the workers of endpoint {self._name!r} are not available: {reason}", code="unavailable"
        )

    # ---- actors --------------------------------------------------------------------------------------------------

    async def start(self, cancel_timeout: float) -> None:
        """See `WorkerPool.start`."""
        self._cancel_timeout = cancel_timeout
        if not self._slots:
            await CLUSTER.join(self._options.address)
            self._changed = asyncio.Condition()
            self._slots = [asyncio.create_task(self._keep_running(n)) for n in range(self._options.count)]

    async def close(self) -> None:
        """See `WorkerPool.close`."""
        if not self._slots:
            return
        for task in self._slots:
            task.cancel()
        await asyncio.wait(self._slots)
        for actor in self._ready:
            await self._kill(actor)
        self._slots, self._idle, self._ready = [], [], set()
        await CLUSTER.leave()

    def counts(self) -> SlotCounts:
        """See `WorkerPool.counts`."""
        return SlotCounts(self._options.count, len(self._ready), len(self._busy), self._lost)

    async def _keep_running(self, slot: int) -> None:
        """Start an actor, wait until it dies, and start the next one."""
        from ray.exceptions import RayError  # noqa: PLC0415 - only if it is used

        delay = _FIRST_DELAY
        while True:
            try:
                actor = await self._start_actor()
            except Exception as error:  # noqa: BLE001 - any exception of the user's constructor
                message = "endpoint %r: a Ray actor could not be started, and another one starts in %g s"
                _log.error(message, self._name, delay, exc_info=error)
                self._failed.add(slot)
                await self._notify()
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_DELAY)
                continue
            delay = _FIRST_DELAY
            self._failed.discard(slot)
            self._ready.add(actor)
            self._idle.append(actor)
            await self._notify()
            with contextlib.suppress(RayError):
                await actor.live.options(concurrency_group="live").remote()
            self._lost += 1
            self._ready.discard(actor)
            if actor in self._idle:
                self._idle.remove(actor)
            _log.warning("endpoint %r: a Ray actor has died, and another one starts", self._name)
            await self._kill(actor)  # it may only be unreachable

    async def _start_actor(self) -> Any:
        """Start an actor, and wait until it has loaded the function."""
        actor = await CLUSTER.do(self._create)
        try:
            async with asyncio.timeout(self._options.start_timeout):
                failure = await actor.ready.remote()
            if failure is not None:
                raise load_error(failure)
        except BaseException as error:
            await self._kill(actor)
            if isinstance(error, TimeoutError):
                late = f"not ready within {self._options.start_timeout:g} s (start_timeout); has the cluster enough free GPUs and CPUs?"
                raise TimeoutError(late) from None
            raise
        return actor

    def _create(self) -> Any:
        import ray  # noqa: PLC0415 - only if it is used

        groups = {"control": 1, "live": 1}
        remote: Any = ray.remote(max_restarts=0, concurrency_groups=groups, **self._options.actor_options)
        function = ray.cloudpickle.dumps(self._function)
        return remote(Actor).remote(self._name, function, sys.path, self._options.max_in_flight)

    async def _kill(self, actor: Any) -> None:
        import ray  # noqa: PLC0415 - only if it is used

        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            await CLUSTER.do(ray.kill, actor)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
