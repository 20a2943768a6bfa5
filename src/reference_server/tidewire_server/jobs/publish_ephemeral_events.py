"""Publish ephemeral events, which report the progress of functions and the queue positions of jobs [TW-FRM-067].

Ephemeral events are not logged and may be lost. A new reader receives only the latest event of each kind.
"""

import asyncio

from tidewire.protocol import messages
from tidewire_server.store.log_interface import Log

_QUEUE_KEY = "queue"


def publish_queue_position(log: Log, message: messages.Queue | None) -> None:
    """Publish a job's queue position. If `message` is None, withdraw the published position. Call this function on the
    event loop.
    """
    log.set_ephemeral_event(
        _QUEUE_KEY, None if message is None else messages.ephemeral_frame("queue", message)
    )


def publish_position_of_waiting_job(log: Log, message: messages.Queue) -> None:
    """Publish the queue position of a job that this process does not run, unless the job has changed since it began to wait.
    Call this function on the event loop.
    """
    extent = log.extent()
    if extent.head == extent.starts[-1]:
        publish_queue_position(log, message)


def publish_progress(
    log: Log, loop: asyncio.AbstractEventLoop, item: int, message: messages.Progress
) -> None:
    """Publish the progress of an item. This function can be called from any thread."""
    frame = messages.ephemeral_frame("progress", message)
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        log.set_ephemeral_event(_progress_key(item), frame)
    else:
        loop.call_soon_threadsafe(log.set_ephemeral_event, _progress_key(item), frame)


def forget_progress(log: Log, item: int) -> None:
    """Withdraw the progress event of an item that has ended. Call this function on the event loop."""
    log.set_ephemeral_event(_progress_key(item), None)


def _progress_key(item: int) -> str:
    return f"progress-{item}"
