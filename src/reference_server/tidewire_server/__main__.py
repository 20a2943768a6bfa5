"""`python -m tidewire_server`: the serve command by itself."""

import sys


def main() -> None:
    """Run the command, or print the line that installs what it lacks."""
    try:
        from tidewire_server.process import cli  # noqa: PLC0415 - a server inside an application needs no typer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tidewire"):
            raise
        print(
            f"tidewire: `python -m tidewire_server` needs {error.name or error}: pip install 'tidewire[server]'",
            file=sys.stderr,
        )
        sys.exit(2)
    cli.main()


if __name__ == "__main__":
    main()
