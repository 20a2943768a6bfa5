"""The blocking client's event loop thread, and its jobs."""
