"""Protocol of a store (`Store`), which consists of the parts that the other `*_interface` modules describe.

    Store ─┬─ jobs: Jobs                  `jobs_interface`; it opens the logs of the jobs (`log_interface`)
           ├─ queue: Queue                `queue_interface`
           └─ replicas: Replicas | None   `replicas_interface`; None if only one process uses the store

If several processes share the store, `jobs` and `queue` also contain the jobs of the other processes, and `replicas` renews the
lease under which this process owns its jobs.

Code outside the folder `store` uses a store through these protocols, with the types in `records` and the errors in
`store_errors`. There are two exceptions: `open_store` chooses the implementation, and `tidewire compact` uses a SQLite
file without a store (`sqlite.sqlite_file`).
"""

from typing import Final, Literal, Protocol

from tidewire_server.store.jobs_interface import Jobs
from tidewire_server.store.queue_interface import Queue
from tidewire_server.store.replicas_interface import Replicas

Durability = Literal["process", "host", "replicated"]

SECRET_BYTES: Final = 32

SWEEP_INTERVAL: Final = 0.02
"""`Store.sweep_interval`, in seconds, of a store that finds its expired entries quickly."""


class Store(Protocol):
    """Storage of one server, which contains the server's jobs and its queue."""

    jobs: Jobs
    queue: Queue
    durability: Durability
    secret: bytes
    """Default key for signing stream tokens, `SECRET_BYTES` long. The store keeps the key as long as it keeps jobs."""
    replicas: Replicas | None
    """Liveness of the processes that share the store. None if only this process uses it."""
    may_have_lost: bool
    """Whether a crash of the previous server process may have lost the last events of some logs [TW-RES-039]."""
    merge_window: float
    """Minimum value of the setting `merge_window` for this store, in seconds."""
    sweep_interval: float
    """Minimum number of seconds between two calls of `Jobs.expire`."""

    async def check(self) -> None:
        """Check that the store can be written, and that this process has a lease if it needs one. A store that is not in memory
        does a test write.

        Raises:
            StoreError: The store cannot be written, or the lease cannot be renewed.
        """
        ...

    async def close(self, *, clean: bool = True) -> None:
        """Release the store. No other method may be called afterwards.

        Args:
            clean: Whether to record a clean shutdown. Pass False if the recovery of interrupted jobs has not finished.
        """
        ...
