"""SQLite implementation of the store: one file per server, and jobs that survive a restart of the server process."""
