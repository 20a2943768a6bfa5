"""How many connections fit into the limit on file descriptors, raised where the process may."""

import logging
from typing import Final

RESERVED: Final = 100
"""Descriptors that are left for all but connections: the log, the event loop, what functions open."""

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
