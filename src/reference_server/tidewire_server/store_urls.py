"""Parse the URL of a store, as passed in the `log` setting."""

from pathlib import Path
from typing import Final

MEMORY: Final = "memory"
_SQLITE: Final = "sqlite:///"


def file_of(name: str) -> Path | None:
    """Return the path of the file that a store URL names, or None for the in-memory store.

    Raises:
        ValueError: The URL is not a store URL.
    """
    if name == MEMORY:
        return None
    if not name.startswith(_SQLITE) or name == _SQLITE:
        raise ValueError(
            f"{name!r} is not a log: use memory, or sqlite:///PATH (four slashes for an absolute path)"
        )
    return Path(name.removeprefix(_SQLITE)).absolute()
