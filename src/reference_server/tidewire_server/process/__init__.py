"""`tidewire serve`: the command line, its configuration, and the start-up banner."""
