"""Persistent state of a server (jobs, event logs, queue): protocols in `interfaces`, with in-memory and SQLite implementations."""
