"""pytest plugin with the fixture `tidewire_server`.

To enable the plugin, add `pytest_plugins = ["tidewire.testing.pytest_plugin"]` to a conftest. The plugin has no entry point,
because pytest would then import the client in every test run of each environment in which the client is installed.
"""

from collections.abc import Iterator

import pytest

from tidewire.testing.fake_server import FakeServer


@pytest.fixture
def tidewire_server() -> Iterator[FakeServer]:
    """A `FakeServer` that clients can reach at its `url` during the test."""
    with FakeServer() as server:
        yield server
