"""How a client starts jobs and attaches to them: what stands behind its methods."""

import secrets
from typing import Any, Final, NoReturn

import anyio

from tidewire.checkpoint import NO_CHECKPOINT, Checkpoint
from tidewire.errors import (
    CheckpointError,
    EndpointNotFoundError,
    InvalidInputError,
    ProtocolError,
    TidewireError,
)
from tidewire.http.connection import Connection
from tidewire.http.exchange import Exchange
from tidewire.http.links import last_segment
from tidewire.inputs import encoded, options_on_the_wire
from tidewire.jobs.batch import AsyncBatchJob
from tidewire.jobs.job import AsyncJob
from tidewire.jobs.leaving import Leftovers
from tidewire.jobs.stream import JobStream
from tidewire.options import Options
from tidewire.protocol.answers import Asked
from tidewire.protocol.backoff import Backoff
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.description import Discovery, EndpointDescription, JobResource
from tidewire.protocol.document.ops import DiffError
from tidewire.protocol.follower import Follower
from tidewire.protocol.outcomes import Advance
from tidewire.types import Place, Shape

NO_COPY: Final = "a client can be neither copied nor pickled: make one where it is used"


class Starter:
    """One server, some options, and the jobs that are made with them."""

    _exchange: Exchange
    _options: Options
    _left: Leftovers

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

    # ---- jobs --------------------------------------------------------------------------------------------------

    async def _start(self, endpoint: str | None, given: dict[str, Any], shape: Shape[Any]) -> AsyncJob[Any]:
        """Submit one input. The answer is the job's stream, where its reader finds it, or the job."""
        since = anyio.current_time()
        try:
            name = await self._endpoint(endpoint, since)
        except EndpointNotFoundError as error:
            if isinstance(given["input"], dict) and "endpoint" in given["input"]:
                error.advice = "Its name is the first argument, without a keyword: submit('…', …)."
            raise
        content = encoded(given | options_on_the_wire(self._options))
        await self._left.cancel()
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

    async def _submit(self, endpoint: str | None, given: dict[str, Any]) -> tuple[JobResource, str]:
        """Submit many inputs, and ask for the job."""
        since = anyio.current_time()
        name = await self._endpoint(endpoint, since)
        return await self._send(name, encoded(given | options_on_the_wire(self._options)), since)

    async def _send(self, name: str, content: bytes, since: float | None = None) -> tuple[JobResource, str]:
        since = anyio.current_time() if since is None else since
        await self._left.cancel()
        url = self._jobs_url(name)
        try:
            answer = await self._exchange.ask(
                "POST", url, self._options, asked=Asked.SUBMIT, headers=self._key(), body=content, since=since
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

    def _begin_batch(self, job: JobResource, base: str, shape: Shape[Any]) -> AsyncBatchJob[Any]:
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

    def _stream(self, job: JobResource, base: str) -> tuple[JobStream, Advance | None]:
        """The stream of a job that was just submitted, from the state that came with the answer."""
        stream = self._stream_of(job.id, events=(base, job.links.events))
        begun = stream.follower.adopt(job)
        return stream, begun if isinstance(begun, Advance) else None

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

    def _attach(self, job_id: str | None, checkpoint: Checkpoint | None) -> tuple[JobStream, Place | None]:
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
        return stream, Place(view, checkpoint.columns, cursor)

    def _cancel_url(self, job_id: str) -> str:
        return f"{self._exchange.job_url(job_id)}/cancel"

    # ---- what was left behind ----------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        """Let go of what loops that were left early have left behind."""
        await self._exchange.transport.bury()
        await self._left.cancel()


def _checked(name: Any, what: str) -> str:
    """What stands in a URL's path, and must be something there."""
    if not isinstance(name, str):
        raise TypeError(f"{what} is a text, not {name!r}")
    if not name:
        raise ValueError(f"{what} is empty")
    return name
