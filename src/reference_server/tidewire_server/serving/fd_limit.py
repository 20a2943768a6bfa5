"""File descriptors: each connection takes one, and where none is left nothing else opens, either."""

import asyncio
import errno
import logging
import math
from typing import Any, Final

RESERVED: Final = 100
"""Descriptors that are left for all but connections: the log, the event loop, what functions open."""

_TOLD_AGAIN: Final = 60.0
"""Seconds until it is told again that none is left."""

_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


def room_for(connections: int, *, raise_limit: bool = False) -> int:
    """How many of these connections the process has descriptors for; says so where that is not all.

    Args:
        connections: That are wanted.
        raise_limit: Ask the system for more, as far as it allows. Only where the process is ours.
    """
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED
    if raise_limit and soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
        except (OSError, ValueError):  # a system with bounds of its own: what there is must do
            pass
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    room = max(1, soft - RESERVED)
    _log.warning(
        "room for %d connections, not for %d (max_connections): the process may open %d files (ulimit -n)",
        room,
        connections,
        soft,
    )
    return room


def throttle_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Have a loop say once in a while that no descriptor is left for a connection that waits.

    asyncio's own would try as often as `listen` lets connections wait, each second, with a traceback for each. It goes
    on trying, and takes the connection as soon as one is free.
    """
    told = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _NONE_LEFT:
            loop.default_exception_handler(context)
        elif loop.time() >= told + _TOLD_AGAIN:
            told = loop.time()
            _log.error(
                "no connection can be taken: %s (ulimit -n); those that wait are tried again", error.strerror
            )

    loop.set_exception_handler(handle)
