"""Write the server's port number to a file when the server is ready, for programs that wait for the server."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator

from tidewire_server.user_paths import user_path


class PortFileError(Exception):
    """The port file cannot be written."""


@contextlib.contextmanager
def port_file(name: str | os.PathLike[str] | None, port: int | None) -> Iterator[Callable[[], None]]:
    """Prepare the port file by writing a temporary file, so that an error is reported before the server starts serving.

    Args:
        name: Path of the port file, or None for no file.
        port: Port number to write, or None if the server has a Unix domain socket instead.

    Yields:
        A function that moves the temporary file to its final path atomically. Call it when the server is ready.

    Raises:
        PortFileError: The file cannot be written, or there is no port.
    """
    if name is None:
        yield lambda: None
        return
    path = user_path(name)
    if port is None:
        raise PortFileError(f"cannot write the port file {path}: a Unix domain socket has no port")
    try:
        if path.is_dir():
            raise PortFileError(f"cannot write the port file {path}: the path is a folder")
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        # O_EXCL does not follow a link. The random name differs from temporary files that killed processes left behind.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w") as file:
            file.write(f"{port}\n")
    except OSError as error:
        raise PortFileError(f"cannot write the port file {path}: {error.strerror}") from None

    def publish() -> None:
        try:
            temporary.replace(path)  # replaces a link and does not follow it
        except OSError as error:
            raise PortFileError(f"cannot write the port file {path}: {error.strerror}") from None

    try:
        yield publish
    finally:
        temporary.unlink(missing_ok=True)
