"""Blocking job objects, and the thread that runs the blocking client's event loop."""
