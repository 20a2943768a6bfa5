"""Where jobs, their logs and the queue are stored: the protocols in `interfaces`, implementations in memory and in SQLite."""
