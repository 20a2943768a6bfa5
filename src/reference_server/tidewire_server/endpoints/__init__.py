"""A function as an endpoint: its signature, its schemas, and calling it for one input."""
