"""How a store is named: what `--log` takes."""

from pathlib import Path
from typing import Final

MEMORY: Final = "memory"
_SQLITE: Final = "sqlite:///"


def file_of(name: str) -> Path | None:
    """The file that a name means; None for memory.

    Raises:
        ValueError: It names no store.
    """
    if name == MEMORY:
        return None
    if not name.startswith(_SQLITE) or name == _SQLITE:
        raise ValueError(
            f"{name!r} names no log: it is memory, or sqlite:///PATH (four slashes for an absolute path)"
        )
    return Path(name.removeprefix(_SQLITE)).absolute()
