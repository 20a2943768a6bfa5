"""Serving on a socket: binding, signals, shutdown."""
