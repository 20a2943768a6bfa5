"""Who reads streams: how many a caller may have open, and what becomes of a job that nobody reads."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Gauge

from tidewire_server.errors import refuse


@dataclass(slots=True)
class _Watched:
    """A job that is cancelled once nobody has read it for a while."""

    grace: float
    cancel: Callable[[], None]
    attached: int = 0
    timer: asyncio.TimerHandle | None = None


class StreamReaders:
    """The open streams of one server. Lives on the event loop."""

    def __init__(self, limit: int, gauge: Gauge) -> None:
        """Begin with none.

        Args:
            limit: Streams of one principal.
            gauge: Shows how many are open, counted when it is read.
        """
        self._limit = limit
        gauge.set_function(lambda: sum(self._places.values()))
        self._places: dict[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._loop = asyncio.get_running_loop()
        self._paused = False

    def take_place(self, principal: str) -> Callable[[], None]:
        """Take a stream's place, before anything is promised to its caller; returns how to give it back.

        Raises:
            ProblemError: The caller has too many streams.
        """
        taken = self._places.get(principal, 0)
        if taken >= self._limit:
            detail = f"{taken} of your streams are open, no more may be (max_streams_per_principal)"
            raise refuse("too_many_streams", detail)
        self._places[principal] = taken + 1

        def give_back() -> None:
            left = self._places[principal] - 1
            if left:
                self._places[principal] = left
            else:
                del self._places[principal]

        return give_back

    def watch(self, job: str, grace: float, cancel: Callable[[], None]) -> None:
        """Cancel a job once nobody has read it for `grace` seconds, counted from now until a reader attaches."""
        self._watched[job] = watched = _Watched(grace, cancel)
        self._count_down(watched)

    def attach(self, job: str) -> Callable[[], None]:
        """A reader has come; returns how to say that it has gone."""
        watched = self._watched.get(job)
        if watched is None:
            return _nothing
        watched.attached += 1
        self._stop(watched)

        def detach() -> None:
            watched.attached -= 1
            if not watched.attached and self._watched.get(job) is watched:
                self._count_down(watched)

        return detach

    def forget(self, job: str) -> None:
        """A job has ended."""
        watched = self._watched.pop(job, None)
        if watched is not None:
            self._stop(watched)

    def pause(self) -> None:
        """Count no time any more: it is the server that sends readers away, not they who leave."""
        self._paused = True
        for watched in self._watched.values():
            self._stop(watched)

    def _count_down(self, watched: _Watched) -> None:
        if not self._paused:
            watched.timer = self._loop.call_later(watched.grace, watched.cancel)

    @staticmethod
    def _stop(watched: _Watched) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
            watched.timer = None


def _nothing() -> None:
    """A job that runs on without readers does not mind that one has gone."""
