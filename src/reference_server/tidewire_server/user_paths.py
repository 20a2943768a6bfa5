"""`user_path`, which converts a path that a user has set, as text or as a path, and expands `~`."""

import os
from pathlib import Path


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path in which `~` or `~USER` at the start is replaced by a home folder.

    The shell does not expand `~` in `--option=~/path`, in a configuration file and in the arguments of a function.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises an error for an unknown user
