"""The commands `tidewire serve`, `worker` and `compact`, with their options, their configuration and the banner."""
