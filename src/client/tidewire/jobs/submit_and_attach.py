"""`JobStarter`, which submits jobs to a server and creates the readers of new and existing jobs."""

import copy
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar, cast

import anyio

from tidewire.checkpoint import NO_CHECKPOINT, Checkpoint
from tidewire.errors import (
    CheckpointError,
    EndpointNotFoundError,
    InvalidInputError,
    ProtocolError,
    TidewireError,
    TotalTimeoutError,
    Where,
)
from tidewire.following.follower import Follower
from tidewire.following.follower_outcomes import Applied
from tidewire.following.request_policy import RequestPolicy
from tidewire.http.api_session import ApiSession
from tidewire.http.links_and_origins import last_segment
from tidewire.http.response import Connection, Response
from tidewire.http.transport import Transport
from tidewire.inputs.submit_members import encoded, options_on_the_wire
from tidewire.jobs.batch_job import AsyncBatchJob, cancel_all
from tidewire.jobs.batch_job_reader import BatchJobReader
from tidewire.jobs.generated_tokens import Vocabularies
from tidewire.jobs.job_reader import QueueWarnings
from tidewire.jobs.reconnecting_stream import JobStream
from tidewire.jobs.single_job_reader import SingleJobReader
from tidewire.options import Options
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.problems import did_you_mean
from tidewire.protocol.resources import API_ROOT, EndpointDescription, JobList, JobResource, Limits
from tidewire.result_type import ResultType
from tidewire.updates import Position

T = TypeVar("T")


class JobStarter:
    """Submits jobs with one set of options. A client and the clients that its `with_options` returned share the
    connections and caches, but each of them has its own `JobStarter` with its own options.

    Attributes:
        running: Jobs that calls of `map` have submitted, and that were neither read to their end nor cancelled. Closing
            the client cancels these jobs.
    """

    def __init__(self, session: ApiSession, options: Options) -> None:
        self.session: ApiSession = session
        self.options: Options = options
        self.running: set[AsyncBatchJob[Any]] = set()
        self._vocabularies = Vocabularies(session)
        self._queue_warnings = QueueWarnings()

    def with_options(self, options: Options) -> Self:
        """Return a `JobStarter` for the same server, with other options."""
        view = copy.copy(self)
        view.options = options
        return view

    def closing(self) -> Callable[[], Awaitable[None]]:
        """Return a function that cancels the running jobs of abandoned `map` calls and closes all connections.

        The function must not hold references to the user's hooks. A hook may refer to the client, and the client could
        then never be garbage-collected.
        """
        return partial(_close, self.running, self.session.transport)

    # ---- endpoints ---------------------------------------------------------------------------------------------

    async def endpoint(self, name: str | None, since: float | None = None) -> str:
        """Resolve an endpoint name. None resolves to the server's only endpoint.

        Raises:
            EndpointNotFoundError: No name was passed and the server does not have exactly one endpoint.
        """
        if name is not None:
            return _checked(name, "an endpoint's name")
        discovery = await self.session.discover(self.options, since)
        names = [endpoint.name for endpoint in discovery.endpoints]
        if len(names) == 1:
            return names[0]
        self.session.forget_descriptions()
        what = (
            f"this server has {len(names)} endpoints: {', '.join(names)}"
            if names
            else "this server has no endpoint"
        )
        advice = f"Pass the endpoint's name, such as {names[0]!r}." if names else "Ask the server's operator."
        raise EndpointNotFoundError(f"no endpoint name was passed, and {what}", advice=advice)

    async def describe(self, name: str | None) -> EndpointDescription:
        since = anyio.current_time()
        return await self.session.describe(await self.endpoint(name, since), self.options, since)

    async def target(self, endpoint: str | None) -> tuple[str, Limits, EndpointDescription]:
        """Return the endpoint's name, the server's limits and the endpoint's description."""
        name = await self.endpoint(endpoint)
        limits = (await self.session.discover(self.options)).limits
        return name, limits, await self.describe(name)

    # ---- starting ----------------------------------------------------------------------------------------------

    async def submit(
        self, endpoint: str | None, members: dict[str, Any], key: str | None, shape: ResultType[T]
    ) -> SingleJobReader[T]:
        """Submit a job with one input and return its reader. The response to the request is either the job's event
        stream, which the reader continues to read, or the job as JSON.
        """
        since = anyio.current_time()
        try:
            name = await self.endpoint(endpoint, since)
        except EndpointNotFoundError as error:
            if isinstance(members["input"], dict) and "endpoint" in members["input"]:
                error.advice = "Pass the endpoint's name as the first positional argument: submit('…', …)."
            raise
        content = encoded(members | options_on_the_wire(self.options))
        response = await self._submit(name, content, key, since, stream=True)
        if isinstance(response, Connection):
            stream, initial = await self._streamed(response), None
        else:
            job = self.session.read(JobResource, response, what="submitted job")
            name = job.endpoint
            stream, initial = self._stream(job, response)
        return self._single(stream, None, shape, initial=initial, endpoint=name)

    async def run(
        self, endpoint: str | None, members: dict[str, Any], key: str | None, shape: ResultType[T]
    ) -> T:
        """Submit a job with one input and wait for its value. The client's timeout bounds both together.

        Raises:
            TotalTimeoutError: The timeout passed.
        """
        timeout = self.options.timeout
        deadline = math.inf if timeout is None else anyio.current_time() + timeout
        reader = await self.submit(endpoint, members, key, shape)
        with anyio.CancelScope(deadline=deadline):
            await reader.wait(check=reader.check_items)
            return reader.outcome()
        raise reader.timed_out(f"the timeout of {timeout:g} s")

    async def submit_batch(
        self, endpoint: str | None, members: dict[str, Any], key: str | None, shape: ResultType[T]
    ) -> AsyncBatchJob[T]:
        """Submit a job with many inputs and return its reader."""
        since = anyio.current_time()
        name = await self.endpoint(endpoint, since)
        body = encoded(members | options_on_the_wire(self.options))
        return await self.start(name, body, key, shape, since)

    def policy(self) -> RequestPolicy:
        """Return new retry counters for one submit."""
        return self.session.policy(self.options)

    async def start(
        self,
        name: str,
        body: bytes,
        key: str | None,
        shape: ResultType[T],
        since: float | None = None,
        policy: RequestPolicy | None = None,
    ) -> AsyncBatchJob[T]:
        """Submit a job with many inputs, whose request body is already serialized.

        Args:
            name: Name of the endpoint.
            body: Body of the request.
            key: Idempotency key.
            shape: Result type of the items.
            since: Time at which the timeout starts.
            policy: Counters of the attempts so far, if the caller waits before the next attempt.

        Raises:
            RetryLaterError: The next attempt is due later. Only raised if `policy` is not None.
        """
        since = anyio.current_time() if since is None else since
        response = cast("Response", await self._submit(name, body, key, since, stream=False, policy=policy))
        job = self.session.read(JobResource, response, what="submitted job")
        stream, initial = self._stream(job, response)
        return AsyncBatchJob(
            BatchJobReader(stream, None, shape, initial=initial, queue_warnings=self._queue_warnings)
        )

    async def _submit(
        self,
        name: str,
        body: bytes,
        key: str | None,
        since: float,
        *,
        stream: bool,
        policy: RequestPolicy | None = None,
    ) -> Response | Connection:
        """Send the request that submits a job. If the server refuses it, the error contains advice for the user."""
        try:
            return await self.session.submit(
                f"{self.session.endpoint_url(name)}/jobs",
                self.options,
                headers={"Idempotency-Key": key or secrets.token_urlsafe(16)},
                body=body,
                since=since,
                stream=stream,
                policy=policy,
            )
        except EndpointNotFoundError as error:
            error.advice = await self._names(since, name, message=error.what)
            raise
        except InvalidInputError as error:
            error.advice = error.advice or _input_advice(name, error)
            raise

    async def _streamed(self, connection: Connection) -> JobStream:
        """Continue the event stream that the server sent in response to a request to submit a job.

        Raises:
            ProtocolError: The response does not name the job.
        """
        headers = connection.headers
        link = headers.get("content-location")
        try:
            job_id = last_segment(headers.get("location", ""))
            stream = self._stream_of(job_id, events=None if link is None else (connection.url, link))
        except ProtocolError:
            await connection.aclose()
            raise
        except ValueError as error:
            await connection.aclose()
            what = f"the response to the submitted job is an event stream, but it has no Location header that names the job: {error}"
            raise ProtocolError(what, where=connection.where(), advice=_MAYBE_RUNNING) from None
        await stream.adopt_response(connection)
        return stream

    async def _names(self, since: float, name: str, *, message: str) -> str:
        """Return advice that suggests a similar name and lists the server's endpoints.

        The advice is empty if the error message already lists the endpoints.
        """
        try:
            discovery = await self.session.discover(self.options, since)
            names = [endpoint.name for endpoint in discovery.endpoints]
        except TidewireError:
            return ""
        if names and all(each in message for each in names):
            return ""
        if not names:
            return "This server has no endpoint."
        question = did_you_mean(name, names)
        return f"{question[:1].upper()}{question[1:]}This server has: {', '.join(names)}."

    # ---- existing jobs ---------------------------------------------------------------------------------------------

    async def list_jobs(self, limit: int) -> list[JobResource]:
        """Request the caller's own jobs, page by page."""
        found: list[JobResource] = []
        session, options = self.session, self.options
        url = f"{session.base}{API_ROOT}/jobs"
        with anyio.move_on_after(options.timeout):
            while url and len(found) < limit:
                response = await session.request("GET", url, options)
                page = session.read(JobList, response, what="jobs")
                found += page.jobs
                # Stop at a page without jobs even if the page links to a next page, because a faulty server could send
                # such pages forever.
                url = (
                    session.links.same_origin(response.url, page.next, "") if page.next and page.jobs else ""
                )
            return found[:limit]
        raise TotalTimeoutError(f"the timeout of {options.timeout:g} s passed", where=Where("GET", url))

    def attach(
        self, job_id: str | None, checkpoint: Checkpoint | None, shape: ResultType[T]
    ) -> SingleJobReader[T]:
        """Create the reader of an existing job with one input. This method sends no request."""
        if isinstance(checkpoint, Checkpoint) and checkpoint.undelivered:
            what = "the checkpoint contains undelivered updates of a batch job"
            raise CheckpointError(what, advice="Use client.batch_job(checkpoint=…) instead of client.job().")
        return self._single(*self._attached(job_id, checkpoint), shape)

    def attach_batch(
        self, job_id: str | None, checkpoint: Checkpoint | None, shape: ResultType[T]
    ) -> BatchJobReader[T]:
        """Create the reader of an existing job with many inputs. This method sends no request."""
        stream, delivered = self._attached(job_id, checkpoint)
        undelivered = () if checkpoint is None else checkpoint.undelivered
        return BatchJobReader(
            stream, delivered, shape, undelivered=undelivered, queue_warnings=self._queue_warnings
        )

    def _attached(
        self, job_id: str | None, checkpoint: Checkpoint | None
    ) -> tuple[JobStream, Position | None]:
        if job_id is not None:
            _checked(job_id, "a job's id")
        if checkpoint is None:
            if job_id is None:
                raise TypeError("pass the job's id or a checkpoint")
            return self._stream_of(job_id), None
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"checkpoint must be a Checkpoint, not {type(checkpoint).__name__}: use Checkpoint.from_json(text)"
            )
        if job_id is not None and checkpoint.job != job_id:
            raise CheckpointError(f"the checkpoint belongs to job {checkpoint.job}, not to {job_id}")
        if checkpoint.url is not None and checkpoint.url != self.session.base:
            advice = "If both URLs lead to the same server, pass dataclasses.replace(checkpoint, url=None)."
            raise CheckpointError(
                f"the checkpoint belongs to {checkpoint.url}, not to {self.session.base}", advice=advice
            )
        try:
            stream = self._stream_of(checkpoint.job)
        except ValueError as error:
            raise CheckpointError(f"the checkpoint is not valid: {error}") from None
        if checkpoint.cursor is None or checkpoint.state is None:
            return stream, None
        cursor = Cursor.parse(checkpoint.cursor)
        try:
            view = stream.follower.restore(checkpoint.state, checkpoint.columns, cursor)
        except DiffError as error:
            raise CheckpointError(f"the checkpoint is not valid: {error}", advice=NO_CHECKPOINT) from None
        return stream, Position(view, checkpoint.columns, cursor)

    # ---- readers and their streams -----------------------------------------------------------------------------

    def _single(
        self,
        stream: JobStream,
        delivered: Position | None,
        shape: ResultType[T],
        *,
        initial: Applied | None = None,
        endpoint: str | None = None,
    ) -> SingleJobReader[T]:
        return SingleJobReader(
            stream,
            delivered,
            shape,
            queue_warnings=self._queue_warnings,
            initial=initial,
            vocabularies=self._vocabularies,
            endpoint=endpoint,
        )

    def _stream(self, job: JobResource, response: Response) -> tuple[JobStream, Applied | None]:
        """Create the stream of a job that was just submitted. The stream starts from the state in the response.

        Raises:
            ProtocolError: The id of the job cannot be part of a URL.
        """
        try:
            stream = self._stream_of(job.id, events=(response.url, job.links.events))
        except ValueError as error:
            raise ProtocolError(
                f"the server started a job, but {error}", where=response.where(), advice=_MAYBE_RUNNING
            ) from None
        initial = stream.follower.adopt(job)
        return stream, initial if isinstance(initial, Applied) else None

    def _stream_of(self, job_id: str, *, events: tuple[str, str] | None = None) -> JobStream:
        """Create the stream of a job.

        `events` is a pair: the URL of a response, and the link to the event stream in this response.
        """
        session = self.session
        job_url = session.job_url(job_id)
        follower = Follower(
            policy=session.policy(self.options),
            job_id=job_id,
            max_state_bytes=self.options.max_state_bytes,
        )
        events_url = (
            f"{job_url}/events" if events is None else session.links.same_origin(*events, f"{job_url}/events")
        )
        return JobStream(session, follower, self.options, job_url=job_url, events_url=events_url)


def _input_advice(endpoint: str, error: InvalidInputError) -> str:
    if error.status_code != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        schema = f"See the schema of its input: client.describe({endpoint!r}).input_schema."
        name = (error.pointer or "").removeprefix("/input/")
        option = (
            f" An option of the client is set with client.with_options({name}=…)." if name in _OPTIONS else ""
        )
        return schema + option
    # A problem from the server already contains advice. The error page of a proxy does not.
    return (
        ""
        if error.problem
        else "The request is too large for the server or a proxy in front of it: send less."
    )


_OPTIONS: Final = frozenset(each.name for each in fields(Options))
_MAYBE_RUNNING: Final = (
    "The job may be running. Look for the job in client.jobs(), if the server can list jobs."
)


async def _close(running: set[AsyncBatchJob[Any]], transport: Transport) -> None:
    if running:
        transport.loop.check()
        await cancel_all(running)
    await transport.aclose()


def _checked(name: Any, what: str) -> str:
    """Check that a name can be a segment of a URL's path, and return it."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r}")
    if not name:
        raise ValueError(f"{what} must not be empty")
    return name
