"""Fixtures, and the pytest plugin of schemathesis, which is loaded for `test_openapi.py` only.

pyproject.toml disables the plugin because loading it takes a second.
"""

import importlib.util

import pytest

from support import fake_and_real

INSTALLED = importlib.util.find_spec("schemathesis") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector):
    if INSTALLED and isinstance(collector, pytest.Module) and collector.path.name == "test_openapi.py":
        collector.config.pluginmanager.import_plugin("schemathesis.pytest.plugin")


@pytest.fixture(scope="session")
def shared_reference_server():
    with fake_and_real.served("reference") as url:
        yield url


@pytest.fixture(params=fake_and_real.SERVERS)
def either_server(request, shared_reference_server):
    """URL of a new fake server, and of the shared reference server with the same endpoints."""
    if request.param == "reference":
        yield shared_reference_server
    else:
        with fake_and_real.served(request.param) as url:
            yield url
