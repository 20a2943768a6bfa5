"""The file that tells whoever waits for a server on which port it answers."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path


class PortFileError(Exception):
    """The file cannot be written."""


@contextlib.contextmanager
def port_file(name: str | os.PathLike[str] | None, port: int) -> Iterator[Callable[[], None]]:
    """Make ready to tell the port: what cannot be written is told before anything is served.

    Args:
        name: The file; None for none.
        port: What it gets.

    Yields:
        What puts the file in its place, whole at once.

    Raises:
        PortFileError: It cannot be written; says which, and why.
    """
    if name is None:
        yield lambda: None
        return
    path = Path(name)
    if path.is_dir():
        raise PortFileError(f"cannot write the port file {path}: that is a folder")
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.write_text(f"{port}\n")
    except OSError as error:
        raise PortFileError(f"cannot write the port file {path}: {error.strerror}") from None

    def put() -> None:
        beside.replace(path)

    try:
        yield put
    finally:
        beside.unlink(missing_ok=True)
