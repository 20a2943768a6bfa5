"""The `tidewire` command line."""
