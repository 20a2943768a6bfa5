"""Live view of a job on a terminal: text whose tokens are colored by their probabilities, and below it status lines with the
queue position, the progress and the state of the connection.
"""

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from rich.progress import Progress as Tasks
from rich.text import Text

from tidewire.commands.job_tables import probability, server_text
from tidewire.hooks import ReconnectEvent, RequestEvent
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import Progress, Queue
from tidewire.terminal_escapes import visible
from tidewire.updates import ItemChange

RATE_WINDOW: Final = 5.0
"""Time over which the number of tokens per second is computed, in seconds."""
MAX_WAITING_TOKENS: Final = 1000
"""Maximum number of tokens whose text has not arrived yet. If there are more, the text is not colored."""
BAR, NARROW = 24, 72
"""Width of the progress bar, and the width of a terminal below which there is no bar, in cells."""

PROBABILITY_STYLES: Final = (
    (0.9, "color(28)"),
    (0.5, "color(100)"),
    (0.1, "color(166)"),
    (0.0, "color(196) underline"),
)
"""Pairs of a probability and the style for tokens that have at least this probability. The colors are readable on dark and
light backgrounds."""
RECONNECTS: Final[Mapping[str, str]] = {
    "busy": "the server is busy",
    "cut": "connection lost",
    "resync": "an event did not match the state of the job",
}
"""Messages for the reasons to reconnect. A planned reconnect (`goaway`) has no message and is not shown."""

_UNIT: Final = re.compile("[a-z]{3,}")
"""Pattern of units that form a plural with `s`, such as `token`. `MB` and `%` have no plural."""
_WAITS_FOR: Final[Mapping[str | None, str]] = {
    "worker": "; no worker runs this endpoint",
    "version": "; the code of each worker rejects the input",
}
"""Text at the end of the line about the queue, for each value of `waits_for`."""
_VALUE: Final = "/items/0/value"
_COLUMNS: Final = ("token_text", "logprobs", "top_text", "top_logprobs")
_INCOMPLETE: Final = "\ufffd"
"""Replacement character. It marks a token that contains only some of the bytes of a character."""


class _ShownToken(NamedTuple):
    text: str
    chance: float
    others: list[tuple[Any, Any]]
    """The most probable tokens at this place, each with its log-probability."""


class ProgressLine:
    """A line with a label, a progress bar, the amount of finished work, the rate, and the elapsed time."""

    def __init__(self, total: float | None = None, unit: str = "") -> None:
        self._tasks = Tasks(speed_estimate_period=RATE_WINDOW)
        self._tasks.add_task("", total=total)
        self._task = self._tasks.tasks[0]
        self.unit: str = unit

    def update(self, done: float | None, total: float | None, unit: str) -> None:
        """Change the numbers and the unit. A number that is None stays as before."""
        self._tasks.update(self._task.id, completed=done, total=total)
        self.unit = unit

    def numbers(self, *more: str) -> str:
        """Return the numbers as text. The parts in `more` follow the amount of finished work."""
        task = self._task
        parts = [amount_text(task.completed, task.total, self.unit), *more]
        if task.speed is not None:
            parts.append(f"{task.speed:.{1 if task.speed < 10 else 0}f} {plural(self.unit or 'step', 2)}/s")
        parts.append(str(timedelta(seconds=int(task.elapsed or 0))))
        return "  ".join(parts if task.completed or task.total else parts[1:])

    def draw(self, label: str, width: int, *more: str) -> Text:
        """Return the line for a terminal of this width in cells."""
        line = Text.assemble((f"{visible(label)}  " if label else "", "bold"))
        if self._task.total and width >= NARROW:
            done = round(BAR * self._task.percentage / 100)
            line.append("━" * done, "green").append("━" * (BAR - done) + "  ", "bright_black")
        return line.append(visible(self.numbers(*more)), "dim")


class JobStatus:
    """Status of a job, as it is drawn below the text."""

    def __init__(self) -> None:
        self._label, self._waits = "waiting for the first event", True
        self._progress = ProgressLine()
        self._is_batch = False
        self._outage: tuple[ReconnectEvent, float] | None = None
        """The last lost connection and its time; None while the client is connected."""
        self._token: _ShownToken | None = None
        self.outages: int = 0
        """Number of times that the connection was lost. The client may need several attempts to reconnect."""

    def show_message(self, message: Queue | Progress) -> None:
        """Show a queue position or a progress report."""
        self._outage = None
        if isinstance(message, Queue):
            self._label, self._waits = queue_text(message), True
            return
        self._label, self._waits = message.phase or "running", False
        if not self._is_batch:
            self._progress.update(message.current, message.total, message.unit or "")

    def show_update(self, change: ItemChange[Any], token: _ShownToken | None) -> None:
        """Show the latest token, and the number of generated tokens, which the server reports in the usage of the job."""
        self._outage, self._token = None, token
        self._label = "running" if self._waits else self._label
        try:
            count = change.position.view.value("/usage/completion_tokens")
        except LookupError:
            return  # not a generation
        if type(count) is int and self._progress.unit in {"", "token"}:
            self._progress.update(count, None, "token")

    def show_items(self, ended: int, total: int) -> None:
        """Show how many items of a batch have ended."""
        self._is_batch, self._outage = True, None
        self._progress.update(ended, total, "item")

    def show_reconnect(self, event: ReconnectEvent) -> None:
        """Show that the connection was lost, until the client is connected again."""
        self.outages += self._outage is None
        self._outage = (event, time.monotonic())

    def show_request(self, event: RequestEvent) -> None:
        """Show that the connection was restored."""
        if event.status is not None and event.status < 300:
            self._outage = None

    def lines(self, width: int) -> list[Text]:
        """Return the status lines for a terminal of this width."""
        lines = [self._progress.draw(self._label, width)]
        if self._outage is not None:
            event, start = self._outage
            lines.append(server_text(reconnect_text(event, time.monotonic() - start), "red"))
        if self._token is not None:
            lines.append(_alternatives(self._token))
        return lines


class TokenColors:
    """Computes the colors of a generation's text from the columns `token_text` and `logprobs` of its value. Without
    these columns, the text has no colors.
    """

    def __init__(self) -> None:
        self._count = 0
        """Number of tokens that were read."""
        self._waiting: deque[_ShownToken] = deque()
        """Tokens whose text has not arrived. The server holds text back if it may be the beginning of a stop string."""
        self.latest: _ShownToken | None = None

    def read(self, change: ItemChange[Any]) -> None:
        """Read the tokens that an event has added to the value."""
        view = change.position.view
        if (
            change.deleted
        ):  # Some of the old tokens were retracted, so the tokens of the new text are not known.
            self._waiting.clear()
            self._count = view.length(f"{_VALUE}/token_text")
            return
        for token in _tokens(view, self._count):
            self._count += 1
            self._waiting.append(token)
            self.latest = token
        if len(self._waiting) > MAX_WAITING_TOKENS:
            self._waiting.clear()

    def paint(self, text: str) -> Iterator[tuple[str, str]]:
        """Split a piece of text into tokens, and yield each part with its style."""
        unfinished = ""
        """Style of the last token that has only some bytes of the next character."""
        while text and self._waiting:
            token = self._waiting.popleft()
            if _INCOMPLETE in token.text:
                unfinished = style_of(token.chance)
                continue
            if unfinished:
                before = text.partition(token.text)[0] if token.text else text
                yield before, unfinished
                text, unfinished = text[len(before) :], ""
            if text.startswith(token.text):
                yield token.text, style_of(token.chance)
                text = text[len(token.text) :]
            elif token.text.startswith(text):  # The rest of the token follows.
                yield text, style_of(token.chance)
                self._waiting.appendleft(token._replace(text=token.text[len(text) :]))
                return
            # A special token has no text.
        if text:
            yield text, unfinished


def style_of(chance: float) -> str:
    """Return the style of a token with this probability."""
    return next(style for least, style in PROBABILITY_STYLES if chance >= least)


def queue_text(message: Queue) -> str:
    """Return a text such as `queued: position 3, about 12 s`."""
    soon = "" if message.eta_ms is None else f", about {message.eta_ms / 1000:.0f} s"
    return f"queued: position {message.position}{soon}{_WAITS_FOR.get(message.waits_for, '')}"


def reconnect_text(event: ReconnectEvent, passed: float = 0.0) -> str:
    """Describe why and when the client reconnects, and when it will give up, `passed` seconds after the event."""
    wait = max(0.0, event.wait - passed)
    attempt = f"attempt {event.failures}, " if event.failures else ""
    limit = f"({attempt}giving up in {seconds_text(wait + event.remaining)})"
    return f"{RECONNECTS[event.cause]}; retrying in {seconds_text(wait)} {limit}"


def seconds_text(time: float) -> str:
    """Return a time such as `12 s` or `0.3 s`."""
    return f"{time:.0f} s" if time >= 1 else f"{time:.1g} s"


def plural(unit: str, number: float) -> str:
    """Return the plural of a unit if the number needs it and the unit is an English word."""
    return f"{unit}s" if number != 1 and _UNIT.fullmatch(unit) and not unit.endswith("s") else unit


def amount_text(done: float, total: float | None, unit: str) -> str:
    """Return a text such as `12 of 64 tokens`."""
    whole = "" if total is None else f" of {total:g}"
    return f"{done:g}{whole} {plural(unit, done if total is None else total)}".strip()


def _tokens(view: View, start: int) -> Iterator[_ShownToken]:
    """Yield the tokens of a generation from an index on. The columns of a faulty server may contain anything."""
    columns: list[list[Any]] = [view.elements(f"{_VALUE}/{name}", start) for name in _COLUMNS]
    for text, logprob, others, chances in zip_longest(*columns):
        if isinstance(text, str):
            lists = isinstance(others, list) and isinstance(chances, list)
            yield _ShownToken(
                text, probability(logprob), [*zip(others, chances, strict=False)] if lists else []
            )


def _alternatives(token: _ShownToken) -> Text:
    """Return a line with a token, its probability, and its most probable alternatives."""
    line = _with_chance(token.text, token.chance, " bold")
    others = [(text, logprob) for text, logprob in token.others if text != token.text]
    for at, (text, logprob) in enumerate(others):
        line.append("  " if at else "  not ").append_text(_with_chance(text, probability(logprob)))
    return line


def _with_chance(text: Any, chance: float, more: str = "") -> Text:
    style = style_of(chance).removesuffix(" underline") + more
    return Text.assemble(server_text(repr(text), style), (f" {chance:.0%}", "dim"))
