"""The programs that prove the conformance suite: see README.md, or `python -m proof --help`."""
