"""Protocol of the processes that share a store (`Replicas`): their leases, endpoints and readers."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from tidewire_server.store.records import Beat, EndpointLoad


class Replicas(Protocol):
    """Liveness of the processes that share a store. Except for `leave`, every method raises `StoreError` if the
    store fails.
    """

    async def beat(self, endpoints: Mapping[str, EndpointLoad]) -> Beat:
        """Renew the lease of this process. Call this method each second: other processes adopt the jobs of a process whose
        lease has expired.

        Args:
            endpoints: Load of each endpoint whose functions this process runs. Other processes receive it as `Beat.others`.
        """

    async def owns(self, job: str) -> bool:
        """Return whether this process still owns a job whose log it has opened. If the lease may have expired, for example
        because this process was frozen, wait for the next `beat`, which finds the jobs that other processes have adopted.

        Raises:
            StoreError: The lease could not be renewed within its own length.
        """

    def stop_writing(self, job: str) -> None:
        """Stop writing the log of an unfinished job after its functions were stopped. If this process still owns the job later,
        `Jobs.reopen` opens it again.
        """

    async def mark_read(self, jobs: Collection[str]) -> None:
        """Record that this process has readers of jobs that other processes own. Call this method each second."""

    async def unread_for(self, job: str) -> float:
        """Return for how many seconds a job has had no reader in any process (`mark_read`). The time starts when the job is
        submitted, and again when it is adopted or released. The result may be up to two seconds too low, and is negative at
        first. Time before or during an outage of the store does not count.
        """

    async def leave(self) -> None:
        """Give up the lease, so that other processes adopt the unfinished jobs of this process at once. Only the first call has
        an effect. If the store fails, log a warning. The jobs then wait until the lease expires.
        """

    def on_request(self, wake: Callable[[], None]) -> None:
        """Set a function that is called on the event loop when the next `beat` or `Jobs.adopt` may return something new."""
