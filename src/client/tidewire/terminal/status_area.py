"""Status lines below the text that a command writes to a terminal. The commands of the client and of the server use them.

The text is written once and never drawn again, so the user can scroll it, copy it, and resize the window. The cursor stays
at the end of the text, and the status is drawn below it. Before anything else is written, everything from the cursor to the end
of the screen is erased. This erases exactly the status, even if a resize of the terminal has moved the lines.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self

from rich.cells import get_character_cell_size
from rich.console import Console, ConsoleDimensions, RenderableType

INTERVAL: Final = 0.1
"""Default time between two drawings of the status, in seconds."""

_ERASE, _SAVE, _RESTORE = "\x1b[J", "\x1b7", "\x1b8"
_DOWN: Final = "\x1bD"
"""Escape sequence that moves the cursor down in its column, and scrolls in the last line. A line feed would also move
it to the first column."""
_TAB: Final = 8
_ESCAPE_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Escape sequence that sets a color, or begins or ends a link. It occupies no cells on the terminal."""


class StatusArea:
    """Status lines below the cursor, during a `with` block. Nothing else may write to the terminal in this time, except
    within `erased`. All methods can be called by any thread.

    Args:
        console: Console of the terminal.
        lines: Function that returns the status lines for a width in cells. A thread of this object also calls it.
        interval: Time between two drawings of the status, in seconds.
    """

    def __init__(
        self,
        console: Console,
        lines: Callable[[int], Sequence[RenderableType]],
        *,
        interval: float = INTERVAL,
    ) -> None:
        self._console = console
        self._interval = interval
        self._lines = lines
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw_regularly, name="tidewire-status", daemon=True)
        self._drawing = ""
        """Output that draws the current status, or an empty string."""
        self._drawn: tuple[ConsoleDimensions, str] | None = None
        """Size of the terminal at the last drawing, and the output of this drawing."""
        self._cells = 0
        """Number of cells between the last line break and the cursor. A long text occupies several lines of the terminal."""
        self._broken = False
        """Whether the text has filled its line, so that the cursor is in the first column of the next line."""

    def __enter__(self) -> Self:
        self.redraw()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._lock:
            # At the start of a line, also erase the `^C` that a terminal shows for Ctrl+C.
            self._put(_ERASE if self._cells else f"\r{_ERASE}")
            self._drawing = ""
        self._thread.join()

    def write(self, text: str, shown: str | None = None) -> None:
        """Write text at the cursor.

        Args:
            text: Text without control characters, except line feeds, carriage returns, tabs, and escape sequences of colors
                and links.
            shown: The same text with escape sequences for its colors, or None if it has no colors.
        """
        if not text:
            return
        shown = text if shown is None else shown
        with self._lock:
            # A line break after a full line would leave an empty line, because the cursor has already moved on.
            if self._broken and text.startswith("\n"):
                shown = shown.replace("\n", "", 1)
            self._broken = False
            self._put(f"{_ERASE}{shown}{self._advance(text)}{self._drawing}")

    def redraw(self) -> None:
        """Draw the status with its current values, if it or the size of the terminal has changed."""
        with self._lock:
            drawn = (self._console.size, self._draw())
            if not self._ended.is_set() and drawn != self._drawn:
                self._drawn, self._drawing = drawn, drawn[1]
                self._put(f"{_ERASE}{self._drawing}")

    @contextmanager
    def erased(self) -> Iterator[None]:
        """Erase the status during a `with` block that writes whole lines to the terminal."""
        with self._lock:
            self._put(_ERASE)
            yield
            self._cells, self._broken = 0, False
            self._put(self._drawing)

    def _advance(self, text: str) -> str:
        """Count the cells of a text. If it fills its line, return the characters that move the cursor to the next line.

        Otherwise the cursor would stay on the last character, and erasing from the cursor would erase this character.
        """
        width = self._console.width
        text = _ESCAPE_SEQUENCE.sub("", text)
        # A progress bar moves the cursor to the first column with a carriage return before it draws itself again.
        start = max(text.rfind("\n"), text.rfind("\r")) + 1
        cells = 0 if start else self._cells
        for character in text[start:]:
            column = cells % width
            if character == "\t":  # A tab does not leave its line.
                cells += min(_TAB - column % _TAB, width - 1 - column)
                continue
            size = get_character_cell_size(character)
            # A wide character does not start in the last cell of a line.
            cells += size + (1 if size == 2 and column == width - 1 else 0)
        self._cells = cells
        self._broken = cells > 0 and cells % width == 0
        return " \r" if self._broken else ""

    def _draw(self) -> str:
        width, height = self._console.size
        with self._console.capture() as capture:
            for line in self._lines(width):
                self._console.print(line, no_wrap=True, overflow="ellipsis", soft_wrap=False)
        drawn = capture.get().splitlines()[: max(0, height - 2)]
        if not drawn:
            return ""
        # Make room for the lines first: if the screen scrolls after the position was saved, the position is wrong.
        room = f"{_DOWN * len(drawn)}\x1b[{len(drawn)}A"
        return "\r\n".join([f"{room}{_SAVE}", *drawn]) + _RESTORE

    def _draw_regularly(self) -> None:
        # Ignore this error. If the terminal is gone, the thread that reads the job gets an error, too.
        with suppress(OSError):
            while not self._ended.wait(self._interval):
                self.redraw()

    def _put(self, output: str) -> None:
        file = self._console.file
        file.write(output)
        file.flush()
