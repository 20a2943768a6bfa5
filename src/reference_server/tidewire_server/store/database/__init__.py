"""Parts that the stores in SQLite and PostgreSQL share: the rows and the cache of a log, checkpoints, threads, test writes."""
