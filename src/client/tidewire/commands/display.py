"""Output of the commands to the terminal.

The commands write results to standard output. They write progress, notes, retries and errors to standard error, one line
each, so that a pipe receives only the results. `visible` escapes the control characters in text from the server.
The text is then wrapped in `Text` objects, because rich would interpret plain strings as markup.
"""

import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from pydantic import JsonValue
from rich.console import Console, RenderableType
from rich.highlighter import JSONHighlighter
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from tidewire.commands.job_tables import seconds_between
from tidewire.commands.live_view import (
    RECONNECTS,
    JobStatus,
    amount_text,
    queue_text,
    reconnect_text,
    seconds_text,
)
from tidewire.hooks import ReconnectEvent, RequestEvent
from tidewire.http.api_session import RETRYING
from tidewire.jobs.job_reader import IN_QUEUE
from tidewire.protocol.messages import Progress, Queue
from tidewire.protocol.resources import JobResource
from tidewire.terminal.status_area import StatusArea
from tidewire.terminal_escapes import visible, visible_json

PROGRESS_EVERY: Final = 1.0
"""Minimum time between two progress lines, in seconds."""
SHORT_WAIT: Final = 0.5
"""Minimum wait in seconds for which a retry is shown to the user. Retries after a shorter wait are not shown."""

UNSHORTENED: Final = 1000
"""Width of the console for tables whose cells must not be shortened, in characters."""


class OutputError(Exception):
    """Standard output cannot be written, for example because the disk is full."""


@contextmanager
def _writing() -> Iterator[None]:
    """Convert errors of standard output to OutputError, except for a closed pipe.

    Raises:
        OutputError: Standard output cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from None


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
        # Set `force_terminal`, because rich would otherwise treat a pipe as a terminal if FORCE_COLOR is set. A script
        # would then receive escape sequences and retracted text.
        self.out: Console = _Output(highlight=False, soft_wrap=True, force_terminal=self._stdout_is_terminal)
        self.err: Console = Console(
            stderr=True, highlight=False, soft_wrap=True, force_terminal=sys.stderr.isatty()
        )
        self._last_progress = 0.0
        self._last_line = ""
        self._open_line = False
        self._area: StatusArea | None = None
        self.status: JobStatus = JobStatus()
        """Status of the job that the command follows."""
        self.options: list[str] = []
        """Options that commands for the same job also need, such as `--uds PATH`."""

    @property
    def live(self) -> bool:
        """Whether standard output is a terminal."""
        return self.out.is_terminal

    @property
    def can_redraw(self) -> bool:
        """Whether standard error is a terminal whose lines can be erased and drawn again."""
        return self.err.is_terminal and not self.err.is_dumb_terminal

    @contextmanager
    def live_view(self) -> Iterator[None]:
        """Show the status of a job below its text while the `with` block runs, if `can_redraw` is true."""
        self.status = JobStatus()
        with self.area(self.status.lines):
            yield

    @contextmanager
    def area(self, lines: Callable[[int], Sequence[RenderableType]]) -> Iterator[None]:
        """Show status lines while the `with` block runs, if `can_redraw` is true. `lines` returns them for a width in cells."""
        if not self.can_redraw:
            yield
            return
        try:
            with StatusArea(self.err, lines) as self._area:
                yield
        finally:
            self._area = None
            self.end_line()

    @property
    def _within_text(self) -> bool:
        """Whether a line on standard error would interrupt an unfinished line of text on the same terminal."""
        return self._open_line and self._stdout_is_terminal and self.err.is_terminal

    def show_progress(self, message: Queue | Progress) -> None:
        """Show the queue position or the progress of a job, unless it would interrupt a line of text."""
        self.status.show_message(message)
        if self._area is not None:
            return
        line, now = _one_line(_line(message)), time.monotonic()
        waits = isinstance(message, Progress) and now - self._last_progress < PROGRESS_EVERY
        if line != self._last_line and not waits and not self._within_text:
            self._last_line, self._last_progress = line, now
            self.note(line)

    def show_reconnect(self, event: ReconnectEvent) -> None:
        """Show that a stream was lost, when the client reconnects, and when it will give up."""
        if event.cause in RECONNECTS:
            self.status.show_reconnect(event)
            if self._area is None:
                self.note(reconnect_text(event))

    def show_request(self, event: RequestEvent) -> None:
        """Show in the live view that the connection was restored."""
        self.status.show_request(event)

    def show_end(self, job: JobResource) -> None:
        """Show the notes and the usage of an ended job. On a terminal, also show its duration and its speed."""
        self.end_line()
        for each in (job.state or {}).get("notes", ()):
            self.note(f"{each['level']}: {_one_line(each['text'])}")
        if job.done is not None and job.done.usage:
            parts = [f"{name} {_value(value)}" for name, value in job.done.usage.items()]
            self.note(f"usage: {', '.join(parts)}")
        if self.can_redraw:
            self.note(_summary(job, self.status.outages))

    def write(self, text: str, parts: Iterable[tuple[str, str]] = ()) -> None:
        """Write text to standard output, and flush standard output. A pipe receives the text unchanged.

        Args:
            text: The text.
            parts: The same text, split into parts with a style each. Only the live view uses the styles.
        """
        self._open_line = not text.endswith("\n")
        if self._area is not None and self._stdout_is_terminal:
            styled = Segments([Segment(visible(part), Style.parse(style)) for part, style in parts])
            with self.err.capture() as shown:
                self.err.print(styled, end="")
            self._area.write(visible(text), shown.get() or None)
            return
        with _writing():
            sys.stdout.write(visible(text) if self._stdout_is_terminal else text)
            sys.stdout.flush()

    def end_line(self) -> None:
        """Write a line break, unless the output already ends with a line break."""
        if self._open_line:
            self.write("\n")

    def json(self, value: Any) -> None:
        """Write a value as one line of compact JSON."""
        self.write(visible_json(value) + "\n")

    def value(self, value: JsonValue) -> None:
        """Write a complete value.

        A text is written verbatim. Any other value is written as JSON, which is indented if standard output is a terminal.
        """
        if isinstance(value, str):
            self.write(value if value.endswith("\n") else value + "\n")
        elif self.live:
            with _writing():
                self.out.print(JSONHighlighter()(Text(visible_json(value, indent=2))))
        else:
            self.json(value)

    def table(self, *parts: RenderableType, wide: bool = False) -> None:
        """Print tables and lines, which are shortened to the width of the terminal. In a pipe, or if `wide` is true,
        nothing is shortened, so that the user can copy ids from the table.
        """
        console = self.out
        if wide or not self.live:
            console = _Output(highlight=False, width=UNSHORTENED, force_terminal=self.live)
        with _writing():
            for part in parts:
                console.print(part)
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a note to standard error. If the terminal shows an unfinished line of text, end that line first."""
        if self._within_text:
            self.end_line()
        with nullcontext() if self._area is None else self._area.erased():
            self.err.print(Text(visible(text)), style="dim")

    def error(self, text: str) -> None:
        """Print an error message to standard error."""
        self.end_line()
        self.err.print(Text("tidewire: " + visible(text)), style="red" if self.err.is_terminal else "")


def discard_output() -> None:
    """Redirect standard output to the null device, so that flushing it at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class ShowRetries(logging.Handler):
    """Log handler that shows each retry of a request and the wait before it, unless the wait is short. It also shows that a job
    without a listener is still in the queue. It ignores all other messages.
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
                self._screen.note(f"{reason}; retrying in {seconds_text(wait)}")


def _value(value: Any) -> str:
    return f"{value:,}".replace(",", " ") if type(value) is int else visible_json(value)


def _one_line(text: str) -> str:
    """Replace the line breaks of an endpoint's text, so that it cannot imitate other output of the command."""
    return " ".join(text.split())


def _line(message: Queue | Progress) -> str:
    if isinstance(message, Queue):
        return queue_text(message)
    label = message.phase or "running"
    if message.current is None:
        return label
    return f"{label}: {amount_text(message.current, message.total, message.unit or '')}"


def _summary(job: JobResource, outages: int) -> str:
    """Return the duration of a job, its speed, and the number of times that the connection was lost."""
    seconds = seconds_between(job.started_at or job.created_at, job.ended_at)
    tokens = (job.done.usage if job.done else {}).get("completion_tokens")
    speed = f", {tokens / seconds:.0f} tokens/s" if isinstance(tokens, int) and seconds else ""
    lost = f"; reconnected {outages} time{'s' if outages > 1 else ''}, nothing lost" if outages else ""
    return (job.status if seconds is None else f"{job.status} after {seconds:.1f} s{speed}") + lost
