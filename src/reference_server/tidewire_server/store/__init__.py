"""Storage of jobs, event logs and the queue.

The module `interfaces` defines the storage protocols. There is an implementation in memory and one in SQLite.
"""
