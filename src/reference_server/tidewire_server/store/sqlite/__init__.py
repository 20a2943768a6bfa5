"""Everything in one SQLite file: jobs outlive the process that runs them. One server to a file."""
