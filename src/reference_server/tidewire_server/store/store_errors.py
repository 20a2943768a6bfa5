"""Exceptions of a store: failures of the store itself, rejected jobs and rejected appends."""

from tidewire_server.store.records import KeyUse


class HeadMovedError(Exception):
    """An append failed because the log's last event is not the expected one.

    Another writer has appended events, or the log was deleted.
    """


class StoreError(Exception):
    """The store cannot be opened, read or written. The message names the store, the reason, and a possible fix."""

    logged = False
    """Whether the error is already in the server's log. If so, a request that fails with this error does not log the
    error again.
    """
    outage = False
    """Whether the store is unreachable. If so, another process may have adopted the jobs of this one."""

    def copy(self) -> "StoreError":
        """Return a copy for another caller to raise. The traceback of a shared exception would grow with each raise."""
        own = type(self)(*self.args)
        own.logged, own.outage = self.logged, self.outage
        return own


class QueueFullError(Exception):
    """A job was not added, because too many items are waiting in the queue of its endpoint.

    Attributes:
        waiting: Number of waiting items, without the items of the rejected job. A store may stop counting at the limit.
        of_principal: Whether only the items of the job's principal exceed a limit (`QueueLimits.items_of_principal`).
    """

    def __init__(self, waiting: int, *, of_principal: bool) -> None:
        super().__init__(waiting)
        self.waiting = waiting
        self.of_principal = of_principal


class TooManyJobsError(Exception):
    """A job was not added, because its principal has reached its limit of unfinished jobs."""


class KeyUsedError(Exception):
    """A job was not added, because another job has its idempotency key.

    Attributes:
        use: The earlier use of the key.
    """

    def __init__(self, use: KeyUse) -> None:
        super().__init__(use.job)
        self.use = use
