"""Runs fuzz targets with a fixed number of examples in `make test`, and with new examples for a while in `make slow`.

Environment: `FUZZ_SECONDS` is the time for each target in `make slow` (default 60). `FUZZ_REPORT` names a file to which
each target appends its name, its number of examples and its seconds, as a line of JSON.
"""

import functools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
ROUND = 500
"""Number of examples of one seed in a long run."""


def fuzzed(examples: int) -> pytest.MarkDecorator:
    """Parametrize a test with `fuzz`, the decorator that runs a function with examples of strategies."""
    long = pytest.param(None, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(2 * SECONDS + 300)])
    return pytest.mark.parametrize("fuzz", [pytest.param(examples, id="quick"), long], indirect=True)


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Callable[..., Callable[[Callable[..., None]], None]]:
    examples: int | None = request.param
    name = request.node.originalname

    def decorator(*strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
        def run(check: Callable[..., None]) -> None:
            if examples is not None:
                _run(check, strategies, examples, derandomize=True)
            else:
                _run_for_some_time(name, check, strategies)

        return run

    return decorator


def _run(
    check: Callable[..., None], strategies: tuple[SearchStrategy[Any], ...], examples: int, **options: Any
) -> None:
    suppressed = list(HealthCheck)
    limited = settings(max_examples=examples, deadline=None, suppress_health_check=suppressed, **options)
    limited(given(*strategies)(check))()


def _run_for_some_time(
    name: str, check: Callable[..., None], strategies: tuple[SearchStrategy[Any], ...]
) -> None:
    count = 0

    @functools.wraps(check)  # Hypothesis reads the signature
    def counted(*example: Any, **more: Any) -> None:
        nonlocal count
        count += 1
        check(*example, **more)

    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        number = random.SystemRandom().randrange(2**32)
        print(f"{name}: seed {number}, after {count} examples")
        _run(seed(number)(counted), strategies, ROUND, database=None, print_blob=True)
    if report := os.environ.get("FUZZ_REPORT"):
        line = {"target": name, "examples": count, "seconds": round(time.monotonic() - began)}
        with Path(report).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
