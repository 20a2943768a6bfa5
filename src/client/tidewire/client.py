"""`AsyncClient`: one server, on asyncio or trio."""

import secrets
import ssl
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, overload

import anyio
from pydantic import JsonValue

from tidewire.checkpoint import NO_CHECKPOINT, Checkpoint
from tidewire.errors import (
    CheckpointError,
    EndpointNotFoundError,
    InvalidInputError,
    ItemFailedError,
    ProtocolError,
    TidewireError,
    TotalTimeoutError,
    Where,
)
from tidewire.hooks import Hooks
from tidewire.http.api_session import MAY_RUN, ApiSession, Timing
from tidewire.http.auth_refresh import Auth
from tidewire.http.proxy_and_tls_checks import check_proxy, check_verify
from tidewire.http.response import Connection
from tidewire.http.transport import Transport
from tidewire.http.urls import last_segment
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.job import AsyncJob
from tidewire.jobs.map_iterator import AsyncMap
from tidewire.jobs.map_work import BATCH_SIZE, CONCURRENCY, MapProgress, MapWork, cancel_all, total_of
from tidewire.jobs.reconnecting_stream import JobStream
from tidewire.jobs.tokens import Vocabularies
from tidewire.options import CONNECT_TIMEOUT, OnDisconnect, Options
from tidewire.protocol.backoff import Backoff, RetryPolicy
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.state_size import MAX_STATE_BYTES
from tidewire.protocol.follower import Follower
from tidewire.protocol.follower_outcomes import Applied
from tidewire.protocol.resources import (
    API_ROOT,
    Discovery,
    EndpointDescription,
    JobList,
    JobResource,
    Limits,
)
from tidewire.protocol.status_table import RequestKind
from tidewire.submit_members import encoded, jsonable, many_inputs, one_input, options_on_the_wire
from tidewire.types import UNSET, Position, ResultType, Returns, Unset

T = TypeVar("T")

NO_COPY: Final = "a client can be neither copied nor pickled: make one where it is used"


class AsyncClient:
    """A client of one server.

    It may be used without `async with`; then call `aclose()`. A client that made requests and is garbage-collected
    without it emits a ResourceWarning. One client serves any number of jobs at the same time. It and its jobs belong to
    the event loop on which it is first used; on another one, also when the first has ended, they raise an
    `EventLoopError`.

    Args:
        url: Where the server is mounted, such as `http://127.0.0.1:8000` or `https://example.org/ai`. A user and password in
            it become an `Authorization` header, and stand nowhere else.
        headers: Sent with every request, to this origin only; credentials, say.
        auth: Gives the headers that carry credentials, awaited if it is a coroutine. It is called before the first
            request, and again when the server refuses them.
        timeout: Seconds that one call may take in all; see `with_options`.
        connect_timeout: Seconds for a connection to be made.
        queue_timeout: Seconds that one call waits for a job that stands in the server's queue; see `with_options`.
        retry: How often and how patiently what failed is repeated.
        max_state_bytes: How large a job's state may become as JSON before it is given up; see `with_options`.
        verify: Whether certificates are checked, or the TLS context that does.
        proxy: Address of a proxy that all requests go through, such as `http://proxy.example:3128`; it goes before
            what the environment says.
        hooks: Functions that are told of requests, reconnects, resyncs and ends.

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
        _timing: Timing | None = None,
    ) -> None:
        self._options = Options(
            timeout=timeout,
            connect_timeout=connect_timeout,
            queue_timeout=queue_timeout,
            retry=retry or RetryPolicy(),
            max_state_bytes=max_state_bytes,
        ).changed(headers={} if headers is None else headers)
        transport = Transport(verify=check_verify(verify), proxy=check_proxy(proxy))
        self._exchange = ApiSession(url, transport, auth=auth, timing=_timing or Timing(), hooks=hooks)
        self._running: set[AsyncBatchJob[Any]] = set()
        self._vocabularies = Vocabularies(self._exchange)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Jobs continue on the server, except those of a `map` that was left early."""
        await close(self._running, self._exchange.transport)

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
        """A view of this client with other settings, on the same connections.

        Args:
            timeout: Seconds that one call may take in all: a request with its repetitions, a `result()`, a loop over
                a job. The job keeps running on the server when it passes.
            connect_timeout: Seconds for a connection to be made.
            queue_timeout: Seconds that one call waits while the job stands in the server's queue. The job stays there
                when it passes.
            idempotency_key: Names the next submit, so that repeating it, also from another process, starts nothing
                new. By default each submit draws a key of its own.
            on_disconnect: Whether the job goes on (`"continue"`) or is cancelled when nobody reads its stream.
            grace: Seconds without a reader before that; at least 60.
            deadline: Seconds from the submit after which the server ends the job as failed.
            retry: How often and how patiently what failed is repeated.
            max_state_bytes: How large the state of a job may become as JSON. One that passes it, by a sixteenth at
                most, ends in a StateTooLargeError; the job keeps running on the server.
            headers: Sent beside those that are set already.
        """
        given = {
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "queue_timeout": queue_timeout,
            "idempotency_key": idempotency_key,
            "on_disconnect": on_disconnect,
            "grace": grace,
            "deadline": deadline,
            "retry": retry,
            "max_state_bytes": max_state_bytes,
            "headers": headers,
        }
        view = object.__new__(type(self))
        view._exchange = self._exchange
        view._running = self._running
        view._vocabularies = self._vocabularies
        view._options = self._options.changed(
            **{name: value for name, value in given.items() if value is not UNSET}
        )
        return view

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def url(self) -> str:
        """Where the server is mounted."""
        return self._exchange.base

    # ---- what the server offers --------------------------------------------------------------------------------

    async def discover(self) -> Discovery:
        """What the server is and offers: endpoints, limits, capabilities. Asked for once."""
        return await self._exchange.discover(self._options)

    async def describe(self, endpoint: str | None = None, /) -> EndpointDescription:
        """One endpoint: the schemas of its input and value, examples, capabilities. Asked for once.

        Args:
            endpoint: Its name; None is the server's only one.
        """
        since = anyio.current_time()
        name = await self._endpoint(endpoint, since)
        return await self._exchange.describe(name, self._options, since)

    # ---- starting jobs -----------------------------------------------------------------------------------------

    @overload
    async def submit(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: Returns[T], **members: Any
    ) -> AsyncJob[T]: ...

    @overload
    async def submit(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: None = None, **members: Any
    ) -> AsyncJob[JsonValue]: ...

    async def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Any = None,
        **members: Any,
    ) -> AsyncJob[Any]:
        """Start a job.

        It is safe against a broken connection: the request carries an idempotency key, and is repeated with it.

        Args:
            endpoint: Its name; None is the server's only one.
            input: The input as one value: JSON, or what pydantic can write as JSON.
            returns: What the job's value is validated as: a type or a TypeAdapter. Without it, the value is JSON.
            members: The input's members, instead of `input`.

        Raises:
            InvalidInputError: The input does not fit the endpoint's schema; says where.
            EndpointNotFoundError: There is no such endpoint; says which there are.
            TidewireError: The server refused it, or cannot be reached.
        """
        return await self._start(endpoint, {"input": one_input(input, members)}, ResultType(returns))

    @overload
    async def run(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: Returns[T], **members: Any
    ) -> T: ...

    @overload
    async def run(
        self, endpoint: str | None = None, input: Any = UNSET, /, *, returns: None = None, **members: Any
    ) -> JsonValue: ...

    async def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Any = None,
        **members: Any,
    ) -> Any:
        """Start a job and wait for its value: `submit`, then `result`."""
        job: AsyncJob[Any] | None = None
        with anyio.move_on_after(self._options.timeout):
            job = await self.submit(endpoint, input, returns=returns, **members)
            return await job.result()
        if job is not None:
            raise job.timed_out()
        what = f"the timeout of {self._options.timeout:g} s passed during the submit"
        raise TotalTimeoutError(what, where=Where("POST", self.url), advice=MAY_RUN)

    @overload
    async def submit_batch(
        self, endpoint: str | None, inputs: Iterable[Any], /, *, returns: Returns[T], **shared: Any
    ) -> AsyncBatchJob[T]: ...

    @overload
    async def submit_batch(
        self, endpoint: str | None, inputs: Iterable[Any], /, *, returns: None = None, **shared: Any
    ) -> AsyncBatchJob[JsonValue]: ...

    async def submit_batch(
        self, endpoint: str | None, inputs: Iterable[Any], /, *, returns: Any = None, **shared: Any
    ) -> AsyncBatchJob[Any]:
        """Start one job of many inputs.

        Args:
            endpoint: Its name; None is the server's only one.
            inputs: At least one.
            returns: What each item's value is validated as.
            shared: Members that every input gets unless it has its own.
        """
        shape: ResultType[Any] = ResultType(returns)
        given: dict[str, Any] = {
            "inputs": [jsonable(one, f"/inputs/{at}") for at, one in enumerate(many_inputs(inputs))]
        }
        if not given["inputs"]:
            raise InvalidInputError("a batch without inputs", advice="Give at least one input.")
        if shared:
            given["shared"] = jsonable(shared, "/shared")
        job, base = await self._submit(endpoint, given)
        return self._begin_batch(job, base, shape)

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
        **shared: Any,
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
        **shared: Any,
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
        **shared: Any,
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
        **shared: Any,
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
        **shared: Any,
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
            shared: Members that every input gets unless it has its own.

        Raises:
            ItemFailedError: In the loop: an item failed or was cancelled.
            InvalidInputError: In the loop: an input does not fit; `pointer` and the text say which.
        """
        work = self._map_work(
            endpoint,
            ResultType(returns),
            shared,
            concurrency=concurrency,
            batch_size=batch_size,
            return_exceptions=return_exceptions,
            progress=progress,
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
            checkpoint: What `job.checkpoint()` gave: updates go on from there.
            returns: What the job's value is validated as.

        Raises:
            CheckpointError: The checkpoint is of another job or another server.
        """
        stream, taken = self._attach(job_id, checkpoint)
        return AsyncJob(
            self._exchange,
            self._options,
            stream,
            cancel_url=self._cancel_url(stream.follower.job_id or ""),
            taken=taken,
            begun=None,
            vocabularies=self._vocabularies,
            endpoint=None,
            shape=ResultType(returns),
        )

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
        """Attach to a job of many inputs; see `job`."""
        stream, taken = self._attach(job_id, checkpoint)
        return AsyncBatchJob(
            self._exchange,
            self._options,
            stream,
            cancel_url=self._cancel_url(stream.follower.job_id or ""),
            taken=taken,
            begun=None,
            shape=ResultType(returns),
        )

    async def jobs(self, *, limit: int = 100) -> list[JobResource]:
        """The caller's own jobs, newest first, without their state.

        Args:
            limit: How many at most.
        """
        found: list[JobResource] = []
        url = f"{self.url}{API_ROOT}/jobs"
        with anyio.move_on_after(self._options.timeout):
            while url and len(found) < limit:
                answer = await self._exchange.ask("GET", url, self._options)
                page = self._exchange.read(JobList, answer, what="jobs")
                found += page.jobs
                # A page without jobs is the last, whatever it says: else a server could lead on for ever.
                url = self._exchange.here(answer.url, page.next, "") if page.next and page.jobs else ""
            return found[:limit]
        raise TotalTimeoutError(f"the timeout of {self._options.timeout:g} s passed", where=Where("GET", url))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    # ---- how jobs are started and attached to ------------------------------------------------------------------

    async def _endpoint(self, name: str | None, since: float | None = None) -> str:
        if name is not None:
            return _checked(name, "an endpoint's name")
        discovery = await self._exchange.discover(self._options, since)
        names = [endpoint.name for endpoint in discovery.endpoints]
        if len(names) == 1:
            return names[0]
        what = (
            f"this server has {len(names)} endpoints: {', '.join(names)}"
            if names
            else "this server has no endpoint"
        )
        advice = f"Name the one to use, such as {names[0]!r}." if names else "Ask whoever runs it."
        raise EndpointNotFoundError(f"no endpoint was named, and {what}", advice=advice)

    async def _start(
        self, endpoint: str | None, given: dict[str, Any], shape: ResultType[Any]
    ) -> AsyncJob[Any]:
        """Submit one input. The answer is the job's stream, where its reader finds it, or the job."""
        since = anyio.current_time()
        try:
            name = await self._endpoint(endpoint, since)
        except EndpointNotFoundError as error:
            if isinstance(given["input"], dict) and "endpoint" in given["input"]:
                error.advice = "Its name is the first argument, without a keyword: submit('…', …)."
            raise
        content = encoded(given | options_on_the_wire(self._options))
        try:
            answer = await self._exchange.submit(
                self._jobs_url(name), self._options, headers=self._key(), body=content, since=since
            )
        except EndpointNotFoundError as error:
            error.advice = await self._names(since, but=error.what)
            raise
        except InvalidInputError as error:
            error.advice = error.advice or f"client.describe({name!r}).input_schema says what it takes."
            raise
        if isinstance(answer, Connection):
            stream, begun = await self._streamed(answer), None
        else:
            job = self._exchange.read(JobResource, answer, what="submitted job")
            name = job.endpoint
            stream, begun = self._stream(job, answer.url)
        return AsyncJob(
            self._exchange,
            self._options,
            stream,
            cancel_url=self._cancel_url(stream.follower.job_id or ""),
            taken=None,
            begun=begun,
            vocabularies=self._vocabularies,
            endpoint=name,
            shape=shape,
        )

    async def _streamed(self, connection: Connection) -> JobStream:
        """The stream that answered a submit."""
        headers = connection.headers
        job_id = last_segment(headers.get("location", ""))
        if not job_id:
            await connection.aclose()
            what = "the stream that answers a submit names no job in Location"
            advice = "The job may run: see client.jobs(), where the server has that."
            raise ProtocolError(what, where=connection.where(), advice=advice)
        link = headers.get("content-location")
        try:
            stream = self._stream_of(job_id, events=None if link is None else (connection.url, link))
        except ProtocolError:
            await connection.aclose()
            raise
        await stream.take_over(connection)
        return stream

    def _map_work(
        self, endpoint: str | None, shape: ResultType[Any], shared: dict[str, Any], **settings: Any
    ) -> MapWork[Any]:
        return MapWork(
            _BatchStarter(self),
            endpoint,
            shape,
            shared,
            options=self._options,
            sleep=self._exchange.timing.sleep,
            **settings,
        )

    async def _submit(self, endpoint: str | None, given: dict[str, Any]) -> tuple[JobResource, str]:
        """Submit many inputs, and ask for the job."""
        since = anyio.current_time()
        name = await self._endpoint(endpoint, since)
        return await self._send(name, encoded(given | options_on_the_wire(self._options)), since)

    async def _send(self, name: str, content: bytes, since: float | None = None) -> tuple[JobResource, str]:
        since = anyio.current_time() if since is None else since
        url = self._jobs_url(name)
        try:
            answer = await self._exchange.ask(
                "POST",
                url,
                self._options,
                asked=RequestKind.SUBMIT,
                headers=self._key(),
                body=content,
                since=since,
            )
        except EndpointNotFoundError as error:
            error.advice = await self._names(since, but=error.what)
            raise
        except InvalidInputError as error:
            error.advice = error.advice or f"client.describe({name!r}).input_schema says what it takes."
            raise
        return self._exchange.read(JobResource, answer, what="submitted job"), answer.url

    def _jobs_url(self, endpoint: str) -> str:
        return f"{self._exchange.endpoint_url(endpoint)}/jobs"

    def _key(self) -> dict[str, str]:
        return {"Idempotency-Key": self._options.idempotency_key or secrets.token_urlsafe(16)}

    async def _names(self, since: float, *, but: str) -> str:
        """Which endpoints there are, in words, unless they were said already."""
        try:
            discovery = await self._exchange.discover(self._options, since)
            names = [endpoint.name for endpoint in discovery.endpoints]
        except TidewireError:
            return ""
        if names and all(name in but for name in names):
            return ""
        return f"This server has: {', '.join(names)}." if names else "This server has no endpoint."

    def _begin_batch(self, job: JobResource, base: str, shape: ResultType[Any]) -> AsyncBatchJob[Any]:
        stream, begun = self._stream(job, base)
        return AsyncBatchJob(
            self._exchange,
            self._options,
            stream,
            cancel_url=self._cancel_url(job.id),
            taken=None,
            begun=begun,
            shape=shape,
        )

    def _stream(self, job: JobResource, base: str) -> tuple[JobStream, Applied | None]:
        """The stream of a job that was just submitted, from the state that came with the answer."""
        stream = self._stream_of(job.id, events=(base, job.links.events))
        begun = stream.follower.adopt(job)
        return stream, begun if isinstance(begun, Applied) else None

    def _stream_of(self, job_id: str, *, events: tuple[str, str] | None = None) -> JobStream:
        """The stream of a job; `events` is the URL of an answer, and the link to the stream in it."""
        exchange = self._exchange
        job_url = exchange.job_url(job_id)
        follower = Follower(
            backoff=Backoff(self._options.retry, exchange.timing.rng),
            job_id=job_id,
            max_state_bytes=self._options.max_state_bytes,
        )
        events_url = f"{job_url}/events" if events is None else exchange.here(*events, f"{job_url}/events")
        return JobStream(exchange, follower, self._options, job_url=job_url, events_url=events_url)

    def _attach(self, job_id: str | None, checkpoint: Checkpoint | None) -> tuple[JobStream, Position | None]:
        if job_id is not None:
            _checked(job_id, "a job's id")
        if checkpoint is None:
            if job_id is None:
                raise TypeError("give the job's id, or a checkpoint of it")
            return self._stream_of(job_id), None
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"checkpoint is a Checkpoint, not {type(checkpoint).__name__}: read it with Checkpoint.from_json(text)"
            )
        if job_id is not None and checkpoint.job != job_id:
            raise CheckpointError(f"the checkpoint is of job {checkpoint.job}, not of {job_id}")
        if checkpoint.url is not None and checkpoint.url != self.url:
            advice = "If it is the same server, give checkpoint.model_copy(update={'url': None})."
            raise CheckpointError(f"the checkpoint is of {checkpoint.url}, not of {self.url}", advice=advice)
        stream = self._stream_of(checkpoint.job)
        if checkpoint.cursor is None or checkpoint.state is None:
            return stream, None
        cursor = Cursor.parse(checkpoint.cursor)
        try:
            view = stream.follower.restore(checkpoint.state, checkpoint.columns, cursor)
        except DiffError as error:
            raise CheckpointError(f"this is no checkpoint: {error}", advice=NO_CHECKPOINT) from None
        return stream, Position(view, checkpoint.columns, cursor)

    def _cancel_url(self, job_id: str) -> str:
        return f"{self._exchange.job_url(job_id)}/cancel"


class _BatchStarter:
    """What `map` needs of a client, without a way back to its public face."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.running: set[AsyncBatchJob[Any]] = client._running

    async def target(self, endpoint: str | None) -> tuple[str, Limits, EndpointDescription]:
        client = self._client
        name = await client._endpoint(endpoint)
        limits = (await client.discover()).limits
        return name, limits, await client.describe(name)

    async def start(self, endpoint: str, body: bytes, key: str, shape: ResultType[T]) -> AsyncBatchJob[T]:
        job, base = await self._client.with_options(idempotency_key=key)._send(endpoint, body)
        return self._client._begin_batch(job, base, shape)


async def close(running: set[AsyncBatchJob[Any]], transport: Transport) -> None:
    """Cancel the jobs of maps that were left, and close what a client holds open."""
    if running:
        transport.loop.check()
        await cancel_all(running)
    await transport.aclose()


def _checked(name: Any, what: str) -> str:
    """What stands in a URL's path, and must be something there."""
    if not isinstance(name, str):
        raise TypeError(f"{what} is a text, not {name!r}")
    if not name:
        raise ValueError(f"{what} is empty")
    return name
