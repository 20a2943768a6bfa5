"""File descriptors: limit the number of connections to the process's limit, and throttle log lines while none is free."""

import asyncio
import contextlib
import errno
import logging
import math
from typing import Any, Final

RESERVED: Final = 100
"""Number of file descriptors that are reserved for the log, the event loop and user functions."""

_log = logging.getLogger(__name__)


def max_connections_within_fd_limit(connections: int, *, raise_limit: bool = False) -> int:
    """Return how many connections the process can open. If the number is lower than requested, log a warning.

    Args:
        connections: Requested number of connections.
        raise_limit: Whether to raise the soft limit on file descriptors if necessary. Must be false if the server runs
            inside another application.
    """
    if raise_limit:
        _raise_limit(connections + RESERVED)
    available = connections_that_fit(connections)
    if available < connections:
        _log.warning(
            "accepting %d connections, and therefore at most %d streams, instead of %d (max_connections): the process may "
            "open only %d files (ulimit -n)",
            available,
            available,
            connections,
            _limit(),
        )
    return available


def connections_that_fit(connections: int) -> int:
    """Return how many of the requested connections the current limit on file descriptors allows."""
    return int(max(1, min(connections, _limit() - RESERVED)))


def _limit() -> float:
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _raise_limit(wanted: int) -> None:
    if _limit() < wanted:
        import resource  # noqa: PLC0415 - `_limit` has imported it

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):  # the operating system does not allow this limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


_REPEAT_SECONDS: Final = 60.0
"""Minimum number of seconds between two log lines about failed `accept` calls."""

_RESOURCE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def throttle_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Limit the number of log lines about failed `accept` calls while the process has no free file descriptor.

    In this situation, asyncio calls `accept` up to `backlog` times per second and logs a traceback for each failure.
    This function installs an exception handler that logs at most one line per minute. asyncio still retries, and
    accepts connections again as soon as a descriptor is free.
    """
    last_logged = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last_logged
        error = context.get("exception")
        if "socket" not in context or not isinstance(error, OSError) or error.errno not in _RESOURCE_ERRORS:
            loop.default_exception_handler(context)
        elif loop.time() >= last_logged + _REPEAT_SECONDS:
            last_logged = loop.time()
            _log.error(
                "cannot accept connections: %s (ulimit -n); the server tries again every second",
                error.strerror,
            )

    loop.set_exception_handler(handle)
