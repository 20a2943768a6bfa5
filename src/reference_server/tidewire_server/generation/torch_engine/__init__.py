"""Inference engine that uses torch, with continuous batching.

The transformers library provides the code of the models and loads checkpoints. This package implements the key-value
cache, the scheduler, the sampler and the log-probabilities. In this project, only this package and the training script
of the default model import torch.
"""

from tidewire.install_command import install_command

try:
    from tidewire_server.generation.checkpoint_folder import LoadError
    from tidewire_server.generation.torch_engine.engine import TorchEngine
    from tidewire_server.generation.torch_engine.engine_without_weights import EngineWithoutWeights
except ModuleNotFoundError as error:
    if (error.name or "").startswith("tidewire"):
        raise
    raise ModuleNotFoundError(
        f"text generation needs {error.name or error}, which is not installed: {install_command('engine')}",
        name=error.name,
    ) from None

__all__ = ["EngineWithoutWeights", "LoadError", "TorchEngine"]
