"""pytest plugin with the fixture `tidewire_server`.

Enable it with `pytest_plugins = ["tidewire.testing.pytest_plugin"]` in a conftest. It is not registered as an entry point,
because pytest would then import the client in every test run of every project that has it installed.
"""

from collections.abc import Iterator

import pytest

from tidewire.testing.fake_server import FakeServer


@pytest.fixture
def tidewire_server() -> Iterator[FakeServer]:
    """A `FakeServer` that is reachable at its `url` for the duration of the test."""
    with FakeServer() as server:
        yield server
