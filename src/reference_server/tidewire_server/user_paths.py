"""Paths, and URLs of stores, that users pass in arguments and settings."""

import os
from pathlib import Path
from typing import Final

MEMORY: Final = "memory"
_SQLITE: Final = "sqlite:///"


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return the path, with `~` or `~USER` at its start replaced by the user's home folder.

    The shell does not expand `~` in `--option=~/path`, in a configuration file and in the arguments of a function.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises an error for an unknown user


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
