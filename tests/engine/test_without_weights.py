"""A server without functions checks the inputs of `generate` with the files of a model that has no weights."""

import asyncio
import shutil

import pytest

from tidewire_server import Server
from tidewire_server.default_model import default_model
from tidewire_server.errors import ProblemError
from tidewire_server.generation import add_generate
from tidewire_server.generation.torch_engine import EngineWithoutWeights, LoadError, TorchEngine
from tidewire_server.roles import RUNS_FUNCTIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of the default model without its weights."""
    folder = tmp_path_factory.mktemp("model") / default_model().name
    shutil.copytree(
        default_model(), folder, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__", "*.py")
    )
    return folder


def test_the_capabilities_are_those_of_the_engine(folder):
    engine = TorchEngine.load(default_model(), device="cpu", slots=3)
    without = EngineWithoutWeights.load(folder, device="cpu", slots=3)
    names = (
        "context",
        "max_top",
        "max_num_beams",
        "concurrency",
        "members",
        "architecture",
        "dtype",
        "device",
        "tokens",
    )
    assert [getattr(without.caps, name) for name in names] == [getattr(engine.caps, name) for name in names]
    assert without._checkpoint.end_ids == engine._checkpoint.end_ids
    assert without.caps.vocabulary.body() == engine.caps.vocabulary.body()


def test_add_generate_reads_no_weights_in_a_server_without_functions(folder):
    token = RUNS_FUNCTIONS.set(False)
    try:
        add_generate(server := Server(), model=folder, device="cuda", slots=2)
    finally:
        RUNS_FUNCTIONS.reset(token)
    endpoint = server.endpoints["generate"]
    assert endpoint.concurrency_limit == 2
    assert endpoint.capabilities(1).model.device == "cuda"
    asyncio.run(endpoint.admit({"prompt": "def f("}, "/input"))
    with pytest.raises(ProblemError, match="json_schema"):
        asyncio.run(endpoint.admit({"prompt": "def f(", "json_schema": {"type": 1}}, "/input"))
    with pytest.raises(ProblemError, match="context"):
        asyncio.run(endpoint.admit({"prompt": "def f(", "max_tokens": 100_000}, "/input"))


def test_the_engine_itself_needs_the_weights(folder):
    with pytest.raises(LoadError, match=r"no \*.safetensors"):
        TorchEngine.load(folder, device="cpu")
