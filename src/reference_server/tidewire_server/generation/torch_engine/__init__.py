"""Inference engine on torch, with continuous batching.

Model code and checkpoints come from transformers. The key-value cache, the scheduler, the sampler and the log-probabilities
are implemented here. Only this package and the recipe of the default model import torch.
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
