"""In-memory implementation of the store. The SQLite store also uses its `MemoryQueue`."""
