"""Default model: a small language model of Python code, and the recipe that trained it. See `MODEL_CARD.md`."""

from pathlib import Path


def default_model() -> Path:
    """Return the folder of the default model, a Hugging Face checkpoint that is part of this package."""
    return Path(__file__).parent
