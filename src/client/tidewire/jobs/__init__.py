"""Job objects of the client: their event streams, updates and results, batch jobs and `map`."""
