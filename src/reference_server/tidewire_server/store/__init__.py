"""Storage of jobs, event logs and the queue: protocols in `interfaces`, implementations in memory and in SQLite."""
