"""Public entry point `python -m tidewire.under_test`. It starts the adapter with which the conformance suite tests this
client.
"""

from tidewire.commands.conformance_adapter import main

if __name__ == "__main__":
    main()
