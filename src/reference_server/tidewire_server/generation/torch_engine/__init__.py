"""Inference engine that uses torch, with continuous batching.

The transformers library provides the code of the models and loads checkpoints. This package implements the key-value
cache, the scheduler, the sampler and the log-probabilities. In this project, only this package and the training script
of the default model import torch.
"""

try:
    from tidewire_server.generation.torch_engine.engine_loop import TorchEngine
    from tidewire_server.generation.torch_engine.load_checkpoint import LoadError
except ModuleNotFoundError as error:
    if (error.name or "").startswith("tidewire"):
        raise
    raise ModuleNotFoundError(
        f"{error.name or error} is not installed: pip install 'tidewire[engine]'", name=error.name
    ) from None

__all__ = ["LoadError", "TorchEngine"]
