"""Where jobs, their logs and the queue live: the interface in `base`, a body per file."""
