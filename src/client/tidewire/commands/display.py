"""The terminal of one command: results, progress, notes and errors.

What was asked for goes to standard output, everything else to standard error, so that a pipe carries results only.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pydantic import JsonValue
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.status import Status
from rich.table import Table

from tidewire.commands.tables import compact
from tidewire.jobs.map_work import MapProgress
from tidewire.protocol.messages import Progress, Queue

PROGRESS_EVERY: Final = 1.0
"""Seconds between two lines of progress where standard error is no terminal."""

UNSHORTENED: Final = 1000
"""Columns of a table that is as wide as its cells."""


class _Output(Console):
    """Standard output. A reader that has gone is the command's to judge, not an exit code of this library's own."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Screen:
    """Where one command writes."""

    def __init__(self) -> None:
        # A result is not lost to a locale: a pipe carries UTF-8, a terminal shows what it can.
        if isinstance(sys.stdout, io.TextIOWrapper):
            if sys.stdout.isatty():
                sys.stdout.reconfigure(errors="replace")
            else:
                sys.stdout.reconfigure(encoding="utf-8")
        self.out: Console = _Output(highlight=False, soft_wrap=True)
        self.err: Console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._last_progress = 0.0
        self._last_line = ""
        self._open_line = False

    @property
    def live(self) -> bool:
        """Whether somebody looks at the output as it comes."""
        return self.out.is_terminal

    @contextmanager
    def waiting(self, for_what: str) -> Iterator[None]:
        """Show on a terminal that something is waited for."""
        if not self.err.is_terminal:
            yield
            return
        with self.err.status(for_what, spinner="dots") as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def tell(self, message: Queue | Progress) -> None:
        """Show a place in the queue, or a progress."""
        line = _line(message)
        if self._status is not None:
            self._status.update(line)
            return
        now = time.monotonic()
        if isinstance(message, Progress) and now - self._last_progress < PROGRESS_EVERY:
            return
        if line != self._last_line and not self._open_line:
            self._last_line, self._last_progress = line, now
            self.note(line)

    def write(self, text: str) -> None:
        """Write text as it comes."""
        if self._status is not None:
            self._status.stop()
        self._open_line = not text.endswith("\n")
        sys.stdout.write(text)
        sys.stdout.flush()

    def void(self, count: int) -> None:
        """Say that the last code points are void: what a terminal shows cannot be taken back."""
        self.end_line()
        self.note(f"[the last {count} characters above are void; it goes on in their place]")

    def show(self, value: JsonValue) -> None:
        """Show how a value stands that is no text, where a status line is shown."""
        if self._status is not None:
            self._status.update(escape(compact(value)[: max(20, self.err.width - 6)]))

    def end_line(self) -> None:
        if self._open_line:
            self.write("\n")

    def json(self, value: Any) -> None:
        """One line of JSON."""
        sys.stdout.write(compact(value) + "\n")
        sys.stdout.flush()

    def value(self, value: JsonValue) -> None:
        """A whole value: a text as it is, else JSON, indented where somebody looks at it."""
        if isinstance(value, str):
            self.write(value if value.endswith("\n") else value + "\n")
        elif self.live:
            self.out.print_json(json.dumps(value), ensure_ascii=False)
        else:
            self.json(value)

    def wide(self, table: Table) -> None:
        """A table whose cells are to be copied from it, such as ids: never shortened, wherever lines end."""
        _Output(highlight=False, width=UNSHORTENED).print(table)

    @contextmanager
    def bar(self, total: int | None) -> Iterator[Callable[[MapProgress], None]]:
        """A progress bar on standard error, where that is a terminal; gives what moves it."""
        with Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed"),
            TimeRemainingColumn(),
            console=self.err,
            disable=not self.err.is_terminal,
            transient=True,
        ) as bar:
            task = bar.add_task("", total=total, failed=0)

            def move(told: MapProgress) -> None:
                bar.update(task, completed=told.ended, failed=told.failed)

            yield move

    def note(self, text: str) -> None:
        """A line beside the output."""
        self.err.print(text, style="dim", markup=False)

    def error(self, text: str) -> None:
        """What went wrong, in one paragraph."""
        self.end_line()
        self.err.print("tidewire: " + text, style="red" if self.err.is_terminal else "", markup=False)


def let_go_of_output() -> None:
    """Whoever read standard output has gone: what is still to be written goes nowhere, and nothing complains at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _line(message: Queue | Progress) -> str:
    if isinstance(message, Queue):
        soon = "" if message.eta_ms is None else f", about {message.eta_ms / 1000:.0f} s"
        return f"queued: place {message.position}{soon}"
    parts = [message.phase or "running"]
    if message.current is not None:
        whole = "" if message.total is None else f" of {message.total:g}"
        parts.append(f"{message.current:g}{whole} {message.unit or ''}".strip())
    return ": ".join(parts)
