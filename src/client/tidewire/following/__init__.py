"""Decisions of the client, without I/O: the state of a stream, and the action after each event, response and fault."""
