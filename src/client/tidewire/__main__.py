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
"""Extra of each command that needs more than the extra `cli`. Each of these extras includes `cli`."""


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: Always, except after `--version`. The exit code is 2 if the extra `cli` is not installed, and 130
            after Ctrl+C.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, such as cron
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    if sys.argv[1:] == ["--version"]:
        # Importing the commands takes 0.3 s of CPU (bench/start.py). To print the version, they are not needed.
        print(version("tidewire"))
        return
    try:
        _run_command()
    except KeyboardInterrupt:
        # The commands handle this exception, but it may also interrupt their import, which takes 0.3 s.
        sys.exit(130)


def _run_command() -> None:
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
