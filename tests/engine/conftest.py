import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from support.model_checkpoints import random_llama
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load(random_llama(tmp_path_factory.mktemp("random")), device="cpu")


@pytest.fixture
def start() -> Iterator[Callable[..., TorchEngine]]:
    """Return a function that starts an engine on a checkpoint or folder; all engines are closed after the test."""
    engines = []

    def start_one(checkpoint: Checkpoint | Path, **settings: int) -> TorchEngine:
        if isinstance(checkpoint, Path):
            checkpoint = load(checkpoint, device="cpu")
        engines.append(TorchEngine(checkpoint, **settings))
        return engines[-1]

    yield start_one
    for engine in engines:
        asyncio.run(engine.close())


@pytest.fixture
def engine(start: Callable[..., TorchEngine], random_checkpoint: Checkpoint) -> TorchEngine:
    return start(random_checkpoint)
