"""Load the pytest plugin of schemathesis for `test_openapi.py` only.

pyproject.toml disables the plugin because loading it takes a second.
"""

import importlib.util

import pytest

INSTALLED = importlib.util.find_spec("schemathesis") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector):
    if INSTALLED and isinstance(collector, pytest.Module) and collector.path.name == "test_openapi.py":
        collector.config.pluginmanager.import_plugin("schemathesis.pytest.plugin")
