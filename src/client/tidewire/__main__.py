"""`python -m tidewire` is the command `tidewire`."""

from tidewire.cli import main

if __name__ == "__main__":
    main()
