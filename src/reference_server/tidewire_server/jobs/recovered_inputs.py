"""Inputs of a recovered job (`StoredInputs`), which stay in the store until the items run.

A restarted server does not read the inputs of waiting jobs. An input is read and checked again when its item runs, because
the endpoint may have changed in the meantime. A long queue therefore neither delays the start nor fills the memory, and an
error of the endpoint fails only one item.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pydantic import BaseModel, JsonValue

from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ItemError, ProblemError
from tidewire_server.jobs.admission.submit_body import Submission, admit_input, read_submit
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)


class RefusedInputError(ItemError):
    """The code of this process rejects an input that another version of the code accepted when the job was submitted."""


class CheckedInput(NamedTuple):
    """Validated input of an item, and the data that the endpoint derives from this input."""

    value: BaseModel
    columns: list[str]
    initial: JsonValue


class StoredInputs:
    """Inputs of one recovered job. All methods must be called on one event loop."""

    def __init__(
        self,
        job: str,
        endpoint: Endpoint,
        items: int,
        read_body: Callable[[], Awaitable[bytes]],
        turn: asyncio.Lock,
    ) -> None:
        """Create the object without reading the inputs.

        Args:
            job: Id of the job.
            endpoint: Endpoint of the job.
            items: Number of items of the job.
            read_body: Function that reads the body of the request that submitted the job from the store.
            turn: Lock that the inputs of all jobs share. With this lock, many items that start together do not block the event
                loop.
        """
        self._job = job
        self._endpoint = endpoint
        self._items = items
        self._read_body = read_body
        self._turn = turn
        self._submission: Submission | None = None
        self._samples: list[BaseModel] = []
        """Inputs of all items, if the request has one input for several items."""
        self._lock = asyncio.Lock()

    async def check(self, index: int) -> CheckedInput:
        """Read and validate the input of an item. This method must be called once for each item.

        Raises:
            RefusedInputError: The endpoint does not accept the input any more. The code is `worker_lost`.
            ItemError: The input cannot be read. The code is `worker_lost`.
            StoreError: The input cannot be read during an outage of the database.
        """
        async with self._turn:
            await asyncio.sleep(0)  # other tasks run between two checks
        try:
            value = await self._validated(index)
            return CheckedInput(value, self._endpoint.columns(value), self._endpoint.initial(value))
        except ProblemError as error:
            raise _refused(f"the input was no longer valid after the server restarted: {error}") from error
        except StoreError as error:
            if error.outage:
                raise
            reason = f"the input could not be read after the server restarted: {error}"
            raise ItemError(reason, code="worker_lost") from error
        except Exception as error:  # the endpoint's functions may raise any exception
            _log.exception(
                "job %s item %d: endpoint %r failed for an input that it had accepted before the restart",
                self._job,
                index,
                self._endpoint.name,
            )
            raise _refused(
                f"endpoint {self._endpoint.name!r} could not check the input after the server restarted; the server's log "
                "has the details"
            ) from error

    async def as_submitted(self, index: int) -> JsonValue:
        """Return the input of an item as it was submitted, merged with the shared members, without validation. If the request
        has one input for several items, return this input. This method must be called before `check`.

        Raises:
            ProblemError: The stored request is damaged.
            StoreError: The request cannot be read.
        """
        submission = await self._request()
        own = submission.inputs[index if len(submission.inputs) == self._items else 0]
        return submission.shared | own if isinstance(own, dict) else own

    async def _request(self) -> Submission:
        async with self._lock:
            if self._submission is None:
                body = await self._read_body()
                self._submission = read_submit(body, max_inputs=sys.maxsize, max_values=sys.maxsize)
            return self._submission

    async def _validated(self, index: int) -> BaseModel:
        submission = await self._request()
        inputs = submission.inputs
        if len(inputs) == self._items:
            (value,) = await admit_input(self._endpoint, submission, index)
            inputs[index] = None  # free its memory
            return value
        async with self._lock:
            if not self._samples:
                self._samples = list(await admit_input(self._endpoint, submission, 0))
        return self._samples[index]


def _refused(reason: str) -> RefusedInputError:
    return RefusedInputError(reason, code="worker_lost")
