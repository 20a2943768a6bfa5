"""`python -m tidewire` is the command `tidewire`."""

from tidewire.commands.cli import main

if __name__ == "__main__":
    main()
