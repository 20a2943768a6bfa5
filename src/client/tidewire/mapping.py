"""`MapProgress`, passed to the `progress` callback of `map`: the public path of `tidewire.jobs.mapping`."""

from tidewire.jobs.mapping import MapProgress

__all__ = ["MapProgress"]
