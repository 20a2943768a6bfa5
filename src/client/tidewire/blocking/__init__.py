"""The job objects of the blocking client, and the thread that runs the blocking client's event loop."""
