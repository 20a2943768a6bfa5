"""Public import path of `MapProgress`, the argument of the `progress` callback of `map`."""

from tidewire.jobs.map.outcomes import MapProgress

__all__ = ["MapProgress"]
