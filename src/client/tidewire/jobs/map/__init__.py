"""`map`: many inputs, submitted in batch jobs, and their values in the order of the inputs."""
