"""The engine on torch: model code and checkpoints from transformers; cache, scheduler, sampler and top-n are here.

Only this package imports torch.
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
