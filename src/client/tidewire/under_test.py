"""`python -m tidewire.under_test`: the public name of `tidewire.commands.under_test`."""

from tidewire.commands.under_test import main

if __name__ == "__main__":
    main()
