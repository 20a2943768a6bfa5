"""Fixtures, and the pytest plugin of schemathesis, which is loaded for `test_openapi.py` only.

pyproject.toml disables the plugin because loading it takes a second.
"""

import importlib.util
import os

import pytest

from support import fake_and_real, postgres_server, stores

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


@pytest.fixture(scope="session")
def postgres_of_the_run(tmp_path_factory):
    """PostgreSQL server that all processes of the test run share."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with postgres_server.postgres_server(shared) as server:
        yield server


@pytest.fixture
def database_url(postgres_of_the_run, tmp_path):
    """URL of a new, empty PostgreSQL database."""
    with postgres_of_the_run.database() as url:
        (tmp_path / stores.DATABASE_URL).write_text(url)
        yield url
