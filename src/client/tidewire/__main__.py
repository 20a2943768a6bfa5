"""Entry point of the command `tidewire` and of `python -m tidewire`.

If the extra `cli` is not installed, the command prints one line that says how to install it.
"""

import sys
from importlib.metadata import version
from typing import Final

_OF_THE_EXTRA: Final = {"click", "rich", "shellingham", "typer"}
"""Modules that the extra `cli` installs."""


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: Always, except after `--version`; with 2 where the extra `cli` is not installed.
    """
    if sys.argv[1:] == ["--version"]:
        # The command line takes 0.3 s of CPU to import (bench/start.py), and a version needs none of it.
        print(version("tidewire"))
        return
    try:
        from tidewire.commands import cli  # noqa: PLC0415 - `pip install tidewire` alone has no command line
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] not in _OF_THE_EXTRA:
            raise
        missing = error.name or error
        print(f"tidewire: the command line needs {missing}: pip install 'tidewire[cli]'", file=sys.stderr)
        sys.exit(2)
    cli.main()


if __name__ == "__main__":
    main()
