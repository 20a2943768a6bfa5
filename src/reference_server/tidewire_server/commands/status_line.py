"""Status line of `tidewire serve` on a terminal: endpoints, queue, running inputs, batch sizes and tokens per second."""

import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from tidewire.terminal.status_area import StatusArea
from tidewire_server.server import Server

INTERVAL: Final = 1.0
"""Time between two updates of the status line, in seconds."""
RATE_WINDOW: Final = 5
"""Number of updates over which the number of tokens per second is computed."""

_JOB_LOG: Final = "tidewire_server.jobs.job_service"
"""Logger of the line for each job that has ended. The status line replaces these lines."""


@contextmanager
def status_line(server: Server, *, quiet: bool) -> Iterator[None]:
    """Show a status line below the output of the server during a `with` block, if the output is a terminal.

    What the process writes to `sys.stdout` and `sys.stderr`, and its log, appear above the line.

    Args:
        server: The server, which has started.
        quiet: Whether the line replaces the log records of jobs that have ended.
    """
    console = Console(stderr=True, highlight=False)
    if not (sys.stdout.isatty() and sys.stderr.isatty()) or console.is_dumb_terminal:
        yield
        return
    before, job_log = (sys.stdout, sys.stderr), logging.getLogger(_JOB_LOG)
    status, level = _Status(server), job_log.level
    with StatusArea(Console(file=before[1], force_terminal=True), status.lines, interval=INTERVAL) as area:
        above: list[Any] = [_AboveStatus(stream, area) for stream in before]
        handlers = [
            each
            for each in logging.getLogger().handlers
            if isinstance(each, logging.StreamHandler) and each.stream is before[1]
        ]
        try:
            sys.stdout, sys.stderr = above
            for each in handlers:
                each.setStream(sys.stderr)
            if quiet:
                job_log.setLevel(max(job_log.getEffectiveLevel(), logging.WARNING))
            yield
        finally:
            job_log.setLevel(level)
            for each in handlers:
                each.setStream(before[1])
            sys.stdout, sys.stderr = before


class _AboveStatus:
    """A standard stream whose text appears above the status line. It has the other members of the stream."""

    def __init__(self, stream: TextIO, area: StatusArea) -> None:
        self._stream = stream
        self._area = area

    def write(self, text: str) -> int:
        self._area.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        self._area.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Status:
    """Numbers of a server for its status line."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tokens: deque[tuple[float, int]] = deque(maxlen=RATE_WINDOW)
        """Times of the last updates, and the number of generated tokens at these times."""

    def lines(self, _width: int) -> list[Text]:
        """Return the status line."""
        service, endpoints = self._server.app.service, self._server.endpoints
        depths = {name: service.scheduler.depth(name) for name in endpoints}
        running, waiting = (
            (sum(counts) for counts in zip(*depths.values(), strict=True)) if depths else (0, 0)
        )
        parts = [
            f"{len(endpoints)} endpoint{'' if len(endpoints) == 1 else 's'}",
            f"{waiting} queued",
            f"{running} running",
        ]
        sizes = [
            # Text generation batches all running inputs.
            (name, float(depths[name][0]) if each.batching is None else service.scheduler.batch_size(name))
            for name, each in endpoints.items()
            if each.batching is not None or each.generated_tokens is not None
        ]
        if sizes := [(name, size) for name, size in sizes if size]:
            parts.append("batch size " + ", ".join(f"{name} {size:.3g}" for name, size in sizes))
        counts = [each.generated_tokens for each in endpoints.values() if each.generated_tokens is not None]
        if counts:
            self._tokens.append((time.monotonic(), sum(counts)))
            (start, first), (end, last) = self._tokens[0], self._tokens[-1]
            parts.append(f"{(last - first) / (end - start) if end > start else 0:.0f} tokens/s")
        return [Text("  ".join(parts), "reverse" if running or waiting else "dim")]
