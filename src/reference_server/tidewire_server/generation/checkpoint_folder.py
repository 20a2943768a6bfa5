"""Size of a checkpoint folder, and errors for a folder that cannot be loaded. This module does not import torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
"""Pattern of the names of models on the Hugging Face hub, such as `Qwen/Qwen3-0.6B`."""


class LoadError(Exception):
    """The checkpoint cannot be loaded, or is not supported. The message gives the reason."""


def missing_folder(folder: Path) -> str:
    """Return the error message for a model folder that does not exist, or is not a folder."""
    if folder.exists():
        return f"{folder} is a file; pass the folder of a checkpoint, with config.json, tokenizer.json and *.safetensors"
    name = str(folder)
    if not _HUB_NAME.fullmatch(name) or name.startswith("."):
        return f"folder {folder} not found; pass the folder of a local checkpoint, because the server does not download models"
    return (
        f"folder {folder} not found, and the server does not download models; if this is a model on Hugging Face, run: "
        f"hf download {name} --local-dir {folder.name}, and use the folder {folder.name}"
    )


def size_of(folder: Path) -> str:
    """Return the size of a checkpoint's weights as text, such as `1.2 GB`."""
    return bytes_text(sum(file.stat().st_size for file in folder.glob("*.safetensors")))


def bytes_text(count: int) -> str:
    """Return a number of bytes as text, such as `1.2 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
