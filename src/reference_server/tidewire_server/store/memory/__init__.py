"""In-memory implementation of the store. `MemoryQueue` also is the queue of the store in SQLite."""
