"""The blocking client: the async one, on an event loop in a thread of its own.

It has no logic of its own: `event_loop_thread` has how a call or a loop crosses to the thread. The signatures and
docstrings are made from those of `AsyncClient` by `src/client/generate_signatures.py`.
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
from tidewire.client import NO_COPY, AsyncClient
from tidewire.errors import ItemFailedError
from tidewire.hooks import Hooks
from tidewire.http.auth_refresh import Auth
from tidewire.jobs.map_work import BATCH_SIZE, CONCURRENCY, MapProgress, MapWork, total_of
from tidewire.options import CONNECT_TIMEOUT, OnDisconnect
from tidewire.protocol.backoff import RetryPolicy
from tidewire.protocol.document.state_size import MAX_STATE_BYTES
from tidewire.protocol.resources import Discovery, EndpointDescription, JobResource
from tidewire.submit_members import many_inputs, shared_members
from tidewire.types import UNSET, ResultType, Returns, Unset

T = TypeVar("T")


class Client:
    """A client of one server, for scripts and notebooks; see `AsyncClient`, of which this is the blocking form.

    It may be used from many threads, and without `with`: then `close()`, or the end of the program, ends its
    connections; a client that made requests and is garbage-collected before that emits a ResourceWarning. On a thread
    whose event loop runs it works too, but blocks that loop; it says so once. `map` takes its inputs, and calls
    `progress`, on the thread that loops over it.
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
    ) -> None:
        """Make a client. Nothing is sent yet.

        Args:
            url: Where the server is mounted, such as `http://127.0.0.1:8000` or `https://example.org/ai`. A user and
                password in it become an `Authorization` header, and are nowhere else.
            headers: Sent with every request, to this server's origin only: credentials, for example. `with_options`
                adds to those that are set already.
            auth: A function, or a coroutine function, that returns the headers with the credentials. It is called before
                the first request, and again when the server refuses them.
            timeout: Seconds that one call may take in all: a request with its repetitions, a `result()`, a loop over
                a job. The job continues on the server when they pass. None: no bound.
            connect_timeout: Seconds for a connection to be made.
            queue_timeout: Seconds that one call waits while the job is in the server's queue. The job stays there
                when they pass. None: no bound.
            retry: How often and how patiently failed requests and broken streams are repeated.
            max_state_bytes: How large the state of a job may become as JSON. A job that passes it, by a sixteenth at
                most, ends in a StateTooLargeError here; it continues on the server.
            verify: Whether certificates are checked, or the TLS context that does.
            proxy: Address of a proxy for all requests, such as `http://proxy.example:3128`; it takes precedence over the
                environment.
            hooks: Functions that are called after requests and before reconnects, on resyncs and ends.
        """
        client = AsyncClient(
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
        )
        # The thread lives as long as this client, so it must not hold it.
        self._inner = (LoopThread(client._starter.closing()), client)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def url(self) -> str:
        """Where the server is mounted."""
        return self._inner[1].url

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
        self._inner[0].close()

    def with_options(
        self,
        *,
        timeout: float | Unset | None = UNSET,
        connect_timeout: float | Unset = UNSET,
        queue_timeout: float | Unset | None = UNSET,
        on_disconnect: OnDisconnect | Unset = UNSET,
        grace: float | Unset | None = UNSET,
        deadline: float | Unset | None = UNSET,
        retry: RetryPolicy | Unset = UNSET,
        max_state_bytes: int | Unset = UNSET,
        headers: Mapping[str, str] | Unset = UNSET,
    ) -> Self:
        """A view of this client with other settings, on the same connections.

        Args:
            timeout: Seconds that one call may take in all: a request with its repetitions, a `result()`, a loop over
                a job. The job continues on the server when they pass. None: no bound.
            connect_timeout: Seconds for a connection to be made.
            queue_timeout: Seconds that one call waits while the job is in the server's queue. The job stays there
                when they pass. None: no bound.
            on_disconnect: Whether the job continues (`"continue"`) or is cancelled (`"cancel"`) when nobody has read
                its stream for `grace` seconds.
            grace: Seconds without a reader before `on_disconnect` applies; at least 60. None: the server's default.
            deadline: Seconds from the submit after which the server ends the job as failed. None: no deadline.
            retry: How often and how patiently failed requests and broken streams are repeated.
            max_state_bytes: How large the state of a job may become as JSON. A job that passes it, by a sixteenth at
                most, ends in a StateTooLargeError here; it continues on the server.
            headers: Sent with every request, to this server's origin only: credentials, for example. `with_options`
                adds to those that are set already.
        """
        changes = {name: value for name, value in locals().items() if name != "self"}
        thread, client = self._inner
        view = object.__new__(type(self))
        view._inner = (thread, client.with_options(**changes))
        return view

    @overload
    def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: Returns[T],
        idempotency_key: str | None = None,
        **members: Any,
    ) -> Job[T]: ...

    @overload
    def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: None = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> Job[JsonValue]: ...

    def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Any = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> Job[Any]:
        """Start a job.

        It is safe against a broken connection: the request carries an idempotency key, and is repeated with it.

        Args:
            endpoint: Its name; None is the server's only one.
            input: The input as one value: JSON, or what pydantic can write as JSON.
            returns: What the job's value is validated as: a type or a TypeAdapter. Without it, the value is JSON.
            idempotency_key: Names this submit, so that repeating it, also from another process, starts nothing new. By
                default each submit draws a key of its own.
            members: The input's members, instead of `input`. A member called `returns` or `idempotency_key` goes into
                `input`.

        Raises:
            InvalidInputError: The input does not fit the endpoint's schema; says where.
            EndpointNotFoundError: There is no such endpoint; says which there are.
            TidewireError: The server refused it, or cannot be reached.
        """
        thread, client = self._inner
        work = partial(
            client.submit, endpoint, input, returns=returns, idempotency_key=idempotency_key, **members
        )
        return Job(thread, thread.call(work))

    @overload
    def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: Returns[T],
        idempotency_key: str | None = None,
        **members: Any,
    ) -> T: ...

    @overload
    def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: None = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> JsonValue: ...

    def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Any = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> Any:
        """Start a job and wait for its value: `submit`, then `result`, within one `timeout`.

        Args:
            endpoint: Its name; None is the server's only one.
            input: The input as one value: JSON, or what pydantic can write as JSON.
            returns: What the job's value is validated as: a type or a TypeAdapter. Without it, the value is JSON.
            idempotency_key: Names this submit, so that repeating it, also from another process, starts nothing new. By
                default each submit draws a key of its own.
            members: The input's members, instead of `input`. A member called `returns` or `idempotency_key` goes into
                `input`.

        Raises:
            TidewireError: As `submit` and as `Job.result`.
        """
        thread, client = self._inner
        work = partial(
            client.run, endpoint, input, returns=returns, idempotency_key=idempotency_key, **members
        )
        return thread.call(work)

    @overload
    def submit_batch(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Returns[T],
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> BatchJob[T]: ...

    @overload
    def submit_batch(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: None = None,
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> BatchJob[JsonValue]: ...

    def submit_batch(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Any = None,
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> BatchJob[Any]:
        """Start one job of many inputs.

        Args:
            endpoint: Its name; None is the server's only one.
            inputs: At least one.
            returns: What each item's value is validated as.
            idempotency_key: Names this submit, so that repeating it, also from another process, starts nothing new. By
                default each submit draws a key of its own.
            shared: Members that every input gets unless it has its own.
            members: The same by keyword. A member called `returns`, `idempotency_key` or `shared` goes into `shared`.

        Raises:
            TidewireError: As `submit`.
        """
        thread, client = self._inner
        work = partial(
            client.submit_batch,
            endpoint,
            inputs,
            returns=returns,
            idempotency_key=idempotency_key,
            shared=shared,
            **members,
        )
        return BatchJob(thread, thread.call(work))

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
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
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
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
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
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
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
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
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
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> Iterator[Any]:
        """Run any number of inputs; gives the values in the order of the inputs, each as soon as it is there.

        Inputs go in jobs of many where the endpoint takes batches, else one by one. They are taken as they are
        needed: at most `concurrency` × `batch_size` are ahead of the values, so an endless iterable will do. The
        client's `timeout` holds for each job.

        Args:
            endpoint: Its name; None is the server's only one.
            inputs: Iterable.
            returns: What each value is validated as.
            return_exceptions: Put the error of a failed item in its place, instead of raising it there.
            concurrency: Jobs under way at the same time.
            batch_size: Inputs of one job at most; less where the server's `max_inputs` or `max_body_bytes` ask for it.
            progress: Called with how far it is.
            idempotency_key: Names the whole map: another map with the same key and inputs finds the jobs of this one, also
                from another process. A map with a key leaves its jobs running when its loop is left early.
            shared: Members that every input gets unless it has its own.
            members: The same by keyword. A member that has the name of another argument goes into `shared`.

        Raises:
            ItemFailedError: In the loop: an item failed or was cancelled.
            InvalidInputError: In the loop: an input does not fit; `pointer` and the text say which.
        """
        thread, client = self._inner
        work = client._starter.map_work(
            endpoint,
            ResultType(returns),
            shared_members(shared, members),
            concurrency=concurrency,
            batch_size=batch_size,
            return_exceptions=return_exceptions,
            progress=progress,
            key=idempotency_key,
            total=total_of(inputs),
        )
        return _values(thread, work, iter(many_inputs(inputs)))

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
        """Attach to a job. Nothing is sent yet.

        Args:
            job_id: Its id: the first update has the whole value until then.
            checkpoint: From `job.checkpoint()`: updates continue from there.
            returns: What the job's value is validated as.

        Raises:
            CheckpointError: The checkpoint is of another job or another server.
        """
        thread, client = self._inner
        return Job(thread, client.job(job_id, checkpoint=checkpoint, returns=returns))

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
        """Attach to a job of many inputs. Nothing is sent yet.

        Args:
            job_id: Its id: the first updates have the whole values until then.
            checkpoint: From `job.checkpoint()`: updates continue from there.
            returns: What each item's value is validated as.

        Raises:
            CheckpointError: The checkpoint is of another job or another server.
        """
        thread, client = self._inner
        return BatchJob(thread, client.batch_job(job_id, checkpoint=checkpoint, returns=returns))

    def jobs(self, *, limit: int = 100) -> list[JobResource]:
        """The caller's own jobs, newest first, without their state.

        Args:
            limit: How many at most.
        """
        thread, client = self._inner
        return thread.call(partial(client.jobs, limit=limit))

    def discover(self) -> Discovery:
        """What the server is and offers: endpoints, limits, capabilities. Asked for once."""
        thread, client = self._inner
        return thread.call(client.discover)

    def describe(self, endpoint: str | None = None, /) -> EndpointDescription:
        """One endpoint: the schemas of its input and value, examples, capabilities. Asked for once.

        Args:
            endpoint: Its name; None is the server's only one.
        """
        thread, client = self._inner
        return thread.call(client.describe, endpoint)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def _values(thread: LoopThread, work: MapWork[Any], inputs: Iterator[Any]) -> Iterator[Any]:
    """The values of a map. This thread takes the inputs and delivers the values; all else runs on the client's."""
    try:
        while True:
            while work.ready():
                yield work.take()
            if work.finished:
                return
            while work.accepts_input:
                try:
                    value = next(inputs)
                except StopIteration:
                    work.end()
                else:
                    work.feed(value)
            thread.call(work.fill)
    finally:
        if work.under_way:
            thread.finish(work.aclose)
