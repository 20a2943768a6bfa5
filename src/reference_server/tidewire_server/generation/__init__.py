"""Text generation: the `generate` endpoint, the interface of an engine, and its bodies."""
