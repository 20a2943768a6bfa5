"""Implementation of `map`, which runs many inputs in batch jobs and yields the values in the order of the inputs."""
