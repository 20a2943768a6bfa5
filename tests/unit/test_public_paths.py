"""Public import paths, which stay valid when the implementing modules move."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from support.tables import for_each_case

PATHS = {
    "tidewire": [
        "Client", "AsyncClient", "Job", "AsyncJob", "BatchJob", "AsyncBatchJob", "Update", "ItemUpdate", "TextDelta",
        "Checkpoint", "RetryPolicy", "Hooks", "MapProgress", "Token", "TidewireError", "errors",
    ],
    "tidewire.errors": ["TidewireError"],
    "tidewire.protocol.sse": ["Decoder", "Event", "EventTooLargeError", "encode"],
    "tidewire.protocol.diff": ["diff", "apply", "DiffError", "UnknownOpError"],
    "tidewire.protocol.document": ["Document"],
    "tidewire.protocol.follower": [
        "Follower", "Applied", "Notice", "Ignored", "Reconnect", "Fatal", "FatalKind", "Cause", "Outcome",
    ],
    "tidewire.following.follower": [
        "Follower", "Applied", "Notice", "Ignored", "Reconnect", "Fatal", "FatalKind", "Cause", "Outcome",
    ],
    "tidewire.logprobs": ["Logprobs"],
    "tidewire.mapping": ["MapProgress"],
    "tidewire.testing": ["Answer", "FakeEndpoint", "FakeServer", "FakeToken", "Submit"],
    "tidewire_server": ["Server", "Stream", "Context", "ItemError", "Append", "Last"],
    "tidewire_server.generation": ["add_generate"],
    "tidewire_server.model": ["default_model"],
    "tidewire_server.default_model": ["default_model"],
}  # fmt: skip


@for_each_case((module, name) for module, names in PATHS.items() for name in names)
def test_public_name_is_importable_from_its_path(module, name):
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize(
    "module",
    [
        "tidewire.under_test",
        "tidewire.conformance_adapter",
        "tidewire.testing.pytest_plugin",
        "tidewire_conformance.pytest_plugin",
        "tidewire_server.model.recipe",
        "tidewire_server.default_model.recipe",
        "tidewire.__main__",
        "tidewire_server.__main__",
        "tidewire_conformance.__main__",
    ],
)
def test_module_started_or_loaded_by_name_exists(module):
    assert find_spec(module) is not None


def test_former_name_of_the_conformance_adapter_still_runs():
    done = subprocess.run(
        [sys.executable, "-m", "tidewire.under_test", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("usage: python -m tidewire.conformance_adapter")
