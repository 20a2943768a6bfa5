"""Fixtures of a scripted engine, for modules with `pytest_plugins = ["support.engine_fixtures"]`."""

from collections.abc import Iterator

import pytest

from support.scripted_engine import ScriptedEngine, scripted_engine
from tidewire_server.generation.upstream import url_pool


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[ScriptedEngine]:
    """Engine of a module. It keeps the script of the test before."""
    with scripted_engine() as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: ScriptedEngine) -> ScriptedEngine:
    """The engine of the module, without a script."""
    shared_engine.script()
    return shared_engine


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a URL take requests again soon after an error."""
    for event in ("busy", "failed"):
        monkeypatch.setitem(url_pool.PAUSES, event, 0.05)
