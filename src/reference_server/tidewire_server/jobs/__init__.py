"""Jobs from submit to retention: the job service, the queue, concurrency, recovery after a restart."""
