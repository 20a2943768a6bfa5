"""How the commands `serve`, `worker` and `compact` exit: error messages, exit codes, and threads that are still running."""

import logging
import os
import sys
import threading
from contextvars import ContextVar
from typing import Final, NoReturn

import typer

from tidewire.install_command import install_command

_log = logging.getLogger(__name__)

COMMAND: Final[ContextVar[str]] = ContextVar("command", default="serve")
"""Name of the running command, for its messages."""

_LAST_GRACE = 1.0
"""Number of seconds to wait for the threads of user functions after the server has stopped."""


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Print a message with the name of the command, and exit."""
    for line in message.splitlines():
        print(f"tidewire {COMMAND.get()}: {line}", file=sys.stderr)
    raise typer.Exit(code)


def fail_without_extra(error: ModuleNotFoundError, extra: str) -> NoReturn:
    """Print how to install a missing optional dependency, and exit. `extra` is the name of the extra that contains it.

    Raises:
        ModuleNotFoundError: The missing module belongs to Tidewire, so its import is a bug.
    """
    if (error.name or "").startswith("tidewire"):
        raise error
    fail(f"{error.name} is not installed; install it with: {install_command(extra)}")


def print_banner(banner: str) -> None:
    """Print the startup banner. If this fails, for example because the disk is full, log the error and continue."""
    try:
        print(banner, flush=True)
    except OSError as error:
        _log.warning("the startup banner cannot be written to standard output: %s", error.strerror)
        # The interpreter flushes standard output again at exit, which would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_despite_threads() -> None:
    """End the process even if a thread that a user function has started is still running.

    Python itself would wait for that thread forever.
    """
    threads = [
        each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()
    ]
    for thread in threads:
        thread.join(_LAST_GRACE / len(threads))
    threads = [each for each in threads if each.is_alive()]
    if threads:
        names = ", ".join(each.name for each in threads)
        _log.warning("threads still running at exit: %s", names)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)
