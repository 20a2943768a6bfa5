"""The job objects of the client, with their event streams, updates and results, and the implementation of `map`."""
