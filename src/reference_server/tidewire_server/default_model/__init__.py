"""The default model, a small language model for Python code, and the script that trained it. See `MODEL_CARD.md`."""

from pathlib import Path


def default_model() -> Path:
    """Return the folder of the default model. The model is a Hugging Face checkpoint that is part of this package."""
    return Path(__file__).parent
