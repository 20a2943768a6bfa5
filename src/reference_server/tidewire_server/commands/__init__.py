"""The command `tidewire serve`, with its options, its configuration and its startup banner."""
