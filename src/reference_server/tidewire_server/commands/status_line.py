"""Status line of `tidewire serve` on a terminal: endpoints, queue, running inputs, batch sizes and tokens per second."""

import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from tidewire.terminal.status_area import StatusArea
from tidewire_server.server import Server

INTERVAL: Final = 1.0
"""Number of seconds between two updates of the status line."""
RATE_WINDOW: Final = 5
"""Number of updates over which the number of tokens per second is computed."""

_JOB_LOG: Final = "tidewire_server.jobs.job_service"
"""Logger that writes a line for each job that has ended. The status line replaces these lines."""


@contextmanager
def status_line(server: Server, *, quiet: bool) -> Iterator[None]:
    """Show a status line below the output of the server during a `with` block, if the output is a terminal.

    The log, and text that is written to `sys.stdout` and `sys.stderr`, appear above the line.

    Args:
        server: The server, which has started.
        quiet: Whether to hide the log records of jobs that have ended.
    """
    console = Console(file=sys.stderr, highlight=False)
    if not (sys.stdout.isatty() and sys.stderr.isatty()) or console.is_dumb_terminal:
        yield
        return
    if quiet:
        logging.getLogger(_JOB_LOG).setLevel(logging.WARNING)
    with StatusArea(console, _Status(server).lines, interval=INTERVAL) as area:
        above: Any = _AboveStatus(sys.stderr, area)
        for each in logging.getLogger().handlers:
            if isinstance(each, logging.StreamHandler) and each.stream is sys.stderr:
                each.setStream(above)
        with redirect_stdout(above), redirect_stderr(above):
            yield


class _AboveStatus:
    """Stream that writes above the status line. All other members are forwarded to the original stream."""

    def __init__(self, stream: TextIO, area: StatusArea) -> None:
        self._stream = stream
        self._area = area

    def write(self, text: str) -> int:
        self._area.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Status:
    """Computes the status line of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tokens: deque[tuple[float, int]] = deque(maxlen=RATE_WINDOW)
        """Time and number of generated tokens at each of the last updates."""

    def lines(self, _width: int) -> list[Text]:
        """Return the status line."""
        scheduler, endpoints = self._server.app.service.scheduler, self._server.endpoints
        depths = {name: scheduler.depth(name) for name in endpoints}
        running, waiting = (sum(depth[at] for depth in depths.values()) for at in (0, 1))
        number = len(endpoints)
        line = f"{number} endpoint{'' if number == 1 else 's'}  {waiting} queued  {running} running"
        sizes = []
        for name, each in endpoints.items():
            # Text generation processes all running inputs in one batch.
            batches = scheduler.batch_size(name) if each.batching is not None else depths[name][0]
            if batches and (each.batching is not None or each.generated_tokens is not None):
                sizes.append(f"{name} {batches:.3g}")
        if sizes:
            line += f"  batch size {', '.join(sizes)}"
        counts = [each.generated_tokens for each in endpoints.values() if each.generated_tokens is not None]
        if counts:
            self._tokens.append((time.monotonic(), sum(counts)))
            (start, first), (end, last) = self._tokens[0], self._tokens[-1]
            line += f"  {(last - first) / (end - start) if end > start else 0:.0f} tokens/s"
        return [Text(line, "reverse" if running or waiting else "dim")]
