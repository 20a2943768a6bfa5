"""Judges a client: plays the scenarios of the specification to it, and says which sentences it breaks."""
