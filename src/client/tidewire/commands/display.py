"""Output of the commands to the terminal.

The commands write results to standard output. They write progress, notes, retries and errors to standard error, one line
each, so that a pipe receives only the results. `visible` escapes the control characters in text from the server.
The text is then wrapped in `Text` objects, because rich would interpret plain strings as markup.
"""

import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pydantic import JsonValue
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from tidewire.hooks import ReconnectEvent
from tidewire.http.api_session import RETRYING
from tidewire.jobs.job_reader import IN_QUEUE
from tidewire.jobs.map_work import MapProgress
from tidewire.protocol.messages import Progress, Queue
from tidewire.protocol.resources import JobResource
from tidewire.terminal_escapes import visible, visible_json

PROGRESS_EVERY: Final = 1.0
"""Minimum time between two progress lines, in seconds."""
SHORT_WAIT: Final = 0.5
"""Minimum wait before a retry that is shown to the user, in seconds."""

_RECONNECTS: Final = {
    "busy": "the server is busy",
    "cut": "connection lost",
    "resync": "an event did not match the state of the job",
}
"""Messages for the reasons to reconnect. A planned reconnect (`goaway`) has no message and is not shown."""
_UNIT: Final = re.compile("[a-z]{3,}")
"""Pattern of units that form a plural with `s`, such as `token`. `MB` and `%` have no plural."""

UNSHORTENED: Final = 1000
"""Width of the console for tables whose cells must not be shortened, in characters."""


_WAITS_FOR: Final[Mapping[str | None, str]] = {
    "worker": "; no worker runs this endpoint",
    "version": "; the code of each worker rejects the input",
}
"""What a line about the queue adds for each `waits_for`."""


class _Output(Console):
    """A console that raises BrokenPipeError if the output pipe is closed.

    The console of rich would exit the process instead.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Screen:
    """The output of one command, which is written to standard output and standard error."""

    def __init__(self) -> None:
        # Printing must not fail because of the locale's encoding. Write UTF-8 to pipes. On a terminal, replace characters
        # that the terminal's encoding cannot represent.
        if isinstance(sys.stdout, io.TextIOWrapper):
            if sys.stdout.isatty():
                sys.stdout.reconfigure(errors="replace")
            else:
                sys.stdout.reconfigure(encoding="utf-8")
        self._stdout_is_terminal = sys.stdout.isatty()
        self.out: Console = _Output(highlight=False, soft_wrap=True)
        self.err: Console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._last_progress = 0.0
        self._last_line = ""
        self._held_line = ""
        self._open_line = False

    @property
    def live(self) -> bool:
        """Whether standard output is a terminal."""
        return self.out.is_terminal

    @property
    def _within_text(self) -> bool:
        """Whether a line on standard error would interrupt an unfinished line of text on the same terminal."""
        return self._open_line and self._stdout_is_terminal and self.err.is_terminal

    def show_progress(self, message: Queue | Progress) -> None:
        """Show the queue position or the progress of a job.

        If the same terminal shows an unfinished line of text, show the last of these messages at the end of this line.
        """
        line = _line(message)
        now = time.monotonic()
        if self._within_text:
            self._held_line = line
            return
        if isinstance(message, Progress) and now - self._last_progress < PROGRESS_EVERY:
            return
        self._held_line = ""
        if line != self._last_line:
            self._last_line, self._last_progress = line, now
            self.note(line)

    def show_reconnect(self, event: ReconnectEvent) -> None:
        """Show that a stream was lost, when the client reconnects, and when it will give up."""
        reason = _RECONNECTS.get(event.cause)
        if reason is not None:
            failures = f"attempt {event.failures}, " if event.failures else ""
            limit = f"({failures}giving up in {_seconds(event.remaining)})"
            self.note(f"{reason}; retrying in {_seconds(event.wait)} {limit}")

    def show_end(self, job: JobResource) -> None:
        """Show the notes and the usage of an ended job."""
        self.end_line()
        for each in (job.state or {}).get("notes", ()):
            self.note(f"{each['level']}: {each['text']}")
        if job.done is not None and job.done.usage:
            parts = [f"{name} {_value(value)}" for name, value in job.done.usage.items()]
            self.note(f"usage: {', '.join(parts)}")

    def write(self, text: str) -> None:
        """Write text to standard output, and flush standard output. A pipe receives the text unchanged."""
        self._open_line = not text.endswith("\n")
        sys.stdout.write(visible(text) if self._stdout_is_terminal else text)
        sys.stdout.flush()

    def note_retraction(self, count: int) -> None:
        """Print a note that the server has retracted some of the printed text.

        A command cannot erase text that it has printed.
        """
        self.end_line()
        self.note(f"[the last {count} characters above were retracted; the text below replaces them]")

    def end_line(self) -> None:
        """Write a line break, unless the output already ends with a line break. Then show the progress that was held back
        during the line.
        """
        if self._open_line:
            self.write("\n")
        line, self._held_line = self._held_line, ""
        if line not in {"", self._last_line}:
            self._last_line = line
            self.note(line)

    def json(self, value: Any) -> None:
        """Write a value as one line of compact JSON."""
        sys.stdout.write(visible_json(value) + "\n")
        sys.stdout.flush()

    def value(self, value: JsonValue) -> None:
        """Write a complete value.

        A text is written verbatim. Any other value is written as JSON, which is indented if standard output is a terminal.
        """
        if isinstance(value, str):
            self.write(value if value.endswith("\n") else value + "\n")
        elif self.live:
            self.out.print(JSONHighlighter()(Text(visible_json(value, indent=2))))
        else:
            self.json(value)

    def wide(self, table: Table) -> None:
        """Print a table without shortening its cells, so that the user can copy ids from the table."""
        _Output(highlight=False, width=UNSHORTENED).print(table)

    @property
    def width(self) -> int:
        """Width of the terminal, in cells. A pipe has no width, so nothing is cut."""
        return self.out.width if self.live else UNSHORTENED

    def lines(self, lines: Iterable[Text]) -> None:
        """Print styled lines."""
        for line in lines:
            self.out.print(line)

    @contextmanager
    def bar(self, total: int | None) -> Iterator[Callable[[MapProgress], None]]:
        """Show a progress bar while the `with` block runs, if standard error is a terminal.

        Yields a function that updates the progress bar.
        """
        with Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeRemainingColumn(),
            console=self.err,
            disable=not self.err.is_terminal,
            transient=True,
            # With `redirect_stdout`, rich sends everything that is written to `sys.stdout` to the bar's own terminal.
            # If standard output is a file or a pipe, it would receive nothing.
            redirect_stdout=self._stdout_is_terminal,
        ) as bar:
            task = bar.add_task("", total=total, counts="0 failed")

            def move(progress: MapProgress) -> None:
                counts = f"{progress.failed} failed"
                if progress.resumed:
                    counts += f", {progress.resumed} from the resume file"
                bar.update(task, completed=progress.ended, counts=counts)

            yield move

    def note(self, text: str) -> None:
        """Print a note to standard error. If the terminal shows an unfinished line of text, end that line first."""
        if self._within_text:
            self.err.print()
            self._open_line = False
        self.err.print(Text(visible(text)), style="dim")

    def error(self, text: str) -> None:
        """Print an error message to standard error."""
        self.end_line()
        self.err.print(Text("tidewire: " + visible(text)), style="red" if self.err.is_terminal else "")


def discard_output() -> None:
    """Redirect standard output to the null device, so that flushing it at exit does not fail after its pipe was closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class ShowRetries(logging.Handler):
    """Log handler that shows each retry of a request and the wait before it, unless the wait is short. It also shows that
    a job without a listener is still in the queue. All other messages are not shown.
    """

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record that has the message `RETRYING` or `IN_QUEUE`, and ignore all others."""
        if record.msg == IN_QUEUE:
            self._screen.note(record.getMessage())
        elif record.msg == RETRYING and isinstance(record.args, tuple):
            _, _, reason, wait = record.args
            if isinstance(wait, float) and wait >= SHORT_WAIT:
                self._screen.note(f"{reason}; retrying in {_seconds(wait)}")


def _seconds(time: float) -> str:
    return f"{time:.0f} s" if time >= 1 else f"{time:.1g} s"


def _value(value: Any) -> str:
    return f"{value:,}".replace(",", " ") if type(value) is int else visible_json(value)


def _line(message: Queue | Progress) -> str:
    if isinstance(message, Queue):
        soon = "" if message.eta_ms is None else f", about {message.eta_ms / 1000:.0f} s"
        return f"queued: position {message.position}{soon}{_WAITS_FOR.get(message.waits_for, '')}"
    parts = [message.phase or "running"]
    if message.current is not None:
        whole = "" if message.total is None else f" of {message.total:g}"
        number = message.current if message.total is None else message.total
        parts.append(f"{message.current:g}{whole} {_plural(message.unit or '', number)}".strip())
    return ": ".join(parts)


def _plural(unit: str, number: float) -> str:
    return f"{unit}s" if number != 1 and _UNIT.fullmatch(unit) and not unit.endswith("s") else unit
