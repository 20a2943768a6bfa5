"""Parse the value of the `log` setting, which is the URL of a store."""

from pathlib import Path
from typing import Final

from tidewire_server.user_paths import user_path

MEMORY: Final = "memory"
_SQLITE: Final = "sqlite:///"


def file_of(name: str) -> Path | None:
    """Return the path of the file in a store URL, or None for the in-memory store.

    Raises:
        ValueError: The URL is not a store URL.
    """
    if name == MEMORY:
        return None
    if not name.startswith(_SQLITE) or name == _SQLITE:
        raise ValueError(
            f"{name!r} is not a valid log; use memory, or sqlite:///PATH (four slashes for an absolute path)"
        )
    return user_path(name.removeprefix(_SQLITE)).absolute()
