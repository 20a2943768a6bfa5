"""Text generation: the `generate` endpoint, the interface of an engine, and its bodies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidewire_server.server import Server


def add_generate(
    server: Server,
    *,
    model: Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    slots: int = 16,
    max_top: int = 20,
) -> None:
    """Give a server the endpoint `generate`, served by torch on a checkpoint; the engine ends with the server.

    Args:
        server: without an endpoint of this name.
        model: a local Hugging Face checkpoint; None is the small model that ships.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        threads: CPU threads of torch; None leaves its own choice.
        slots: requests that run at a time.
        max_top: the largest `top_logprobs`.

    Raises:
        LoadError: the checkpoint cannot be served (`tidewire_server.generation.torch_engine.LoadError`).
        ModuleNotFoundError: the extra `engine` is not installed.
    """
    # Here, because an engine in another process needs no torch, and the interface needs no server.
    from tidewire_server.generation.generate_endpoint import add_engine  # noqa: PLC0415
    from tidewire_server.generation.torch_engine import TorchEngine  # noqa: PLC0415
    from tidewire_server.model import default_model  # noqa: PLC0415

    folder = default_model() if model is None else model
    engine = TorchEngine.load(
        folder, device=device, dtype=dtype, threads=threads, slots=slots, max_top=max_top
    )
    add_engine(server, engine)
