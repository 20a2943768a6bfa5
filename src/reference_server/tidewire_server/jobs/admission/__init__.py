"""Whether a submit or a reader is let in: the body of a submit, limits, stream tokens."""
