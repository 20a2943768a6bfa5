"""Storage of jobs, event logs and the queue.

`interfaces` defines the protocols, which are implemented in memory and in SQLite.
"""
