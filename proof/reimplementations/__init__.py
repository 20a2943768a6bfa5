"""A client that was written from the specification alone, and shares no code with ours."""
