"""What a function writes becomes events in its job's log."""
