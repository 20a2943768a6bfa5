"""Paths that users pass in arguments and settings."""

import os
from pathlib import Path


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return the path, with `~` or `~USER` at its start replaced by the user's home folder.

    The shell does not expand `~` in `--option=~/path`, in a configuration file and in the arguments of a function.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises an error for an unknown user
