"""Client mode of the conformance suite: plays the scenarios of the specification and reports failed requirements."""
