"""Admission control for new jobs and for readers of event streams."""
