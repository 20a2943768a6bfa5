"""Admission control for submits and readers: request bodies, limits, stream tokens."""
