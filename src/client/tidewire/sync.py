"""The blocking client: the async one, on an event loop in a thread of its own.

No logic of its own: how a call or a loop crosses to the thread stands in `event_loop_thread`.
"""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar, overload

from pydantic import JsonValue

from tidewire.blocking.blocking_jobs import BatchJob, Job
from tidewire.blocking.event_loop_thread import LoopThread
from tidewire.checkpoint import Checkpoint
from tidewire.client import NO_COPY, AsyncClient, close
from tidewire.errors import ItemFailedError
from tidewire.hooks import Hooks
from tidewire.http.api_session import Timing
from tidewire.http.auth_refresh import Auth
from tidewire.jobs.map_work import BATCH_SIZE, CONCURRENCY, MapProgress, MapWork, total_of
from tidewire.options import CONNECT_TIMEOUT, OnDisconnect
from tidewire.protocol.backoff import RetryPolicy
from tidewire.protocol.document.state_size import MAX_STATE_BYTES
from tidewire.protocol.resources import Discovery, EndpointDescription, JobResource
from tidewire.submit_members import many_inputs
from tidewire.types import UNSET, ResultType, Returns, Unset

T = TypeVar("T")


class Client:
    """A client of one server, for scripts and notebooks; see `AsyncClient`, of which this is the blocking form.

    It may be used from many threads, and without `with`: then `close()`, or the end of the program, ends its
    connections; a client that made requests and is garbage-collected before that emits a ResourceWarning. On a thread
    whose event loop runs it works too, but blocks that loop; it says so once.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        timeout: float | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        queue_timeout: float | None = None,
        retry: RetryPolicy | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        verify: bool | ssl.SSLContext = True,
        proxy: str | None = None,
        hooks: Hooks | None = None,
        _timing: Timing | None = None,
    ) -> None:
        """See `AsyncClient` for the arguments."""
        self._client = AsyncClient(
            url,
            headers=headers,
            auth=auth,
            timeout=timeout,
            connect_timeout=connect_timeout,
            queue_timeout=queue_timeout,
            retry=retry,
            max_state_bytes=max_state_bytes,
            verify=verify,
            proxy=proxy,
            hooks=hooks,
            _timing=_timing,
        )
        # The thread lives as long as the client; what it holds must not hold the client.
        self._thread = LoopThread(partial(close, self._client._running, self._client._exchange.transport))

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def url(self) -> str:
        """Where the server is mounted."""
        return self._client.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread. Jobs continue on the server, except those of a `map` that was left.

        It returns in bounded time. After an interrupt it may be called again.
        """
        self._thread.close()

    def with_options(
        self,
        *,
        timeout: float | Unset | None = UNSET,
        connect_timeout: float | Unset = UNSET,
        queue_timeout: float | Unset | None = UNSET,
        idempotency_key: str | Unset | None = UNSET,
        on_disconnect: OnDisconnect | Unset = UNSET,
        grace: float | Unset | None = UNSET,
        deadline: float | Unset | None = UNSET,
        retry: RetryPolicy | Unset = UNSET,
        max_state_bytes: int | Unset = UNSET,
        headers: Mapping[str, str] | Unset = UNSET,
    ) -> Self:
        """A view of this client with other settings, on the same connections; see `AsyncClient.with_options`."""
        view = object.__new__(type(self))
        view._thread = self._thread
        view._client = self._client.with_options(
            timeout=timeout,
            connect_timeout=connect_timeout,
            queue_timeout=queue_timeout,
            idempotency_key=idempotency_key,
            on_disconnect=on_disconnect,
            grace=grace,
            deadline=deadline,
            retry=retry,
            max_state_bytes=max_state_bytes,
            headers=headers,
        )
        return view

    @overload
    def submit(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: Returns[T], **members: Any
    ) -> Job[T]: ...

    @overload
    def submit(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: None = None, **members: Any
    ) -> Job[JsonValue]: ...

    def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Any = None,
        **members: Any,
    ) -> Job[Any]:
        """Start a job; see `AsyncClient.submit`."""
        work = partial(self._client.submit, endpoint, input, returns=returns, **members)
        return Job(self._thread, self._thread.call(work))

    @overload
    def run(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: Returns[T], **members: Any
    ) -> T: ...

    @overload
    def run(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: None = None, **members: Any
    ) -> JsonValue: ...

    def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Any = None,
        **members: Any,
    ) -> Any:
        """Start a job and wait for its value; see `AsyncClient.run`."""
        return self._thread.call(partial(self._client.run, endpoint, input, returns=returns, **members))

    @overload
    def submit_batch(
        self, endpoint: str | None, inputs: Iterable[Any], /, *, returns: Returns[T], **shared: Any
    ) -> BatchJob[T]: ...

    @overload
    def submit_batch(
        self, endpoint: str | None, inputs: Iterable[Any], /, *, returns: None = None, **shared: Any
    ) -> BatchJob[JsonValue]: ...

    def submit_batch(
        self, endpoint: str | None, inputs: Iterable[Any], /, *, returns: Any = None, **shared: Any
    ) -> BatchJob[Any]:
        """Start one job of many inputs; see `AsyncClient.submit_batch`."""
        work = partial(self._client.submit_batch, endpoint, inputs, returns=returns, **shared)
        return BatchJob(self._thread, self._thread.call(work))

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Returns[T],
        return_exceptions: Literal[False] = False,
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        **shared: Any,
    ) -> Iterator[T]: ...

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: None = None,
        return_exceptions: Literal[False] = False,
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        **shared: Any,
    ) -> Iterator[JsonValue]: ...

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Returns[T],
        return_exceptions: Literal[True],
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        **shared: Any,
    ) -> Iterator[T | ItemFailedError]: ...

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: None = None,
        return_exceptions: Literal[True],
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        **shared: Any,
    ) -> Iterator[JsonValue | ItemFailedError]: ...

    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Any = None,
        return_exceptions: bool = False,
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        **shared: Any,
    ) -> Iterator[Any]:
        """Run any number of inputs; see `AsyncClient.map`. Inputs are taken, and `progress` is called, on this thread."""
        work = self._client._map_work(
            endpoint,
            ResultType(returns),
            shared,
            concurrency=concurrency,
            batch_size=batch_size,
            return_exceptions=return_exceptions,
            progress=progress,
            total=total_of(inputs),
        )
        return self._work_through(work, iter(many_inputs(inputs)))

    def _work_through(self, work: MapWork[Any], inputs: Iterator[Any]) -> Iterator[Any]:
        """Inputs are taken and values handed over on this thread, all else is done on the other."""
        try:
            while True:
                while work.ready():
                    yield work.take()
                if work.finished:
                    return
                while work.hungry:
                    try:
                        value = next(inputs)
                    except StopIteration:
                        work.end()
                    else:
                        work.feed(value)
                self._thread.call(work.fill)
        finally:
            if work.under_way:
                self._thread.finish(work.aclose)

    @overload
    def job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Returns[T]
    ) -> Job[T]: ...

    @overload
    def job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: None = None
    ) -> Job[JsonValue]: ...

    def job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Any = None
    ) -> Job[Any]:
        """Attach to a job; see `AsyncClient.job`. Nothing is sent yet."""
        return Job(self._thread, self._client.job(job_id, checkpoint=checkpoint, returns=returns))

    @overload
    def batch_job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Returns[T]
    ) -> BatchJob[T]: ...

    @overload
    def batch_job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: None = None
    ) -> BatchJob[JsonValue]: ...

    def batch_job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Any = None
    ) -> BatchJob[Any]:
        """Attach to a job of many inputs; see `AsyncClient.batch_job`. Nothing is sent yet."""
        return BatchJob(self._thread, self._client.batch_job(job_id, checkpoint=checkpoint, returns=returns))

    def jobs(self, *, limit: int = 100) -> list[JobResource]:
        """The caller's own jobs, newest first, without their state."""
        return self._thread.call(partial(self._client.jobs, limit=limit))

    def discover(self) -> Discovery:
        """What the server is and offers; see `AsyncClient.discover`."""
        return self._thread.call(self._client.discover)

    def describe(self, endpoint: str | None = None, /) -> EndpointDescription:
        """One endpoint: the schemas of its input and value, examples, capabilities."""
        return self._thread.call(self._client.describe, endpoint)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
