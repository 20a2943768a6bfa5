"""`AsyncClient`: the async client of one server, for asyncio and trio."""

import os
import ssl
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, overload

from tidewire.checkpoint import Checkpoint
from tidewire.errors import ItemFailedError
from tidewire.following.retry_policy import RetryPolicy
from tidewire.hooks import Hooks
from tidewire.http.api_session import new_session
from tidewire.http.auth_refresh import Auth
from tidewire.inputs.submit_members import UNSET, Unset, many_inputs, many_members, one_input, shared_members
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.job import AsyncJob
from tidewire.jobs.map.map_iterator import AsyncMap
from tidewire.jobs.map.map_work import BATCH_SIZE, CONCURRENCY, MapWork, total_of
from tidewire.jobs.map.outcomes import MapProgress
from tidewire.jobs.submit_and_attach import JobStarter
from tidewire.options import ANSWER_TIMEOUT, CONNECT_TIMEOUT, OnDisconnect, Options, check_key, without_key
from tidewire.protocol.document.state_size import MAX_STATE_BYTES
from tidewire.protocol.resources import Discovery, EndpointDescription, JobResource
from tidewire.result_type import ResultType, Returns, T

NO_COPY: Final = "a client cannot be copied or pickled: create a new client where you need one"


class AsyncClient:
    """Async client of one server, on asyncio or trio.

    A client has one connection pool and can run any number of jobs at the same time. Close the client with `async with`
    or `aclose()`. A client that made requests and was not closed emits a ResourceWarning when it is garbage-collected.

    The client and its jobs belong to the event loop on which the client is first used. Using them on any other event
    loop raises EventLoopError, even if the first event loop has ended.

    The client respects the environment variables `TIDEWIRE_URL`, `TIDEWIRE_TOKEN`, `HTTPS_PROXY`, `NO_PROXY` and
    `SSL_CERT_FILE`.

    Example:
        async with AsyncClient("http://127.0.0.1:8000") as client:
            job = await client.submit("generate", prompt="def fib(", max_tokens=64)
            async for update in job:
                print(update.text, end="", flush=True)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        timeout: float | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        answer_timeout: float = ANSWER_TIMEOUT,
        queue_timeout: float | None = None,
        retry: RetryPolicy | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        verify: bool | ssl.SSLContext = True,
        proxy: str | None = None,
        uds: str | os.PathLike[str] | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Create a client. The constructor sends no requests.

        Args:
            url: The server's base URL, such as `http://127.0.0.1:8000` or `https://example.org/ai`. If the URL contains
                a user and password, the client sends them in the `Authorization` header. They never appear in error
                messages. None: the value of the environment variable `TIDEWIRE_URL`.
            token: Bearer token, which the client sends in the `Authorization` header, to the server's origin only. It
                never appears in error messages. It cannot be combined with `auth`, with an `Authorization` header in
                `headers` or with a user in the URL. Without any of these, the client uses the environment variable
                `TIDEWIRE_TOKEN`, if it is set. If `TIDEWIRE_URL` is also set, the client uses `TIDEWIRE_TOKEN` only for
                the origin of that URL.
            headers: Extra headers for every request, such as credentials. The client sends them to the server's
                origin only. Headers passed to `with_options` are added to the headers of the client, and replace
                headers of the same name.
            auth: A function or coroutine function that returns the headers with the credentials. The client calls the
                function before the first request, and again when the server rejects the credentials with the status 401
                or 403.
            timeout: Seconds that one call may take in total: a request including its retries, a `result()`, a whole
                loop over a job. After this time, the call raises TotalTimeoutError, and the job continues on the
                server. None: no limit.
            connect_timeout: Seconds that opening a connection may take.
            answer_timeout: Seconds that one attempt of a request may wait for the response, or for its next byte.
                After this time, the client retries within `retry`. An open stream has another time limit, which
                depends on the server's heartbeat.
            queue_timeout: Seconds that one call waits while the job is in the server's queue. After this time, the
                call raises QueueTimeoutError, and the job stays in the queue. None: no limit.
            retry: Limits for the retries of failed requests and the reconnects of lost streams. They limit the time
                without progress, the waits, and the number of failures in a row. By default, the client gives up
                after 300 seconds without progress; `RetryPolicy` documents all limits and their defaults.
            max_state_bytes: Maximum size of a job's state as JSON, in bytes. Reading a job with a larger state raises
                StateTooLargeError. The client may detect a larger state late, but at the latest when the state
                exceeds the limit by a sixteenth. The job continues on the server.
            verify: Whether to verify the server's certificate, or the `ssl.SSLContext` to use.
            proxy: URL of a proxy for all requests, such as `http://proxy.example:3128`. This argument takes precedence
                over the environment variables.
            uds: Path of a Unix domain socket to connect to. The URL's host and port are then used only for the
                `Host` header, and proxies in the environment variables are not used.
            hooks: Callbacks for metrics and tracing. The client calls them for requests, reconnects, resyncs and the
                ends of jobs.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is not valid, there is no URL, or two arguments are mutually exclusive.
        """
        options = Options(
            timeout=timeout,
            connect_timeout=connect_timeout,
            answer_timeout=answer_timeout,
            queue_timeout=queue_timeout,
            retry=retry or RetryPolicy(),
            max_state_bytes=max_state_bytes,
        ).changed(headers={} if headers is None else headers)
        session = new_session(url, token, headers, auth, hooks, proxy=proxy, uds=uds, verify=verify)
        self._starter = JobStarter(session, options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections.

        Jobs continue on the server, except that the client cancels the running jobs of a `map` whose loop was left
        early.
        """
        await self._starter.closing()()

    @without_key
    def with_options(
        self,
        *,
        timeout: float | Unset | None = UNSET,
        connect_timeout: float | Unset = UNSET,
        answer_timeout: float | Unset = UNSET,
        queue_timeout: float | Unset | None = UNSET,
        on_disconnect: OnDisconnect | Unset = UNSET,
        grace: float | Unset | None = UNSET,
        deadline: float | Unset | None = UNSET,
        retry: RetryPolicy | Unset = UNSET,
        max_state_bytes: int | Unset = UNSET,
        headers: Mapping[str, str] | Unset = UNSET,
    ) -> Self:
        """Return a client that has other options but shares the connections of this client. Omitted options keep their
        values.

        Args:
            timeout: Seconds that one call may take in total: a request including its retries, a `result()`, a whole
                loop over a job. After this time, the call raises TotalTimeoutError, and the job continues on the
                server. None: no limit.
            connect_timeout: Seconds that opening a connection may take.
            answer_timeout: Seconds that one attempt of a request may wait for the response, or for its next byte.
                After this time, the client retries within `retry`. An open stream has another time limit, which
                depends on the server's heartbeat.
            queue_timeout: Seconds that one call waits while the job is in the server's queue. After this time, the
                call raises QueueTimeoutError, and the job stays in the queue. None: no limit.
            on_disconnect: What the server does with a job whose stream has had no reader for `grace` seconds: run it
                to its end (`"continue"`) or cancel it (`"cancel"`).
            grace: Seconds for which a job's stream must have had no reader before `on_disconnect` applies. With less
                than 60, the server may cancel a job before the client has reconnected, which can take half a minute.
                A server raises values below its minimum, `discover().limits.min_grace_ms`, which is 5 seconds by
                default. None: 60.
            deadline: Seconds that a job may take, counted from its submission. After this time, the server ends an
                unfinished job as failed. None: no deadline.
            retry: Limits for the retries of failed requests and the reconnects of lost streams. They limit the time
                without progress, the waits, and the number of failures in a row. By default, the client gives up
                after 300 seconds without progress; `RetryPolicy` documents all limits and their defaults.
            max_state_bytes: Maximum size of a job's state as JSON, in bytes. Reading a job with a larger state raises
                StateTooLargeError. The client may detect a larger state late, but at the latest when the state
                exceeds the limit by a sixteenth. The job continues on the server.
            headers: Extra headers for every request, such as credentials. The client sends them to the server's
                origin only. Headers passed to `with_options` are added to the headers of the client, and replace
                headers of the same name.
        """
        changes = {name: value for name, value in locals().items() if name != "self" and value is not UNSET}
        view = object.__new__(type(self))
        view._starter = self._starter.with_options(self._starter.options.changed(**changes))
        return view

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def url(self) -> str:
        """The server's base URL, without credentials."""
        return self._starter.session.base

    # ---- discovery ---------------------------------------------------------------------------------------------

    async def discover(self) -> Discovery:
        """Return the server's endpoints, limits and capabilities. They are cached like the result of `describe`."""
        return await self._starter.session.discover(self._starter.options)

    async def describe(self, endpoint: str | None = None, /) -> EndpointDescription:
        """Return an endpoint's schemas for inputs and values, its examples and its capabilities.

        The client caches the description until the server refuses a request with the status 404, 413 or 422.

        Args:
            endpoint: Endpoint name. May be omitted if the server has exactly one.

        Raises:
            EndpointNotFoundError: The server has no endpoint with this name, or no name was passed and the server does
                not have exactly one endpoint.

        Example:
            description = await client.describe("generate")
            print(description.input_schema)
        """
        return await self._starter.describe(endpoint)

    # ---- starting jobs -----------------------------------------------------------------------------------------

    # `submit` and `run` have overloads, because type checkers do not use the default of T if the method itself is an argument, as
    # in `asyncio.to_thread(client.run, …)`.

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
    ) -> AsyncJob[Any]: ...

    @overload
    async def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: Returns[T] | None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> AsyncJob[T]: ...

    async def submit(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Returns[T] | None = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> AsyncJob[T]:
        """Start a job and return as soon as the server has accepted it.

        The request carries an idempotency key. If the response is lost, the client sends the request again with the
        same key, as often as its `RetryPolicy` allows, and the server does not start the job twice. The job runs on the
        server even if no client reads its stream. To have unread jobs cancelled, use
        `with_options(on_disconnect="cancel")`.

        Args:
            endpoint: Endpoint name. May be omitted if the server has exactly one.
            input: The whole input as one value: JSON, or anything that pydantic serializes to JSON. Mutually exclusive
                with `members`.
            returns: Type or `TypeAdapter` for the job's value. Without it, the value is plain JSON, as `Any`.
            idempotency_key: Idempotency key of the request. If another request has the same key and content, the server
                returns the same job, even if another process sends that request. By default the client generates a
                random key for each call.
            members: The members of the input, as keyword arguments. If the input has members named `returns` or
                `idempotency_key`, pass the whole input as `input` instead.

        Raises:
            EndpointNotFoundError: The server has no endpoint with this name. The error message lists the server's
                endpoints.
            InvalidInputError: The input does not match the endpoint's schema. `pointer` names the invalid member.
            QueueFullError: The endpoint's queue was full for longer than the `RetryPolicy` allows.
            TransportError: The server could not be reached within the `RetryPolicy`.
            TotalTimeoutError: The client's `timeout` passed. The job may have been started.
            TidewireError: The server refused the request for another reason.

        Example:
            job = await client.submit("generate", prompt="def fib(", max_tokens=64)
            async for update in job:
                print(update.text, end="", flush=True)
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
        returns: None = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> Any: ...

    @overload
    async def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,
        /,
        *,
        returns: Returns[T] | None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> T: ...

    async def run(
        self,
        endpoint: str | None = None,
        input: Any = UNSET,  # noqa: A002 - the protocol's word
        /,
        *,
        returns: Returns[T] | None = None,
        idempotency_key: str | None = None,
        **members: Any,
    ) -> T:
        """Start a job, wait for it to end and return its value.

        The call is equivalent to `submit` followed by `result`, and the client's `timeout` applies to both together.

        Args:
            endpoint: Endpoint name. May be omitted if the server has exactly one.
            input: The whole input as one value: JSON, or anything that pydantic serializes to JSON. Mutually exclusive
                with `members`.
            returns: Type or `TypeAdapter` for the job's value. Without it, the value is plain JSON, as `Any`.
            idempotency_key: Idempotency key of the request. If another request has the same key and content, the server
                returns the same job, even if another process sends that request. By default the client generates a
                random key for each call.
            members: The members of the input, as keyword arguments. If the input has members named `returns` or
                `idempotency_key`, pass the whole input as `input` instead.

        Raises:
            TidewireError: All errors of `submit` and of `AsyncJob.result`.
            TotalTimeoutError: The client's `timeout` passed. The job may still run on the server.

        Example:
            text = await client.run("generate", prompt="def fib(", max_tokens=64)
        """
        check_key(idempotency_key)
        content = {"input": one_input(input, members)}
        return await self._starter.run(endpoint, content, idempotency_key, ResultType(returns))

    async def submit_batch(
        self,
        endpoint: str | None,
        inputs: Iterable[Any],
        /,
        *,
        returns: Returns[T] | None = None,
        idempotency_key: str | None = None,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> AsyncBatchJob[T]:
        """Start one job with many inputs and return as soon as the server has accepted it.

        The server runs each input as an item of the job. Items succeed or fail independently of each other. For more
        inputs than the server accepts in one job, use `map`.

        Args:
            endpoint: Endpoint name, or None if the server has exactly one.
            inputs: One or more inputs. Each input is JSON, or anything that pydantic serializes to JSON.
            returns: Type or `TypeAdapter` for the value of each item. Without it, values are plain JSON, as `Any`.
            idempotency_key: Idempotency key of the request. If another request has the same key and content, the server
                returns the same job, even if another process sends that request. By default the client generates a
                random key for each call.
            shared: Members that are added to every input that does not already have them.
            members: More members to add to every input, as keyword arguments. Members named `returns`,
                `idempotency_key` or `shared` can only be passed in `shared`.

        Raises:
            InvalidInputError: There are no inputs or too many inputs for one job, or an input does not match the
                endpoint's schema.
            TidewireError: All other errors of `submit`.

        Example:
            job = await client.submit_batch("generate", [{"prompt": "a"}, {"prompt": "b"}], max_tokens=64)
            texts = await job.results()
        """
        check_key(idempotency_key)
        content = many_members(inputs, shared_members(shared, members))
        return await self._starter.submit_batch(endpoint, content, idempotency_key, ResultType(returns))

    @overload
    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any] | AsyncIterable[Any],
        /,
        *,
        returns: Returns[T] | None = None,
        return_exceptions: Literal[False] = False,
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        idempotency_key: str | None = None,
        resume_file: str | os.PathLike[str] | None = None,
        retry_failed: bool = False,
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
        returns: Returns[T] | None = None,
        return_exceptions: Literal[True],
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        idempotency_key: str | None = None,
        resume_file: str | os.PathLike[str] | None = None,
        retry_failed: bool = False,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> AsyncMap[T | ItemFailedError]: ...

    def map(
        self,
        endpoint: str | None,
        inputs: Iterable[Any] | AsyncIterable[Any],
        /,
        *,
        returns: Returns[T] | None = None,
        return_exceptions: bool = False,
        concurrency: int = CONCURRENCY,
        batch_size: int = BATCH_SIZE,
        progress: Callable[[MapProgress], object] | None = None,
        idempotency_key: str | None = None,
        resume_file: str | os.PathLike[str] | None = None,
        retry_failed: bool = False,
        shared: Mapping[str, Any] | None = None,
        **members: Any,
    ) -> AsyncMap[Any]:
        """Run the endpoint on any number of inputs, and iterate over the resulting values in the order of the inputs.

        The loop receives each value as soon as the client has received this value and all values before it. The client
        submits the inputs in batch jobs if the endpoint supports batches, and otherwise submits one job for each input.
        It consumes the inputs lazily, at most `concurrency` × `batch_size` ahead of the yielded values, so `inputs` may
        be endless. The client's `timeout` applies to the time in which it reads each job.

        Args:
            endpoint: Endpoint name, or None if the server has exactly one.
            inputs: Iterable or async iterable of inputs.
            returns: Type or `TypeAdapter` for each value. Without it, values are plain JSON, as `Any`.
            return_exceptions: Yield the error of a failed item in place of its value, instead of raising it.
            concurrency: Maximum number of jobs running at the same time.
            batch_size: Maximum number of inputs in one job. The server's limits `max_inputs` and `max_body_bytes` may
                lower this number.
            progress: Function or coroutine function that the client calls with a `MapProgress` whenever the progress
                has changed. The client logs its exceptions and otherwise ignores them. Without a function, a
                notebook shows a progress bar.
            idempotency_key: Idempotency key of the whole call. Another `map` with the same key and inputs reuses the
                jobs of this call, even in another process, as long as the server keeps them. Jobs that have expired run
                again. If a key is passed, the jobs keep running when the loop is left early.
            resume_file: Path of a file that records the jobs and outcomes of this call. Another `map` with the same file
                and inputs, also in another process, first yields the outcomes in the file, then reads the jobs that are
                still running, and runs only the other inputs. More inputs may follow after those of the earlier call.
                The jobs keep running when the loop is left early.
            retry_failed: Run all failed inputs in the `resume_file` again. By default, only failures that are
                `retryable` are run again, and the others are reported again.
            shared: Members that are added to every input that does not already have them.
            members: More members to add to every input, as keyword arguments. Members that have the name of another
                argument can only be passed in `shared`.

        Raises:
            ResumeFileError: During iteration: the resume file cannot be used, or contains another input at this index.
            ItemFailedError: During iteration: an item failed or was cancelled.
            InvalidValueError: During iteration: a value is not of the type `returns`. The error message names the input.
            InvalidInputError: During iteration: an input does not match the endpoint's schema. The error message and
                `pointer` name the input.
            TypeError: During iteration: an input contains an object without a JSON form, such as bytes or a set.

        Example:
            async for text in client.map("generate", ({"prompt": line} for line in lines), max_tokens=64):
                print(text)
        """
        work = MapWork(
            self._starter,
            endpoint,
            ResultType(returns),
            shared_members(shared, members),
            concurrency=concurrency,
            batch_size=batch_size,
            return_exceptions=return_exceptions,
            progress=progress,
            key=idempotency_key,
            resume_file=resume_file,
            retry_failed=retry_failed,
            total=total_of(inputs),
        )
        return AsyncMap(work, inputs if isinstance(inputs, AsyncIterable) else many_inputs(inputs))

    # ---- existing jobs -----------------------------------------------------------------------------------------

    def job(
        self,
        job_id: str | None = None,
        /,
        *,
        checkpoint: Checkpoint | None = None,
        returns: Returns[T] | None = None,
    ) -> AsyncJob[T]:
        """Return an existing job, by its id or from a checkpoint. The client sends no request until the job is used.

        Args:
            job_id: The job's id. Without a checkpoint, the first update contains the whole value so far.
            checkpoint: Result of an earlier `job.checkpoint()`. The updates continue after the position of the checkpoint.
            returns: Type or `TypeAdapter` for the job's value. Without it, the value is plain JSON, as `Any`.

        Raises:
            CheckpointError: The checkpoint belongs to another job or another server.

        Example:
            job = client.job(checkpoint=Checkpoint.from_json(path.read_text()))
            async for update in job:
                print(update.text, end="", flush=True)
        """
        return AsyncJob(self._starter.attach(job_id, checkpoint, ResultType(returns)))

    def batch_job(
        self,
        job_id: str | None = None,
        /,
        *,
        checkpoint: Checkpoint | None = None,
        returns: Returns[T] | None = None,
    ) -> AsyncBatchJob[T]:
        """Return an existing batch job, by its id or from a checkpoint. The client sends no request until the job is
        used.

        Args:
            job_id: The job's id. Without a checkpoint, the first update of each item contains the whole value so far.
            checkpoint: Result of an earlier `job.checkpoint()`. The updates continue after the position of the checkpoint.
            returns: Type or `TypeAdapter` for the value of each item. Without it, values are plain JSON, as `Any`.

        Raises:
            CheckpointError: The checkpoint belongs to another job or another server.
        """
        return AsyncBatchJob(self._starter.attach_batch(job_id, checkpoint, ResultType(returns)))

    async def jobs(self, *, limit: int = 100) -> list[JobResource]:
        """List the caller's own jobs, newest first. The listed jobs do not contain their states.

        The server sends the list in pages, and the client requests as many pages as it needs for `limit` jobs.

        Args:
            limit: Maximum number of jobs to return.

        Raises:
            TidewireError: The server refused the request, for example because the server cannot list jobs.
        """
        return await self._starter.list_jobs(limit)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def starter_of(client: AsyncClient) -> JobStarter:
    """Return the `JobStarter` of a client. The blocking client calls the methods of this object directly."""
    return client._starter
