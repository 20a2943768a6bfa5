"""Outputs of cells in a Jupyter notebook that can be updated, such as the progress bar of a `map`.

This module never imports IPython: it finds the module that a Jupyter kernel has imported.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from html import unescape
from typing import Any, Final

UPDATE_INTERVAL: Final = 0.25
"""Minimum time between two updates of an output, in seconds."""
_TAG: Final = re.compile(r"<[^>]*>")
drawn: "set[Output]" = set()
"""Outputs that are sent again at the end of the running cell."""


def kernel_shell() -> Any:
    """Return the shell of the Jupyter kernel that runs this program, or None."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    # A forked process, such as a worker of PyTorch's DataLoader, has a copy of the shell. The kernel drops the outputs of
    # such a process, and logs each of them.
    is_fork = getattr(getattr(kernel, "session", None), "pid", os.getpid()) != os.getpid()
    return None if kernel is None or is_fork else shell


def _after_cell(_result: Any) -> None:
    for output in [*drawn]:
        drawn.discard(output)
        output.repeat()


class Output:
    """An output of a cell. The first drawing creates the output, and later drawings update it in place.

    It is sent again at the end of the cell, because programs that execute notebooks receive no output between two cells.
    """

    def __init__(self) -> None:
        self.lock: threading.RLock = threading.RLock()
        self._handle: Any = None
        self._bundle: dict[str, str] = {}
        events = kernel_shell().events
        if _after_cell not in events.callbacks["post_run_cell"]:
            events.register("post_run_cell", _after_cell)

    def draw(self, html: str, *, send: bool = True) -> None:
        """Show HTML with escaped texts, and the same content as plain text. Any thread may call this method."""
        with self.lock:
            before, plain = self._bundle, unescape(_TAG.sub("", html.replace("</div>", "\n"))).strip()
            self._bundle = {"text/html": html, "text/plain": plain}
            if self._bundle != before:
                drawn.add(self)
                if send:
                    Output.repeat(self)

    def repeat(self) -> None:
        """Show the last content again."""
        with self.lock:
            if self._handle is not None:
                self._handle.update(self._bundle, raw=True)
            else:
                show: Any = sys.modules["IPython"].display.display
                self._handle = show(self._bundle, raw=True, display_id=True)


def map_bar() -> Callable[[Any], None]:
    """Return a function that shows the progress of a `map` as a bar."""
    output, due = Output(), 0.0

    def show(progress: Any) -> None:
        nonlocal due
        total = "" if progress.total is None else f" of {progress.total:,}"
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        html = f"<div>{progress_html(progress.ended, progress.total)} {progress.ended:,}{total}{failed}</div>"
        is_due = time.monotonic() >= due
        output.draw(html, send=is_due)
        due = time.monotonic() + UPDATE_INTERVAL if is_due else due

    return show


def progress_html(current: float | None, total: float | None) -> str:
    """Return a progress bar in HTML, or an empty text if the total is not known."""
    return f'<progress max="{total:g}" value="{current or 0:g}"></progress>' if total else ""
