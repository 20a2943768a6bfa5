"""Jobs in a store that several server processes share: which process runs a job, and what happens when one of them stops."""
