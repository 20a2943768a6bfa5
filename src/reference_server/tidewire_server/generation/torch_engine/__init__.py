"""The engine on torch: model code and checkpoints from transformers; cache, scheduler, sampler and top-n are here.

Only this package imports torch.
"""

from tidewire_server.generation.torch_engine.engine_loop import TorchEngine
from tidewire_server.generation.torch_engine.load_checkpoint import LoadError

__all__ = ["LoadError", "TorchEngine"]
