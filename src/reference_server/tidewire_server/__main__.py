"""`python -m tidewire_server`: the serve command by itself."""

from tidewire_server.process.cli import main

if __name__ == "__main__":
    main()
