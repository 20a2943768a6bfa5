"""Guard for unit tests: `support.unit_guard` refuses connections and threads."""

from collections.abc import Iterator

import pytest

from support.unit_guard import fail_if_any, no_connections_and_no_threads


@pytest.fixture(scope="module", autouse=True)
def refused_calls() -> Iterator[list[str]]:
    """Refused connections and threads. Module scope, so that the guard also covers module-scoped fixtures."""
    with no_connections_and_no_threads() as refused:
        yield refused


@pytest.fixture(autouse=True)
def _fail_on_refused_calls(refused_calls: list[str]) -> Iterator[None]:
    yield
    fail_if_any(refused_calls)
