"""Entry point of `python -m tidewire_server`, which runs the same command as `tidewire serve`."""

import sys

from tidewire.install_command import install_command


def main() -> None:
    """Run the command. If a dependency is not installed, print how to install it, and exit with code 2."""
    try:
        from tidewire_server.commands import serve_command  # noqa: PLC0415 - only the command needs typer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tidewire"):
            raise
        print(
            f"tidewire: `python -m tidewire_server` needs {error.name or error}: {install_command('server')}",
            file=sys.stderr,
        )
        sys.exit(2)
    serve_command.main()


if __name__ == "__main__":
    main()
