"""`python -m tidewire.under_test`: the public name of `tidewire.commands.conformance_adapter`."""

from tidewire.commands.conformance_adapter import main

if __name__ == "__main__":
    main()
