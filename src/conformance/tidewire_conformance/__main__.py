"""Entry point of the conformance suite: `python -m tidewire_conformance URL`."""

import sys


def main() -> None:
    """Run the suite, or print the pip command that installs its missing dependency."""
    try:
        from tidewire_conformance import cli  # noqa: PLC0415 - needs the extra `conformance`
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tidewire"):
            raise
        from tidewire.install_command import install_command  # noqa: PLC0415 - only for this message

        print(
            f"tidewire: `python -m tidewire_conformance` needs {error.name or error}: {install_command('conformance')}",
            file=sys.stderr,
        )
        sys.exit(2)
    cli.main()


if __name__ == "__main__":
    main()
