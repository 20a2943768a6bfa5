"""A line on the terminal that disappears when there is something else to show."""

import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ERASE_LINE = "\r\033[K"


@contextmanager
def transient_line(text: str) -> Iterator[None]:
    """Show a line on standard error until the next log record, or until the end of the `with` block.

    If standard error is not a terminal, nothing is shown.
    """
    stream = sys.stderr
    if not stream.isatty():
        yield
        return

    def erase(_record: logging.LogRecord | None = None) -> bool:
        stream.write(_ERASE_LINE)
        stream.flush()
        return True

    handlers = logging.getLogger().handlers[:]
    for handler in handlers:
        handler.addFilter(erase)
    # A line that is wrapped could not be erased.
    stream.write(text[: shutil.get_terminal_size().columns - 1])
    stream.flush()
    try:
        yield
    finally:
        erase()
        for handler in handlers:
            handler.removeFilter(erase)
