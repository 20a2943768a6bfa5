"""A job as its reader sees it: its stream, its updates, its value; batches and `map`."""
