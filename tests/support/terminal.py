"""The command `tidewire`, run in this process, or with a terminal of a certain width as its output."""

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from typing import Any

import typer.testing

from proof.forked_process import Forked
from tidewire.commands import cli

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run(*arguments: str, stdin: str = "") -> Any:
    """Run a command in this process, because starting an interpreter for each command is slow."""
    result = typer.testing.CliRunner().invoke(cli.app, list(arguments), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def shown_on_terminal(width: int, *arguments: str) -> str:
    """Run a `tidewire` command on a terminal, and return everything that it writes there."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    environment |= {"TERM": "xterm", "NO_COLOR": "1"}
    streams = (side, os.dup(side))
    shown: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(main, 65536):
                shown.append(chunk)
        except OSError:
            pass  # The command has closed the terminal.

    with Forked("tidewire", *arguments, env=environment, streams=streams) as command:
        reader = threading.Thread(target=read)
        reader.start()
        command.wait()
        reader.join(30)
    os.close(main)
    return _ESCAPES.sub("", b"".join(shown).decode()).replace("\r\n", "\n")
