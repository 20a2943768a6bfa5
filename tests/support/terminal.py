"""The command `tidewire`, run in this process, or in an emulated terminal whose screen tests can read."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import pyte
import typer.testing

from proof.forked_process import Forked
from tidewire.commands import cli

_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Program that makes its standard input the terminal whose keys send it signals, and then runs its arguments."""
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[D78])")
"""Escape sequences of the commands themselves: colors, and those with which the live view moves the cursor and erases."""


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


class Terminal:
    """A command that runs in a terminal emulator, in a `with` block.

    Args:
        arguments: Arguments of `tidewire`, or the whole command if `program` is true.
        columns: Width in cells.
        rows: Height in lines.
        program: Whether the arguments begin with the name of a program. Such a command is always `typed`.
        typed: Whether the terminal is also the standard input of the command, and its keys send signals. The start of the
            command then takes longer.
        environment: Environment variables of the command in addition to those of this process.
    """

    limit = 60.0
    """Maximum time that a wait takes, in seconds."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        typed: bool = False,
        program: bool = False,
        **environment: str,
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self.output = b""
        self._arguments = arguments
        self._typed = typed or program
        self._program = program
        hidden = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TIDEWIRE_URL", "TIDEWIRE_TOKEN"}
        self._environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self._environment |= {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment
        self._lock = threading.Lock()
        self._stream = pyte.ByteStream(self.screen)

    def __enter__(self) -> Self:
        self._main, side = pty.openpty()
        self._set_size()
        self._command: Any
        if self._typed:
            command = list(self._arguments)
            if not self._program:
                command = [sys.executable, "-W", "error", "-m", "tidewire", *command]
            command = [sys.executable, "-c", _TAKE_TERMINAL, *command]
            self._command = subprocess.Popen(
                command, stdin=side, stdout=side, stderr=side, env=self._environment, start_new_session=True
            )
            os.close(side)
        else:
            streams = (side, os.dup(side))
            self._command = Forked("tidewire", *self._arguments, env=self._environment, streams=streams)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._command.poll() is None:
            self._command.kill()
        self._command.communicate()
        self._reader.join(self.limit)
        os.close(self._main)

    def _read(self) -> None:
        try:
            while chunk := os.read(self._main, 65536):
                with self._lock:
                    self.output += chunk
                    self._stream.feed(chunk)
        except OSError:
            pass  # The command has closed the terminal.

    @property
    def lines(self) -> list[str]:
        """All lines, with those that have scrolled out of the screen, and without spaces at their ends."""
        with self._lock:
            history = self.screen.history.top
            old = ["".join(line[at].data for at in range(max(line, default=-1) + 1)) for line in history]
            return [line.rstrip() for line in [*old, *self.screen.display]]

    @property
    def text(self) -> str:
        """The lines that are not empty."""
        return "\n".join(line for line in self.lines if line)

    @property
    def joined(self) -> str:
        """The text without its line breaks and spaces, so that it does not depend on the width."""
        return re.sub(r"\s", "", self.text)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the text of the screen contains a regular expression."""
        found: list[re.Match[str] | None] = []

        def matches() -> bool:
            found[:] = [re.search(pattern, self.text)]
            return found[0] is not None

        self.wait_until(matches)
        assert found[0] is not None
        return found[0]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + self.limit
        while not condition():
            assert time.monotonic() < give_up, self.text
            time.sleep(0.01)

    def type(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def send_signal(self, number: int) -> None:
        self._command.send_signal(number)

    def resize(self, columns: int, rows: int) -> None:
        with self._lock:
            # The emulator removes lines at the top, but leaves the cursor below the screen.
            removed = max(0, self.screen.lines - rows)
            self.screen.resize(rows, columns)
            self.screen.cursor.y = max(0, self.screen.cursor.y - removed)
        self._set_size()
        self.send_signal(signal.SIGWINCH)

    def end(self) -> int:
        """Wait until the command has ended and its output was read, and return the exit code."""
        code = self._command.wait(self.limit)
        self._reader.join(self.limit)
        return code

    def color_of(self, word: str) -> str:
        """Return the color of the first character of a word on the screen."""
        with self._lock:
            row = next(at for at, line in enumerate(self.screen.display) if word in line)
            return self.screen.buffer[row][self.screen.display[row].index(word)].fg

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0)
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, size)
