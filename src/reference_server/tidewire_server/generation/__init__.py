"""Text generation: the `generate` endpoint, the interface for inference engines, and an engine that uses torch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import os

    from tidewire_server.endpoints.endpoint import OnRestart
    from tidewire_server.generation.engine_interface import Engine
    from tidewire_server.server import Server


def add_generate(
    server: Server,
    *,
    model: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    slots: int = 16,
    context: int | None = None,
    max_top: int = 20,
    max_num_beams: int = 8,
    max_schema_bytes: int = 8192,
    max_mask_share: float = 0.25,
    on_restart: OnRestart | Literal["auto"] = "auto",
    share_prefixes: bool = False,
    profile: str | os.PathLike[str] | None = None,
) -> None:
    """Add the endpoint `generate` to a server, with a torch engine that runs a checkpoint.

    The server closes the engine when it stops. With `tidewire serve --no-functions`, the server reads only the configuration
    and the tokenizer of the checkpoint, and workers load the weights.

    Args:
        server: The server. It must not have an endpoint named `generate` yet.
        model: Folder of a local Hugging Face checkpoint. `~` is expanded. None selects the small model that is part of this package.
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        dtype: `auto`, `float32`, `bfloat16`, `float16` or `float64`.
        threads: Number of CPU threads for torch. None keeps torch's default.
        slots: Maximum number of requests that run at the same time.
        context: Maximum number of tokens of the prompt and the generated text together. None selects the model's maximum. If
            a cache of 4 GiB is too small for the model's maximum, None selects the largest number that fits.
        max_top: Maximum value of `top_logprobs`.
        max_num_beams: Maximum value of `num_beams`. A beam search needs one slot for each beam, so values above `slots` have
            no effect. 1 disables beam search. With beam search, the endpoint has the capability `rollback`.
        max_schema_bytes: Maximum size of the member `json_schema` as compact JSON. Its other limits are fixed
            (`tidewire_server.generation.schema_limits.SchemaLimits`).
        max_mask_share: Limit for requests with a `json_schema`, for which each step computes a mask of the allowed tokens.
            If other requests run in the same steps, and the masks of one request take more than this fraction of the
            steps' time, the request fails. 1 for no limit.
        on_restart: How the server treats unfinished generations after a restart, unless the log is in memory. With
            "continue", they continue after the logged tokens, and no text is retracted. In float32, with a seed or a
            temperature of 0, the text is the same as without a restart. Each event and each value then contains token
            ids, even if the request did not ask for them. A beam search, and a text that another model has generated,
            run again from the start. With "rerun", all generations run again from the start. With "fail", they fail
            with `worker_lost`. "auto" means "continue", unless the log is in memory. Such a log does not survive a
            restart, so "auto" then adds no token ids.
        share_prefixes: Whether prompts of different callers that begin with the same tokens share cached keys and values.
            By default, prompts share them only if they have the same principal or, if the server has no access tokens,
            the same client address. The time until the first token shows whether a prompt was processed before, so
            share prefixes only if all callers may know each other's prompts.
        profile: Folder for trace files of a few engine steps. None disables profiling.

    Raises:
        LoadError: The checkpoint is not supported (`tidewire_server.generation.torch_engine.LoadError`).
        ModuleNotFoundError: The extra `engine` is not installed.
    """
    # Read the clock before the imports, because the logged duration must include the import of torch, which takes seconds.
    begun = time.perf_counter()
    # These imports are inside the function, because importing this package must require neither torch nor the server.
    from tidewire_server.default_model import default_model  # noqa: PLC0415
    from tidewire_server.generation.generate_endpoint import add_engine  # noqa: PLC0415
    from tidewire_server.generation.schema_limits import SchemaLimits  # noqa: PLC0415
    from tidewire_server.user_paths import user_path  # noqa: PLC0415

    folder = default_model() if model is None else user_path(model)
    from tidewire_server.generation.torch_engine import EngineWithoutWeights, TorchEngine  # noqa: PLC0415
    from tidewire_server.roles import RUNS_FUNCTIONS  # noqa: PLC0415

    engine: Engine
    common: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "slots": slots,
        "context": context,
        "max_top": max_top,
        "max_num_beams": max_num_beams,
        "schema_limits": SchemaLimits(max_schema_bytes=max_schema_bytes),
    }
    if RUNS_FUNCTIONS.get():
        engine = TorchEngine.load(
            folder,
            threads=threads,
            max_mask_share=max_mask_share,
            profile=None if profile is None else user_path(profile),
            since=begun,
            **common,
        )
    else:
        engine = EngineWithoutWeights.load(folder, **common)
    add_engine(server, engine, on_restart=on_restart, share_prefixes=share_prefixes)
