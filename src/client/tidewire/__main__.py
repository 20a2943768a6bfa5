"""Entry point of the command `tidewire` and of `python -m tidewire`.

If the extra `cli` is not installed, the command prints one line that says how to install it.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tidewire.install_command import install_command

_OF_THE_EXTRA: Final = {"click", "rich", "shellingham", "typer"}
"""Modules that the extra `cli` installs."""
_EXTRAS: Final = {
    "serve": "server",
    "worker": "server",
    "compact": "server",
    "conformance": "conformance",
    "codegen": "codegen",
}
"""Extras of the commands that need more packages than `cli` installs. Each of these extras includes `cli`."""

_HELP: Final = {"--help", "--help-all", "--version"}
"""Options that make a command print its help or the version. Without arguments, the command prints its help, too."""


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: Always, except after `--version`. The exit code is 2 if the extra `cli` is not installed, 5 if standard
            output cannot be written, 130 after Ctrl+C, and 141 if the output pipe was closed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller, such as cron
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
    try:
        try:
            _run_command()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        # The commands handle this exception, but it may also interrupt their import, which takes 0.3 s.
        sys.exit(130)
    except SystemExit as error:
        # If the output pipe is closed, rich and typer end the help with the exit code 1.
        sys.exit(141 if isinstance(error.__context__, BrokenPipeError) else error.code)
    except OSError as error:
        if sys.argv[1:] and not _HELP & {*sys.argv} and not _output_fails():
            raise
        # The interpreter flushes standard output again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(141)
        print(f"tidewire: standard output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(5)


def _output_fails() -> bool:
    """Return whether standard output cannot be written. The `OSError` of a write does not name the file."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _run_command() -> None:
    if sys.argv[1:] == ["--version"]:
        # Importing the commands takes 0.3 s of CPU (bench/start.py). To print the version, they are not needed.
        print(version("tidewire"))
        return
    try:
        from tidewire.commands import cli  # noqa: PLC0415 - `pip install tidewire` alone has no command line
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] not in _OF_THE_EXTRA:
            raise
        missing = error.name or error
        extra = _EXTRAS.get("".join(sys.argv[1:2]), "cli")
        print(f"tidewire: the command line needs {missing}: {install_command(extra)}", file=sys.stderr)
        sys.exit(2)
    cli.main()


if __name__ == "__main__":
    main()
