"""What only a client decides: the state of a stream, and the action after each event, response and fault. It does no I/O."""
