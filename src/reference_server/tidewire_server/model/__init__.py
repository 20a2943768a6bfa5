"""The small language model that ships, and the recipe that made it (`MODEL_CARD.md` says what it is for)."""

from pathlib import Path


def default_model() -> Path:
    """The folder of the model that ships: an ordinary Hugging Face checkpoint."""
    return Path(__file__).parent
