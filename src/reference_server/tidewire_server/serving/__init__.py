"""A server on a socket: binding, signals, shutdown."""
