"""Unit tests open no connections and start no threads: `support.unit_guard` refuses both."""

from collections.abc import Iterator

import pytest

from support.unit_guard import fail_if_any, no_connections_and_no_threads


@pytest.fixture(scope="module", autouse=True)
def refused_calls() -> Iterator[list[str]]:
    """Connections and threads that were refused. Of module scope, so that the module's own fixtures are guarded too."""
    with no_connections_and_no_threads() as refused:
        yield refused


@pytest.fixture(autouse=True)
def _nothing_was_refused(refused_calls: list[str]) -> Iterator[None]:
    yield
    fail_if_any(refused_calls)
