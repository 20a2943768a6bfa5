"""Code that the SQLite and PostgreSQL stores share: rows and cache of a log, checkpoints, threads, and test writes."""
