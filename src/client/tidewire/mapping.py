"""`MapProgress`, passed to the `progress` callback of `map`: the public path of `tidewire.jobs.map_work`."""

from tidewire.jobs.map_work import MapProgress

__all__ = ["MapProgress"]
