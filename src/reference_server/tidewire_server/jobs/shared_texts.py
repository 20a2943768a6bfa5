"""Large texts that the server sends to clients, such as encoded states of jobs. All readers of a text share it.

A reader that reads slowly keeps its text in memory, and encoding a large state takes long. Therefore:

- All readers at the same position of a job use one text, which is freed with its last reader.
- The texts of the most recent states are kept, so that repeated requests for an unchanged job encode the state only once.
- The total size of the texts is limited (`max_unsent_bytes`), because readers at different positions use different texts.
  The texts of one principal can use only a share of this size (`max_share`), so that its stalled readers do not block others.
- A large state is encoded in a worker thread, and one state at a time, so that the event loop is not blocked.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.view import View
from tidewire_server.errors import refuse
from tidewire_server.store.log_interface import StateAt

MIN_SHARED_BYTES: Final = 32 * 1024
"""Size in bytes above which texts are shared."""

_MAX_RECENT_BYTES: Final = 32 * 1024 * 1024
"""Maximum total size in bytes of the texts that are kept although no reader uses them."""

_RETRY_MS: Final = 1000

_MAX_NODES: Final = 2_000
"""Number of values in a state above which a worker thread encodes the state."""


class SharedText:
    """Text that several readers share. It is freed when the last reader releases it."""

    __slots__ = ("__weakref__", "data", "principal")

    def __init__(self, data: bytes, principal: str = "") -> None:
        self.data = data
        self.principal = principal

    def __len__(self) -> int:
        return len(self.data)


class SharedTexts:
    """Texts that readers currently share, and recently encoded states. All methods must be called on one event loop."""

    def __init__(self, max_bytes: int, max_bytes_per_caller: int) -> None:
        """Create an empty collection.

        Args:
            max_bytes: Maximum total size of the texts. A single text may be larger.
            max_bytes_per_caller: The same limit for the texts of one principal.
        """
        self._max_bytes = max_bytes
        self._max_bytes_per_caller = max_bytes_per_caller
        self._in_use: WeakValueDictionary[tuple[Any, ...], SharedText] = WeakValueDictionary()
        self._recent: OrderedDict[tuple[str, bool], SharedText] = OrderedDict()
        self._encoding = asyncio.Lock()

    def events(self, principal: str, job: str, after: Cursor, last: Cursor, frames: bytes) -> SharedText:
        """Return the shared text of encoded events of a job.

        Args:
            principal: Principal of the job.
            job: Id of the job.
            after: Id of the event before the first of the events.
            last: Id of the last of the events.
            frames: The encoded events. They are ignored if another reader already uses a text with the same events.

        Raises:
            ProblemError: The texts would exceed the limit.
        """
        return self._share(principal, (job, after, last, len(frames)), frames)

    def body(self, principal: str, data: bytes) -> SharedText:
        """Return the shared text for a response body, or for a part of it. Responses with equal bytes share one text.

        Raises:
            ProblemError: The texts would exceed the limit.
        """
        return self._share(principal, (principal, data), data)

    async def state(
        self, principal: str, job: str, at: StateAt, changes: Mapping[str, Any] | None = None
    ) -> SharedText:
        """Return the JSON text of a job's state.

        Args:
            principal: Principal of the job.
            job: Id of the job.
            at: State of the job after one event.
            changes: Members that replace members of the state. Their values must depend only on the job.

        Raises:
            ProblemError: The texts would exceed the limit.
        """
        key = (job, at.cursor, changes is not None)
        if (found := self._in_use.get(key)) is not None:
            return found
        if not at.view.has_more_nodes_than(_MAX_NODES):
            return self._keep(principal, key, _encode(at.view, changes))
        async with self._encoding:
            # Another reader may have encoded the state in the meantime.
            if (found := self._in_use.get(key)) is not None:
                return found
            return self._keep(principal, key, await asyncio.to_thread(_encode, at.view, changes))

    def _keep(self, principal: str, key: tuple[str, Cursor, bool], data: bytes) -> SharedText:
        text = self._share(principal, key, data)
        if len(data) > MIN_SHARED_BYTES:
            job, _, changed = key
            self._recent.pop((job, changed), None)
            self._recent[job, changed] = text
            while sum(map(len, self._recent.values())) > _MAX_RECENT_BYTES:
                self._recent.popitem(last=False)
        return text

    def _share(self, principal: str, key: tuple[Any, ...], data: bytes) -> SharedText:
        if len(data) <= MIN_SHARED_BYTES:
            return SharedText(data)
        if (found := self._in_use.get(key)) is not None:
            return found
        if self._excess(principal, len(data)) is not None:
            self._recent.clear()
            if (reason := self._excess(principal, len(data))) is not None:
                raise refuse("unavailable", f"{reason}; retry later", retry_after_ms=_RETRY_MS)
        self._in_use[key] = text = SharedText(data, principal)
        return text

    def _excess(self, principal: str, size: int) -> str | None:
        """Return an error message if another text of a principal would exceed a limit. Otherwise return None."""
        texts = [*self._in_use.values()]
        own = sum(len(text) for text in texts if text.principal == principal)
        total = sum(map(len, texts))
        for used, limit, whose, settings in (
            (total, self._max_bytes, "", "max_unsent_bytes"),
            (own, self._max_bytes_per_caller, " of this caller", "max_unsent_bytes, max_share"),
        ):
            if used and used + size > limit:
                return (
                    f"the server already holds {used} bytes that slow readers{whose} have not read, and {size} more would "
                    f"exceed its limit of {limit} bytes ({settings})"
                )
        return None


def _encode(view: View, changes: Mapping[str, Any] | None) -> bytes:
    state: Any = view.value()
    return orjson.dumps(state if changes is None else state | changes)
