"""What readers are told beside the log: how far a function is, and how long a job has to wait (TW-FRM-067).

It may be lost; the latest of each kind is told again to whoever comes later.
"""

import asyncio

from tidewire.protocol import messages
from tidewire_server.store.interfaces import Log

_PLACE = "queue"


def publish_queue_position(log: Log, message: messages.Queue | None) -> None:
    """Tell a job's place in the queue; with None it has none any more. On the event loop."""
    log.tell(_PLACE, None if message is None else messages.ephemeral_frame("queue", message))


def publish_progress(
    log: Log, loop: asyncio.AbstractEventLoop, item: int, message: messages.Progress
) -> None:
    """Tell how far an item is; from any thread."""
    frame = messages.ephemeral_frame("progress", message)
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        log.tell(_progress(item), frame)
    else:
        loop.call_soon_threadsafe(log.tell, _progress(item), frame)


def forget_progress(log: Log, item: int) -> None:
    """An item has ended: how far it was is not told again. On the event loop."""
    log.tell(_progress(item), None)


def _progress(item: int) -> str:
    return f"progress-{item}"
