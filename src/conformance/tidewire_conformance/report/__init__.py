"""What came of a run, for people and for programs."""
