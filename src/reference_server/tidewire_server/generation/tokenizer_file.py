"""Vocabulary and token counts for a model that another server runs (`TokenizerFile`). This module does not import torch."""

from __future__ import annotations

import json
from pathlib import Path

from tidewire_server.generation.checkpoint_folder import LoadError
from tidewire_server.generation.tokenizer_bytes import UnsupportedTokenizerError, vocabulary_of


class TokenizerFile:
    """Vocabulary and token counts of a model.

    Args:
        folder: Folder with `tokenizer.json`, or the file itself. `config.json` in the same folder contains the number of ids.

    Raises:
        LoadError: The tokenizer cannot be read, or is not supported.
        ModuleNotFoundError: The package tokenizers is not installed.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - needed only with a tokenizer

        path = folder
        try:
            path = folder / "tokenizer.json" if folder.is_dir() else folder
            content = json.loads(path.read_text(encoding="utf-8"))
            self._tokenizer = Tokenizer.from_str(json.dumps(content))
        except OSError as error:
            raise LoadError(f"cannot read the tokenizer {path}: {error.strerror}") from None
        except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself
            raise LoadError(f"cannot read the tokenizer {path}: {error}") from None
        ids = self._tokenizer.get_vocab()
        size = max(ids.values(), default=-1) + 1
        try:
            config = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
            size = max(size, int(config["vocab_size"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # The file is optional.
        try:
            self.vocabulary = vocabulary_of(content, ids, size)
        except UnsupportedTokenizerError as error:
            raise LoadError(f"{path}: {error}") from None

    def count(self, text: str) -> int:
        """Return the number of tokens of a prompt. The time is proportional to the length. The GIL is not held."""
        return len(self._tokenizer.encode(text).ids)
