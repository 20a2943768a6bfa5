"""`AsyncClient`: one server, on asyncio or trio."""

import ssl
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, overload

import anyio
from pydantic import JsonValue

from tidewire.checkpoint import Checkpoint
from tidewire.errors import InvalidInputError, ItemFailedError, TotalTimeoutError, Where
from tidewire.hooks import Hooks
from tidewire.http.api_session import MAY_RUN, ApiSession, Timing
from tidewire.http.auth_refresh import Auth
from tidewire.http.proxy_and_tls_checks import check_proxy, check_verify
from tidewire.http.transport import Transport
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.job import AsyncJob
from tidewire.jobs.job_starter import JobStarter
from tidewire.jobs.map_iterator import AsyncMap
from tidewire.jobs.map_work import BATCH_SIZE, CONCURRENCY, MapProgress, total_of
from tidewire.options import CONNECT_TIMEOUT, OnDisconnect, Options, check_key
from tidewire.protocol.backoff import RetryPolicy
from tidewire.protocol.document.state_size import MAX_STATE_BYTES
from tidewire.protocol.resources import API_ROOT, Discovery, EndpointDescription, JobList, JobResource
from tidewire.submit_members import jsonable, many_inputs, one_input, shared_members
from tidewire.types import UNSET, ResultType, Returns, Unset

T = TypeVar("T")

NO_COPY: Final = "a client can be neither copied nor pickled: make one where it is used"


class AsyncClient:
    """A client of one server.

    It may be used without `async with`; then call `aclose()`. A client that made requests and is garbage-collected
    without it emits a ResourceWarning. One client serves any number of jobs at the same time. It and its jobs belong to
    the event loop on which it is first used; on another one, also when the first has ended, they raise an
    `EventLoopError`.

    Proxies and certificates are taken from the environment as well (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`).
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
        options = Options(
            timeout=timeout,
            connect_timeout=connect_timeout,
            queue_timeout=queue_timeout,
            retry=retry or RetryPolicy(),
            max_state_bytes=max_state_bytes,
        ).changed(headers={} if headers is None else headers)
        transport = Transport(verify=check_verify(verify), proxy=check_proxy(proxy))
        self._starter = JobStarter(
            ApiSession(url, transport, auth=auth, timing=Timing(), hooks=hooks), options
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Jobs continue on the server, except those of a `map` that was left early."""
        await self._starter.closing()()

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
        changes = {name: value for name, value in locals().items() if name != "self" and value is not UNSET}
        view = object.__new__(type(self))
        view._starter = self._starter.with_options(self._starter.options.changed(**changes))
        return view

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def url(self) -> str:
        """Where the server is mounted."""
        return self._starter.session.base

    # ---- what the server offers --------------------------------------------------------------------------------

    async def discover(self) -> Discovery:
        """What the server is and offers: endpoints, limits, capabilities. Asked for once."""
        return await self._starter.session.discover(self._starter.options)

    async def describe(self, endpoint: str | None = None, /) -> EndpointDescription:
        """One endpoint: the schemas of its input and value, examples, capabilities. Asked for once.

        Args:
            endpoint: Its name; None is the server's only one.
        """
        return await self._starter.describe(endpoint)

    # ---- starting jobs -----------------------------------------------------------------------------------------

    @overload
    async def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: Returns[T],
        idempotency_key: str | None = None,
        **members: Any,
    ) -> AsyncJob[T]: ...

    @overload
    async def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: None = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> AsyncJob[JsonValue]: ...

    async def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Any = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> AsyncJob[Any]:
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
        check_key(idempotency_key)
        content = {"input": one_input(input, members)}
        return AsyncJob(await self._starter.submit(endpoint, content, idempotency_key, ResultType(returns)))

    @overload
    async def run(
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
    async def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: None = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> JsonValue: ...

    async def run(
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
            TidewireError: As `submit` and as `AsyncJob.result`.
        """
        job: AsyncJob[Any] | None = None
        timeout = self._starter.options.timeout
        with anyio.move_on_after(timeout):
            job = await self.submit(
                endpoint, input, returns=returns, idempotency_key=idempotency_key, **members
            )
            return await job.result()
        passed = f"the timeout of {timeout:g} s"
        if job is not None:
            raise job._reader.timed_out(passed)
        raise TotalTimeoutError(
            f"{passed} passed during the submit", where=Where("POST", self.url), advice=MAY_RUN
        )

    @overload
    async def submit_batch(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Returns[T],
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> AsyncBatchJob[T]: ...

    @overload
    async def submit_batch(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: None = None,
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> AsyncBatchJob[JsonValue]: ...

    async def submit_batch(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Any = None,
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> AsyncBatchJob[Any]:
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
        check_key(idempotency_key)
        content: dict[str, Any] = {
            "inputs": [jsonable(one, f"/inputs/{at}") for at, one in enumerate(many_inputs(inputs))]
        }
        if not content["inputs"]:
            raise InvalidInputError("a batch without inputs", advice="Give at least one input.")
        if common := shared_members(shared, members):
            content["shared"] = jsonable(common, "/shared")
        return await self._starter.submit_batch(endpoint, content, idempotency_key, ResultType(returns))

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> AsyncMap[T]: ...

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> AsyncMap[JsonValue]: ...

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> AsyncMap[T | ItemFailedError]: ...

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> AsyncMap[JsonValue | ItemFailedError]: ...

    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> AsyncMap[Any]:
        """Run any number of inputs; gives the values in the order of the inputs, each as soon as it is there.

        Inputs go in jobs of many where the endpoint takes batches, else one by one. They are taken as they are
        needed: at most `concurrency` × `batch_size` are ahead of the values, so an endless iterable will do. The
        client's `timeout` holds for each job.

        Args:
            endpoint: Its name; None is the server's only one.
            inputs: Iterable or async iterable.
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
        work = self._starter.map_work(
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
        return AsyncMap(work, inputs if isinstance(inputs, AsyncIterable) else many_inputs(inputs))

    # ---- jobs that run already ---------------------------------------------------------------------------------

    @overload
    def job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Returns[T]
    ) -> AsyncJob[T]: ...

    @overload
    def job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: None = None
    ) -> AsyncJob[JsonValue]: ...

    def job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Any = None
    ) -> AsyncJob[Any]:
        """Attach to a job. Nothing is sent yet.

        Args:
            job_id: Its id: the first update has the whole value until then.
            checkpoint: From `job.checkpoint()`: updates continue from there.
            returns: What the job's value is validated as.

        Raises:
            CheckpointError: The checkpoint is of another job or another server.
        """
        return AsyncJob(self._starter.attach(job_id, checkpoint, ResultType(returns)))

    @overload
    def batch_job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Returns[T]
    ) -> AsyncBatchJob[T]: ...

    @overload
    def batch_job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: None = None
    ) -> AsyncBatchJob[JsonValue]: ...

    def batch_job(
        self, job_id: str | None = None, /, *, checkpoint: Checkpoint | None = None, returns: Any = None
    ) -> AsyncBatchJob[Any]:
        """Attach to a job of many inputs. Nothing is sent yet.

        Args:
            job_id: Its id: the first updates have the whole values until then.
            checkpoint: From `job.checkpoint()`: updates continue from there.
            returns: What each item's value is validated as.

        Raises:
            CheckpointError: The checkpoint is of another job or another server.
        """
        return AsyncBatchJob(self._starter.attach_batch(job_id, checkpoint, ResultType(returns)))

    async def jobs(self, *, limit: int = 100) -> list[JobResource]:
        """The caller's own jobs, newest first, without their state.

        Args:
            limit: How many at most.
        """
        found: list[JobResource] = []
        session, options = self._starter.session, self._starter.options
        url = f"{self.url}{API_ROOT}/jobs"
        with anyio.move_on_after(options.timeout):
            while url and len(found) < limit:
                answer = await session.ask("GET", url, options)
                page = session.read(JobList, answer, what="jobs")
                found += page.jobs
                # A page without jobs is the last, whatever it says: else a server could lead on for ever.
                url = session.here(answer.url, page.next, "") if page.next and page.jobs else ""
            return found[:limit]
        raise TotalTimeoutError(f"the timeout of {options.timeout:g} s passed", where=Where("GET", url))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
