"""Interpret paths and store URLs that users pass in arguments and settings."""

import os
import re
import stat
from pathlib import Path
from typing import Final

MEMORY: Final = "memory"
_SQLITE: Final = "sqlite:///"
_POSTGRESQL: Final = ("postgresql://", "postgres://")
_PASSWORD: Final = re.compile(r"(:/{1,2}[^:/?#@]*:).*@")
"""Matches the password in a URL, even if a slash is missing. A password that is not percent-encoded may contain any
character, so everything up to the last `@` is treated as the password.
"""
_PASSWORD_WITHOUT_HOST: Final = re.compile(r"(:/{1,2}[^:/?#@\[]*:)(?![0-9]*(?:[,/?]|$))[^@]*$")
"""Matches the password in a URL without `@`, for example because the host was forgotten. Digits alone are treated as a port."""
_PASSWORD_PARAMETER: Final = re.compile(r"(\bpas\w*\s*=\s*|password\s*=\s*)[^&\s]+", re.IGNORECASE)
"""Matches a URL parameter with the name `password`, or with a likely misspelling of this name."""


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return the path, with `~` or `~USER` at its start replaced by the user's home folder.

    The shell does not expand `~` in `--option=~/path`, in a configuration file and in the arguments of a function.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises an error for an unknown user


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at a path.

    Unlike `Path.is_dir` of Python 3.14, this function does not report a folder as missing that the user may not enter.

    Raises:
        OSError: The path cannot be examined.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def file_of(name: str) -> Path | None:
    """Return the path of the file in a store URL, or None if the store is not in a file.

    Raises:
        ValueError: The URL is not a store URL.
    """
    if name == MEMORY or is_database(name):
        return None
    if not name.startswith(_SQLITE) or name == _SQLITE:
        raise ValueError(
            f"{without_password(name)!r} is not a valid log; use memory, sqlite:///PATH (four slashes for an "
            "absolute path), or postgresql://USER@HOST/DATABASE"
        )
    return user_path(name.removeprefix(_SQLITE)).absolute()


def is_database(name: str) -> bool:
    """Return whether a store URL refers to a PostgreSQL database."""
    return name.startswith(_POSTGRESQL)


def without_password(name: str) -> str:
    """Replace every password in a store URL by `***`."""
    name = _PASSWORD_WITHOUT_HOST.sub(r"\1***", _PASSWORD.sub(r"\1***@", name))
    return _PASSWORD_PARAMETER.sub(r"\1***", name)
