"""Programs that test the conformance suite itself. See README.md or `python -m proof --help`."""
