"""Public entry point `python -m tidewire.under_test` of the adapter that lets the conformance suite drive this client."""

from tidewire.commands.conformance_adapter import main

if __name__ == "__main__":
    main()
