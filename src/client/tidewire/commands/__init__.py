"""The command-line interface `tidewire`."""
