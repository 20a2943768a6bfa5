"""Fixtures for pytest: `pytest_plugins = ["tidewire.testing.pytest_plugin"]` in a conftest.

No entry point announces it: that would load this client in every test run of everybody who has it installed, before
their own configuration is read. One line says who wants it.
"""

from collections.abc import Iterator

import pytest

from tidewire.testing.fake_server import FakeServer


@pytest.fixture
def tidewire_server() -> Iterator[FakeServer]:
    """A fake server that clients find at its `url` as long as the test runs."""
    with FakeServer() as server:
        yield server
