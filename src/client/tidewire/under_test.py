"""Former name of `python -m tidewire.conformance_adapter`."""

from tidewire.conformance_adapter import main

if __name__ == "__main__":
    main()
