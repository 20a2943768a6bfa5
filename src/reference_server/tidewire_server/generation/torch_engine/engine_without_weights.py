"""Engine of a server with `--no-functions` (`EngineWithoutWeights`). It only checks inputs; workers generate the text."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from typing import Any, Self

from tidewire_server.generation.engine_interface import Delta, EngineError, LoggedTokens, check_members
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.schema_limits import DEFAULT_LIMITS, SchemaLimits
from tidewire_server.generation.torch_engine.cache_sizing import context_that_fits
from tidewire_server.generation.torch_engine.capabilities import capabilities_of
from tidewire_server.generation.torch_engine.detokenizer import can_continue
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load_without_weights
from tidewire_server.generation.torch_engine.request_reader import RequestReader
from tidewire_server.user_paths import user_path

_log = logging.getLogger(__name__)


class EngineWithoutWeights:
    """Engine that checks inputs with the configuration and the tokenizer of a model, and does not load its weights.

    It has the capabilities of a `TorchEngine` with the same arguments on the same device. If `device` is "auto" and the
    workers have another kind of device, set `context`, because its default depends on the device.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        slots: int = 16,
        context: int | None = None,
        max_top: int = 20,
        max_num_beams: int = 8,
        schema_limits: SchemaLimits = DEFAULT_LIMITS,
    ) -> None:
        """Create the engine. The arguments are those of `TorchEngine`."""
        fitting = context_that_fits(checkpoint, slots, context=context)
        self.caps = capabilities_of(
            checkpoint, context=fitting, slots=slots, max_top=max_top, max_num_beams=max_num_beams
        )
        self._checkpoint = checkpoint
        self._reader = RequestReader(checkpoint, fitting, schema_limits)

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, device: str = "auto", dtype: str = "auto", **options: Any
    ) -> Self:
        """Read the configuration and the tokenizer in a folder, and create the engine.

        Raises:
            LoadError: The model is not supported, or its files cannot be read.
        """
        path = user_path(folder)
        engine = cls(load_without_weights(path, device=device, dtype=dtype), **options)
        _log.info("read the configuration and the tokenizer of the model %s; workers load its weights", path)
        return engine

    async def check(self, request: Generate) -> None:
        """Validate a request; see `Engine.check`."""
        check_members(request, self.caps)
        await self._reader.check(request)

    def continues(self, request: Generate, logged: LoggedTokens) -> bool:
        c = self._checkpoint
        return can_continue(request, logged, c.vocabulary, c.end_ids)

    async def generate(self, request: Generate, logged: LoggedTokens | None = None) -> AsyncGenerator[Delta]:
        """Raise an `EngineError`, because this process runs no functions."""
        raise EngineError("this server runs no functions, so it has not loaded the weights of the model")
        yield Delta()

    async def close(self) -> None:
        """Do nothing, because the engine has no thread."""
