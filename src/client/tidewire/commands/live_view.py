"""Live view of a job: status lines with its queue position, progress and connection, and tokens in the colors of their
probabilities.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidewire.commands.job_and_token_tables import probability, server_text
from tidewire.hooks import ReconnectEvent, RequestEvent
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import Progress, Queue
from tidewire.updates import ItemChange

RATE_WINDOW: Final = 5.0
"""Time over which the number of tokens per second is computed, in seconds."""
MAX_WAITING_TOKENS: Final = 1000
"""Maximum number of tokens that wait for their text. If there are more, the text is not colored."""
MAX_BAR: Final = 30
"""Maximum width of the progress bar, in cells."""
MIN_BAR: Final = 8
"""Minimum width of the progress bar, in cells. If less space is left, it is omitted."""

PROBABILITY_STYLES: Final = (
    (0.9, "color(28)"),
    (0.5, "color(100)"),
    (0.1, "color(166)"),
    (0.0, "color(196) underline"),
)
"""Minimum probability and style of a token. The colors are readable on a dark and on a light background."""

_UNIT: Final = re.compile("[a-z]{3,}")
"""Pattern of units that form a plural with `s`, such as `token`. `MB` and `%` have no plural."""
_WAITS_FOR: Final[Mapping[str | None, str]] = {
    "worker": "; no worker runs this endpoint",
    "version": "; the code of each worker rejects the input",
}
"""What a line about the queue adds for each `waits_for`."""
_VALUE: Final = "/items/0/value"
_COLUMNS: Final = ("token_text", "logprobs", "top_text", "top_logprobs")
_INCOMPLETE: Final = "\ufffd"
"""Character in the text of a token that has only some bytes of a character."""


class _ShownToken(NamedTuple):
    text: str
    logprob: Any
    others: Sequence[tuple[Any, Any]]


class JobStatus:
    """Status of a job, as it is drawn below the text.

    Args:
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._message: Queue | Progress | None = None
        self._has_value = False
        self._tokens: int | None = None
        self._counts: deque[tuple[float, float]] = deque()
        """Times at which the number of tokens, or of other units of progress, has changed, and these numbers."""
        self._items: tuple[int, int] | None = None
        self._outage: tuple[ReconnectEvent, str, float] | None = None
        """The last reconnect, its cause for the user, and the time of the next attempt; None while there is a connection."""
        self._token: _ShownToken | None = None
        self.outages: int = 0
        """Number of times that the connection was lost. The client may need several attempts to reconnect."""

    def show_message(self, message: Queue | Progress) -> None:
        """Show a queue position or a progress report."""
        self._message, self._outage = message, None
        if isinstance(message, Progress) and message.current is not None and self._tokens is None:
            self._count(message.current)

    def show_update(self, change: ItemChange[Any]) -> None:
        """Count the tokens of a generation, which the server reports in the usage of the job."""
        self._outage, self._has_value = None, True
        try:
            count = change.position.view.value("/usage/completion_tokens")
        except LookupError:
            return  # not a generation
        if type(count) is int:
            if self._tokens is None:
                self._counts.clear()
            self._tokens = count
            self._count(count)

    def show_items(self, ended: int, total: int) -> None:
        """Show how many items of a batch have ended."""
        self._items, self._outage = (ended, total), None

    def show_token(self, token: _ShownToken | None) -> None:
        """Show the alternatives of the latest token."""
        self._token = token

    def show_reconnect(self, event: ReconnectEvent, cause: str) -> None:
        """Show that the connection was lost, until the client has another one."""
        self.outages += self._outage is None
        self._outage = (event, cause, self._clock() + event.wait)

    def show_request(self, event: RequestEvent) -> None:
        """Show that there is a connection again."""
        if event.status is not None and event.status < 300:
            self._outage = None

    def lines(self, width: int) -> list[RenderableType]:
        """Return the status lines for a terminal of this width."""
        lines = [self._state(width)]
        if self._outage is not None:
            event, cause, then = self._outage
            wait = then - self._clock()
            now = f"trying again in {wait:.0f} s" if wait >= 0.5 else "trying again now"
            attempt = f"attempt {event.failures}, " if event.failures > 1 else ""
            limit = f"({attempt}giving up in {max(0.0, wait) + event.remaining:.0f} s)"
            lines.append(server_text(f"{cause}; {now} {limit}", "red"))
        if self._token is not None:
            lines.append(_alternatives(self._token))
        return lines

    def _count(self, number: float) -> None:
        if self._counts and self._counts[-1][1] == number:
            return
        now = self._clock()
        self._counts.append((now, number))
        while self._counts[0][0] < now - RATE_WINDOW:
            self._counts.popleft()

    def _state(self, width: int) -> RenderableType:
        message, done, total, unit = self._message, None, None, ""
        if isinstance(message, Queue):
            label = queue_text(message)
        else:
            waits = message is None and not self._has_value
            label = "waiting for the first event" if waits else (message and message.phase) or "running"
        if isinstance(message, Progress):
            done, total, unit = message.current, message.total, message.unit or ""
        if self._tokens is not None and not isinstance(message, Queue) and unit in {"", "token"}:
            done, unit = max(done or 0, self._tokens), "token"
        if self._items is not None:
            done, total, unit = *self._items, "item"
        parts = [] if done is None else [amount_text(done, total, unit)]
        if (rate := self._rate()) is not None:
            parts.append(f"{rate:.{0 if rate >= 10 else 1}f} {plural(unit or 'step', 2)}/s")
        parts.append(duration_text(self._clock() - self._start))
        return bar_line(label, done, total, parts, width)

    def _rate(self) -> float | None:
        if len(self._counts) < 2:
            return None
        (start, first), (_, last) = self._counts[0], self._counts[-1]
        return max(0.0, last - first) / max(self._clock() - start, 0.001)


class TokenColors:
    """Colors of the text of one generation, from the columns `token_text` and `logprobs` of its value. Without these columns,
    the text has no colors.
    """

    def __init__(self) -> None:
        self._count = 0
        """Number of tokens that were read."""
        self._waiting: deque[_ShownToken] = deque()
        """Tokens whose text has not arrived. The text may be held back, for example if it may begin a stop string."""
        self.latest: _ShownToken | None = None

    def read(self, change: ItemChange[Any]) -> None:
        """Read the tokens that are new after an event."""
        view = change.position.view
        if (
            change.deleted
        ):  # The tokens of the new text are not known, because some of the old ones were retracted.
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
        """Yield the parts of a piece of text with their styles."""
        lowest: float | None = None
        while text and self._waiting:
            token = self._waiting[0]
            if _INCOMPLETE in token.text:  # One of several tokens that make up the next character.
                chance = probability(token.logprob)
                lowest = chance if lowest is None else min(lowest, chance)
                self._waiting.popleft()
            elif lowest is not None:
                part = text.partition(token.text)[0] if token.text else text
                yield part, style_of(lowest)
                text, lowest = text[len(part) :], None
            elif token.text.startswith(text):
                yield text, style_of(probability(token.logprob))
                self._waiting[0] = token._replace(text=token.text[len(text) :])
                text = ""
            elif text.startswith(token.text):
                if token.text:
                    yield token.text, style_of(probability(token.logprob))
                text = text[len(token.text) :]
                self._waiting.popleft()
            else:  # A special token, which has no text.
                self._waiting.popleft()
        if text:
            yield text, "" if lowest is None else style_of(lowest)


def bar_line(
    label: str, done: float | None, total: float | None, parts: Sequence[str], width: int
) -> RenderableType:
    """Return a line with a label, a progress bar if the total is known and there is room, and as many parts as fit."""
    head, tail = server_text(label, "bold"), server_text("  ".join(parts), "dim")
    while len(parts) > 1 and head.cell_len + 2 + tail.cell_len > width:
        tail = server_text("  ".join(parts := parts[:-1]), "dim")
    cells: list[RenderableType] = [head] if label else []
    space = width - head.cell_len - tail.cell_len - 5
    if done is not None and total and space >= MIN_BAR:
        bar = ProgressBar(
            total=total,
            completed=min(done, total),
            width=min(MAX_BAR, space),
            style="bright_black",
            complete_style="green",
            finished_style="green",
        )
        cells.append(bar)
    line = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for _ in range(len(cells) + 1):
        line.add_column(no_wrap=True)
    line.add_row(*cells, tail)
    return line


def style_of(chance: float) -> str:
    """Return the style of a token with this probability."""
    return next(style for least, style in PROBABILITY_STYLES if chance >= least)


def queue_text(message: Queue) -> str:
    """Return a text such as `queued: position 3, about 12 s`."""
    soon = "" if message.eta_ms is None else f", about {message.eta_ms / 1000:.0f} s"
    return f"queued: position {message.position}{soon}{_WAITS_FOR.get(message.waits_for, '')}"


def plural(unit: str, number: float) -> str:
    """Return the plural of a unit if the number needs it and the unit is an English word."""
    return f"{unit}s" if number != 1 and _UNIT.fullmatch(unit) and not unit.endswith("s") else unit


def amount_text(done: float, total: float | None, unit: str) -> str:
    """Return a text such as `12 of 64 tokens`."""
    whole = "" if total is None else f" of {total:g}"
    return f"{done:g}{whole} {plural(unit, done if total is None else total)}".strip()


def _tokens(view: View, start: int) -> Iterator[_ShownToken]:
    """Yield the tokens of a generation from this index on. A faulty server's columns may contain anything."""
    columns: list[list[Any]] = [view.elements(f"{_VALUE}/{name}", start) for name in _COLUMNS]
    for text, logprob, others, chances in zip_longest(*columns):
        if isinstance(text, str):
            pairs = (
                zip(others, chances, strict=False)
                if isinstance(others, list) and isinstance(chances, list)
                else ()
            )
            yield _ShownToken(text, logprob, [*pairs])


def _alternatives(token: _ShownToken) -> Text:
    """Return a line with a token, its probability, and its most probable alternatives."""
    line = Text()
    others = [each for each in token.others if each[0] != token.text]
    for at, (text, logprob) in enumerate([(token.text, token.logprob), *others]):
        chance = probability(logprob)
        line.append("" if at == 0 else "  not " if at == 1 else "  ")
        style = style_of(chance).removesuffix(" underline")
        line.append_text(server_text(repr(text), f"{style} bold" if at == 0 else style))
        line.append(f" {chance:.0%}", "bold" if at == 0 else "dim")
    return line


def duration_text(seconds: float) -> str:
    """Return a duration such as `0:07` or `1:02:03`."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
