"""Run the functions of an application without a socket. Signals and shutdown are handled as in `serve`."""

import asyncio
from collections.abc import Callable

import uvicorn

from tidewire_server.http.application import TidewireApp
from tidewire_server.serving.process_loop import (
    LAST_GRACE,
    announce_drain,
    run_to_the_end,
    short_gc_pauses,
    stop_signals,
    thread_switch_interval,
)
from tidewire_server.settings import SWITCH_INTERVAL, Settings


def run_worker(
    app: TidewireApp,
    settings: Settings,
    *,
    started: Callable[[], None],
    switch_interval: float = SWITCH_INTERVAL,
) -> None:
    """Run waiting items until SIGINT or SIGTERM. A second signal ends the process immediately.

    Args:
        app: Application whose functions run.
        settings: Settings of the server.
        started: Function that is called when the worker is ready.
        switch_interval: Python's thread switch interval in seconds (`sys.setswitchinterval`) while the worker runs.

    Raises:
        StoreError: The log cannot be opened.
    """
    # A worker has no callers itself, and does not know at which address the servers listen.
    app.authentication.single_user = settings.is_single_user(on_loopback=False)
    lifespan = app.lifespan
    lifespan.open_log()
    loop = (uvicorn.Config(app).get_loop_factory() or asyncio.new_event_loop)()

    async def work() -> None:
        draining: asyncio.Future[asyncio.Task[None]] = loop.create_future()

        def end() -> None:
            announce_drain(lifespan, settings.shutdown_timeout)
            draining.set_result(loop.create_task(lifespan.drain(expect_readers=False)))

        await lifespan.start(resume=False)
        try:
            with stop_signals(end, settings.shutdown_timeout + LAST_GRACE):
                started()
                # If new items arrive as fast as items end, this call returns only after the shutdown has begun.
                await lifespan.resume()
                await (await draining)
        finally:
            await lifespan.close()

    with thread_switch_interval(switch_interval), short_gc_pauses():
        run_to_the_end(loop, work())
