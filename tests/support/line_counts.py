"""Count the lines of Python that a call executes, as a measure of its cost that does not depend on the machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def line_count(work: Callable[[], Any]) -> int:
    """Return how many lines of Python a call executes."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count
