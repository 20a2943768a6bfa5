"""Outputs of cells in a Jupyter notebook, and the progress bar of a `map`, which is such an output or a line of text.

This module never imports IPython: it finds the module that a Jupyter kernel has imported.
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

UPDATE_INTERVAL: Final = 0.25
"""Minimum time between two updates of an output, in seconds."""
_drawn: "set[Output]" = set()
"""Outputs that were drawn since the end of the last cell."""


def kernel_shell() -> Any:
    """Return the shell of the Jupyter kernel that runs this program, or None."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell if getattr(shell, "kernel", None) is not None else None


def call_after_cells(function: Callable[[Any], None]) -> None:
    """Call a function after each cell with the result of the cell. Another call with the same function does nothing."""
    events = kernel_shell().events
    if function not in events.callbacks["post_run_cell"]:
        events.register("post_run_cell", function)


def _repeat_drawn(_result: Any) -> None:
    """Repeat new content as part of the cell that ends, because programs that execute notebooks receive no output between
    two cells.
    """
    while _drawn:
        _drawn.pop().repeat()


class Output:
    """An output of a cell, which is created when it is drawn first, and then updated in place."""

    def __init__(self) -> None:
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self._handle: Any = None
        self._bundle: dict[str, str] = {}
        call_after_cells(_repeat_drawn)

    def draw(self, html: str, plain: str) -> None:
        """Show HTML, and the same content as plain text."""
        with self.lock:
            self._bundle = {"text/html": html, "text/plain": plain}
            self.repeat()
            _drawn.add(self)

    def repeat(self) -> None:
        """Show the last content again."""
        with self.lock:
            if self._handle is not None:
                self._handle.update(self._bundle, raw=True)
            else:
                show: Any = sys.modules["IPython"].display.display
                self._handle = show(self._bundle, raw=True, display_id=True)


class MapBar:
    """Progress bar of a `map`: an output in a notebook, and otherwise a line on standard error."""

    def __init__(self) -> None:
        self._due = 0.0
        self._texts = ("", "")
        self._output = None if kernel_shell() is None else Output()

    def __call__(self, progress: Any) -> None:
        total = "" if progress.total is None else f" of {progress.total:,}"
        text = f"{progress.ended:,}{total}" + (f", {progress.failed:,} failed" if progress.failed else "")
        self._texts = f"<div>{progress_html(progress.ended, progress.total)} {text}</div>", text
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + UPDATE_INTERVAL
            self.draw("\r")

    def draw(self, end: str = "\n") -> None:
        if self._output is not None:
            self._output.draw(*self._texts)
        elif end == "\n" or sys.stderr.isatty():
            print(self._texts[1], end=end, file=sys.stderr, flush=True)


def map_listener(progress: Any) -> Any:
    """Return the function that `map` calls for its argument `progress`: the user's function, a progress bar, or None."""
    by_default = progress is None and kernel_shell() is not None
    return MapBar() if progress is True or by_default else progress or None


def close_bar(listener: Any) -> None:
    """Draw the last progress, if the listener of a `map` is a progress bar that has shown some."""
    if isinstance(listener, MapBar) and listener._due:
        listener.draw()


def progress_html(current: float | None, total: float | None) -> str:
    """Return a progress bar in HTML, or an empty text if the total is not known."""
    return f'<progress max="{total:g}" value="{current or 0:g}"></progress>' if total else ""
