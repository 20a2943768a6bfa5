"""Progress of loading the weights of a model, as log messages (`logged_progress`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils.logging import set_tqdm_hook

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Minimum number of seconds between two messages. Models that load faster cause no message."""


@contextmanager
def logged_progress(interval: float = INTERVAL) -> Iterator[None]:
    """Log the progress that transformers would display as a bar, while the body of the `with` statement runs."""

    def hook(bar: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        items = args[0] if args else None
        return _counted(items, interval) if hasattr(items, "__len__") else bar(*args, **options)

    previous = set_tqdm_hook(hook)
    try:
        yield
    finally:
        set_tqdm_hook(previous)


def _counted(items: Any, interval: float) -> Iterator[Any]:
    last, total = time.monotonic(), len(items)
    for done, item in enumerate(items):
        if time.monotonic() - last >= interval:
            last = time.monotonic()
            logger.info("loading the weights: %d %% (%d of %d tensors)", 100 * done // total, done, total)
        yield item
