"""The Ray actors of one endpoint (`ActorPool`): it starts and replaces them, and gives each call an idle one.

actor    | event                                                | then
---------+------------------------------------------------------+---------------------------------------------------
starting | it has loaded the function                           | it is idle
starting | the constructor raises, or `start_timeout` is over   | another one starts, after a delay that doubles
idle     | a call takes it                                      | it is busy
idle     | it dies                                              | another one starts
busy     | the call ends                                        | it is idle
busy     | it dies                                              | another one starts, the call raises WorkerLostError
busy     | `cancel_timeout` is over since the call was cancelled | it is killed, and another one starts
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

from tidewire_server.batching.ray_workers.actor import Actor
from tidewire_server.batching.ray_workers.cluster import CLUSTER
from tidewire_server.batching.ray_workers.remote_call import RemoteCall
from tidewire_server.batching.ray_workers.wire import load_error
from tidewire_server.endpoints.workers import SlotCounts
from tidewire_server.errors import ItemError

_FIRST_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""Bounds of the delay after an actor could not be started, in seconds."""

_log = logging.getLogger(__name__)


class ActorPool:
    """See `WorkerPool`. The arguments are those of `ray_workers`."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        count: int,
        address: str | None,
        max_in_flight: int,
        start_timeout: float,
        replace_timeout: float,
        actor_options: dict[str, Any],
        late_joiners: bool,
    ) -> None:
        self._name = name
        self._actor_arguments = (name, function, max_in_flight)
        self._actor_options = actor_options
        self._count = count
        self._address = address
        self._start_timeout = start_timeout
        self._replace_timeout = replace_timeout
        self._late_joiners = late_joiners
        self._cancel_timeout = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        """One task for each slot. It keeps an actor running."""
        self._idle: list[Any] = []
        self._busy: set[Any] = set()
        self._ready: set[Any] = set()
        self._failed: set[int] = set()
        """Slots whose last start has failed."""
        self._lost = 0
        self._changed = asyncio.Condition()

    # ---- calls ---------------------------------------------------------------------------------------------------

    async def call(self, **arguments: Any) -> list[Any] | None:
        """See `WorkerPool.call`."""
        async with self._begin(arguments) as call, aclosing(call.yields()) as yields:  # type: ignore[type-var]
            async for _ in yields:
                pass
            return call.result

    async def stream(self, **arguments: Any) -> AsyncGenerator[Any, Any]:
        """See `WorkerPool.stream`."""
        async with self._begin(arguments) as call, aclosing(call.yields()) as yields:  # type: ignore[type-var]
            async for yielded in yields:
                joined = yield yielded
                if self._late_joiners:
                    call.join(joined or {})

    @contextlib.asynccontextmanager
    async def _begin(self, arguments: dict[str, Any]) -> AsyncIterator[RemoteCall]:
        """Take an actor for one call. At the end, the function is stopped if it still runs, and the actor killed if necessary."""
        actor = await self._take()
        call = RemoteCall(actor, arguments)
        usable = False
        try:
            try:
                yield call
            finally:
                if not call.ended and not call.lost:
                    call.ended = await call.stop(self._cancel_timeout)
                    if not call.ended:
                        message = "endpoint %r: the function was stopped, but did not return within cancel_timeout; its actor is replaced"
                        _log.warning(message, self._name)
                usable = call.ended
        finally:
            self._busy.discard(actor)
            if usable and actor in self._ready:
                self._idle.append(actor)
                await self._notify()
            elif not usable:
                await self._kill(actor)

    async def _take(self) -> Any:
        if not self._tasks:
            await self.start(self._cancel_timeout)
        try:
            async with asyncio.timeout(self._replace_timeout), self._changed:
                while not self._idle:
                    if len(self._failed) == self._count:
                        raise _unavailable(self._name, "no actor could be started")
                    await self._changed.wait()
                actor = self._idle.pop()
        except TimeoutError:
            reason = f"no actor became idle within {self._replace_timeout:g} s (replace_timeout)"
            raise _unavailable(self._name, reason) from None
        self._busy.add(actor)
        return actor

    # ---- actors --------------------------------------------------------------------------------------------------

    async def start(self, cancel_timeout: float) -> None:
        """See `WorkerPool.start`."""
        self._cancel_timeout = cancel_timeout
        if not self._tasks:
            await CLUSTER.join(self._address)
            self._changed = asyncio.Condition()
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._keep_running(slot)) for slot in range(self._count)]

    async def close(self) -> None:
        """See `WorkerPool.close`."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for actor in self._ready:
            await self._kill(actor)
        self._ready.clear()
        self._idle.clear()
        await CLUSTER.leave()

    def counts(self) -> SlotCounts:
        """See `WorkerPool.counts`."""
        return SlotCounts(self._count, len(self._ready), len(self._busy), self._lost)

    async def _keep_running(self, slot: int) -> None:
        """Start an actor, wait until it dies, and start the next one."""
        from ray.exceptions import RayError  # noqa: PLC0415 - only if it is used

        delay = _FIRST_DELAY
        while True:
            try:
                actor = await self._start_actor()
            except Exception as error:  # noqa: BLE001 - any exception of the user's constructor
                _log.error(
                    "endpoint %r: a Ray actor could not be started, and is started again in %g s: %s: %s",
                    *(self._name, delay, type(error).__name__, error),
                    exc_info=error if error.__cause__ else None,
                )
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
            _log.warning("endpoint %r: a Ray actor has died, and is replaced", self._name)
            await self._kill(actor)  # it may only be unreachable

    async def _start_actor(self) -> Any:
        """Start an actor, and wait until it has loaded the function."""
        actor = await CLUSTER.do(self._create)
        try:
            async with asyncio.timeout(self._start_timeout):
                failure = await actor.ready.remote()
            if failure is not None:
                raise load_error(failure)
        except BaseException as error:
            await self._kill(actor)
            if isinstance(error, TimeoutError):
                reason = f"it was not ready within {self._start_timeout:g} s (start_timeout); does the cluster have enough free GPUs and CPUs?"
                raise TimeoutError(reason) from None
            raise
        return actor

    def _create(self) -> Any:
        import ray  # noqa: PLC0415 - only if it is used

        groups = {"control": 1, "live": 1}
        remote = ray.remote(max_restarts=0, concurrency_groups=groups, **self._actor_options)
        return remote(Actor).remote(*self._actor_arguments)

    async def _kill(self, actor: Any) -> None:
        import ray  # noqa: PLC0415 - only if it is used

        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            await CLUSTER.do(ray.kill, actor)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _unavailable(name: str, reason: str) -> ItemError:
    """Create the error of the inputs of a batch that gets no actor. The server's log has the details."""
    return ItemError(f"the workers of endpoint {name!r} are not available: {reason}", code="unavailable")
