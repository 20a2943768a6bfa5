"""The life of a job on the server: admission, scheduling, execution, retention, and recovery after a restart."""
