"""Client mode of the conformance suite. It plays the scenarios of the specification and reports failed requirements."""
