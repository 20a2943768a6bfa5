"""The fake server (`FakeServer`), which implements the HTTP resources of the protocol and returns scripted answers."""

import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import anyio
import httpx2

from tidewire.http.transport import FAKE_SERVERS
from tidewire.protocol import strict_json
from tidewire.protocol.cursor import BEGINNING, Cursor
from tidewire.protocol.messages import to_json
from tidewire.protocol.problems import MEDIA_TYPE, Problem, no_such_endpoint, problem
from tidewire.protocol.problems import to_json as problem_json
from tidewire.protocol.resources import (
    Batch,
    Discovery,
    EndpointCapabilities,
    EndpointDescription,
    EndpointSummary,
    Limits,
    LogprobsCapability,
)
from tidewire.testing.fake_endpoint import FakeEndpoint
from tidewire.testing.fake_server_job import FakeJob, Signal
from tidewire.testing.generation_values import TokenIds

URL: Final = "http://tidewire.test"
"""Default URL of a fake server. The host does not exist, and requests to it do not leave the process."""
HEARTBEAT: Final = 0.2
"""Default heartbeat interval in seconds. The client detects a stalled stream after 2.5 heartbeat intervals."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A request to submit a job that a fake server has accepted or rejected.

    Attributes:
        endpoint: Name of the endpoint.
        inputs: All inputs of the request, including the members that the inputs share. If the request had the member
            `input`, the sequence contains only this input.
        batch: Whether the request had the member `inputs` instead of `input`.
        body: Parsed body of the request.
        idempotency_key: Value of the Idempotency-Key header, or None.
        headers: All headers of the request. Their names are in lower case.
        job_id: Id of the job that the server returned, or None if the request was rejected.
        replayed: Whether the server returned an existing job with the same idempotency key, instead of a new job.
    """

    endpoint: str
    inputs: Sequence[Any]
    batch: bool
    body: dict[str, Any]
    idempotency_key: str | None
    headers: Mapping[str, str]
    job_id: str | None
    replayed: bool = False

    @property
    def input(self) -> Any:
        """The only input of the request.

        Raises:
            ValueError: The request has several inputs.
        """
        if len(self.inputs) != 1:
            raise ValueError(f"the request has {len(self.inputs)} inputs; read them with .inputs")
        return self.inputs[0]


class FakeServer:
    """A Tidewire server inside the test process, whose endpoints return scripted answers.

    Inside the `with` block of the server, every client that is created with the server's `url` is connected to the server.
    The server is deterministic and never waits, and its clients do not wait before they retry or reconnect. A job
    advances only while a client reads its events. Each scripted fault occurs only once.

    Attributes:
        url: Base URL for clients.
        submits: All requests to submit a job, in order, including retries.
        requests: Method and path of every request.
        cuts: Number of connections that a scripted fault has broken or stalled.
        cancels: Ids of the jobs for which clients have requested a cancellation.
        vocabularies_sent: Number of responses that contained a complete vocabulary.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        heartbeat: float = HEARTBEAT,
        limits: Limits | None = None,
        token: str | None = None,
    ) -> None:
        """Create a server. Clients can reach it inside its `with` block.

        Args:
            url: Base URL of the server. If the program under test connects to a fixed URL, such as
                `http://127.0.0.1:8000`, pass this URL.
            heartbeat: Heartbeat interval in seconds. The client detects a stalled stream after 2.5 heartbeat intervals.
            limits: Limits for the discovery document. The server enforces only `max_inputs`.
            token: Bearer token that requests must contain. None disables authentication.
        """
        self.url: str = url.rstrip("/")
        self._base_path = urlsplit(self.url).path
        self.submits: list[Submit] = []
        self.requests: list[tuple[str, str]] = []
        self.cuts: int = 0
        self.cancels: list[str] = []
        self.vocabularies_sent: int = 0
        self._opened: list[str] = []
        """The id of the job for each event stream that a client has opened."""
        self._heartbeat_ms = max(1, round(heartbeat * 1000))
        self._limits = limits or Limits()
        self._token = token
        self._endpoints: dict[str, FakeEndpoint] = {}
        self._jobs: dict[str, FakeJob] = {}
        self._expired: set[str] = set()
        self._ids = TokenIds()
        self._keys: dict[tuple[str, str], tuple[bytes, FakeJob]] = {}

    def __enter__(self) -> Self:
        FAKE_SERVERS.mount(self.url, httpx2.MockTransport(self._respond))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        FAKE_SERVERS.unmount(self.url)

    # ---- interface for tests -----------------------------------------------------------------------------------

    def endpoint(
        self, name: str, *, batch: int | None = 1024, max_top: int = 20, rollback: bool = False
    ) -> FakeEndpoint:
        """Return the endpoint `name` of this server. The first call with a name creates the endpoint.

        Args:
            name: Name of the endpoint.
            batch: Maximum number of inputs per job, or None if the endpoint does not support batches.
            max_top: Maximum value of the input member `top_logprobs`. The endpoint's description reports this maximum.
            rollback: Whether the endpoint declares the capability `rollback`, which allows the endpoint to retract
                text.
        """
        if name not in self._endpoints:
            capabilities = EndpointCapabilities(
                streams=True,
                batch=None if batch is None else Batch(max_items=batch),
                logprobs=LogprobsCapability(max_top=max_top),
                rollback=rollback,
            )
            self._endpoints[name] = FakeEndpoint(name, capabilities)
        return self._endpoints[name]

    @property
    def streams(self) -> int:
        """Number of event streams that clients have opened."""
        return len(self._opened)

    @property
    def resumes(self) -> int:
        """Number of event streams with which clients resumed a job. The first stream of each job does not count."""
        return len(self._opened) - len(set(self._opened))

    def job_status(self, job_id: str) -> str:
        """Return the status of a job. A job advances only while a client reads its events."""
        return self._jobs[job_id].status

    def forget(self, job_id: str) -> None:
        """Let a job expire. The server responds to further requests for the job with 410."""
        del self._jobs[job_id]
        self._expired.add(job_id)

    # ---- the protocol ------------------------------------------------------------------------------------------

    async def _respond(self, request: httpx2.Request) -> httpx2.Response:
        # Let other tasks run, as a request over a socket would.
        await anyio.lowlevel.checkpoint()
        return self._answer(request)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = self._path(request)
        self.requests.append((request.method, path))
        if not self._is_authorized(request):
            return _problem("unauthorized")
        match request.method, *path.strip("/").split("/"):
            case ["GET", "v1"]:
                return _json(200, to_json(self._discovery()))
            case ["GET", "v1", "endpoints", name] if name in self._endpoints:
                return _json(200, to_json(self._description(self._endpoints[name])))
            case ["GET", "v1", "endpoints", name, "vocabulary"] if name in self._endpoints:
                return self._vocabulary(request.headers.get("if-none-match"))
            case ["POST", "v1", "endpoints", name, "jobs"] if unquote(name) in self._endpoints:
                return self._submit(self._endpoints[unquote(name)], request)
            case [_, "v1", "endpoints", name, *_]:
                return _problem("endpoint_not_found", no_such_endpoint(unquote(name), self._endpoints))
            case ["GET", "v1", "jobs"]:
                newest = reversed(self._jobs.values())
                return _json(200, {"jobs": [job.resource(state=False) for job in newest]})
            case [method, "v1", "jobs", job_id, *rest] if job_id in self._jobs:
                return self._job(self._jobs[job_id], method, rest, request)
            case [_, "v1", "jobs", job_id, *_] if job_id in self._expired:
                return _problem("job_expired")
            case [_, "v1", "jobs", job_id, *_]:
                return _problem("job_not_found", f"no job {job_id}")
            case _:
                return _problem("not_found", f"nothing at {path}")

    def _path(self, request: httpx2.Request) -> str:
        """Return the path of a request within the API, without the path of the server's URL."""
        return urlsplit(request.url.raw_path.decode("ascii")).path.removeprefix(self._base_path)

    def _is_authorized(self, request: httpx2.Request) -> bool:
        if self._token is None or request.headers.get("authorization") == f"Bearer {self._token}":
            return True
        match request.method, *self._path(request).strip("/").split("/"):
            case ["GET", "v1", "jobs", job_id, "events"]:
                return request.url.params.get_list("token") == [_stream_token(job_id)]
            case _:
                return False

    def _discovery(self) -> Discovery:
        return Discovery(
            server="tidewire.testing",
            durability="process",
            capabilities=["list", "delete", "batches", "logprobs", "idempotency"],
            limits=self._limits,
            heartbeat_ms=self._heartbeat_ms,
            endpoints=[
                EndpointSummary(name=name, href=f"{self._base_path}/v1/endpoints/{name}")
                for name in self._endpoints
            ],
        )

    def _description(self, endpoint: FakeEndpoint) -> EndpointDescription:
        root = f"{self._base_path}/v1/endpoints/{endpoint.name}"
        return EndpointDescription(
            name=endpoint.name,
            input_schema={},
            value_schema={},
            capabilities=endpoint.capabilities,
            links={"self": root, "jobs": f"{root}/jobs", "vocabulary": f"{root}/vocabulary"},
        )

    def _vocabulary(self, known: str | None) -> httpx2.Response:
        tokens = [base64.b64encode(text.encode()).decode() for text in self._ids.texts]
        name = sha256(json.dumps(tokens).encode()).hexdigest()
        if known == f'"{name}"':
            return _empty(304)
        self.vocabularies_sent += 1
        return _json(200, {"hash": name, "tokens": tokens, "special": []}, ETag=f'"{name}"')

    def _submit(self, endpoint: FakeEndpoint, request: httpx2.Request) -> httpx2.Response:
        body: Any = strict_json.loads(request.content)
        batch = "inputs" in body
        shared = body.get("shared", {})
        given = body["inputs"] if batch else [body["input"]]
        inputs = [{**shared, **one} if isinstance(one, dict) else one for one in given]
        key = request.headers.get("idempotency-key")

        most = min(
            self._limits.max_inputs,
            1 if endpoint.capabilities.batch is None else endpoint.capabilities.batch.max_items,
        )
        known_body, known_job = self._keys.get((endpoint.name, key or ""), (b"", None))
        answer: FakeJob | httpx2.Response
        if known_job is not None and known_body != request.content:
            answer = _problem("idempotency_key_reused")
        elif known_job is not None and known_job.id in self._expired:
            answer = _problem("job_expired")
        elif known_job is not None:
            answer = known_job
        elif endpoint._refusals:
            answer = _problem_response(endpoint._refusals.pop(0))
        elif batch and len(inputs) > most:
            answer = _problem("batch_too_large", f"at most {most}", pointer="/inputs")
        else:
            number = len(self._jobs) + len(self._expired) + 1
            answers = [endpoint._next(value) for value in inputs]
            base = self._base_path
            answer = FakeJob(
                f"job-{number}", endpoint.name, answers, inputs, batch=batch, ids=self._ids, base_path=base
            )
            self._jobs[answer.id] = answer
            if key is not None:
                self._keys[endpoint.name, key] = (request.content, answer)
        replayed, job_id = answer is known_job, answer.id if isinstance(answer, FakeJob) else None
        self.submits.append(
            Submit(endpoint.name, inputs, batch, body, key, dict(request.headers), job_id, replayed)
        )
        if isinstance(answer, httpx2.Response):
            return answer
        return _job_reply(201, answer, **({"Idempotency-Replayed": "true"} if replayed else {}))

    def _job(self, job: FakeJob, method: str, rest: list[str], request: httpx2.Request) -> httpx2.Response:
        match method, *rest:
            case ["GET"]:
                return _job_reply(200, job)
            case ["GET", "events"]:
                return self._events(job, request)
            case ["POST", "cancel"]:
                body: Any = strict_json.loads(request.content) if request.content else {}
                self.cancels.append(job.id)
                try:
                    job.cancel(body.get("items"))
                except IndexError as error:
                    return _problem("invalid_input", str(error), pointer="/items")
                return _job_reply(202, job)
            case ["POST", "stream-token"]:
                url = f"{job.path}/events?errors=inband&token={_stream_token(job.id)}"
                return _json(200, {"url": url, "expires_at": "2100-01-01T00:00:00Z"})
            case ["DELETE"]:
                self.forget(job.id)
                return _empty(204)
            case _:
                return _problem("method_not_allowed")

    def _events(self, job: FakeJob, request: httpx2.Request) -> httpx2.Response:
        text = request.headers.get("last-event-id") or request.url.params.get("after")
        self._opened.append(job.id)
        cursor = None if text is None else BEGINNING if text == str(BEGINNING) else Cursor.parse(text)
        if job.ended_at(cursor):
            return _empty(204)
        body = _EventStream(self, job.frames(cursor, self._heartbeat_ms))
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        return httpx2.Response(200, headers=headers, stream=body)


class _EventStream(httpx2.AsyncByteStream):
    """Body of an event stream. It is a class, because trio would warn about an async generator that is not closed."""

    def __init__(self, server: FakeServer, frames: Iterator[bytes | Signal]) -> None:
        self._server = server
        self._frames = frames
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        # Let other tasks run between two events, as a read from a socket would.
        await anyio.lowlevel.checkpoint()
        frame = b""
        while frame == b"":
            if self._closed:
                raise StopAsyncIteration
            found = next(self._frames, None)
            if found is None:
                raise StopAsyncIteration
            if isinstance(found, Signal):
                await self._break(found)
            else:
                frame = found
        return frame

    async def _break(self, signal: Signal) -> None:
        self._closed = True
        self._server.cuts += 1
        if signal is Signal.STALL:
            await anyio.sleep_forever()
        raise httpx2.ReadError("the fake server broke the connection")

    async def aclose(self) -> None:
        self._closed = True


def _stream_token(job_id: str) -> str:
    return f"token-of-{job_id}"


def _job_reply(status: int, job: FakeJob, **headers: str) -> httpx2.Response:
    return _json(status, job.resource(), Location=job.path, **headers)


def _json(status: int, body: Any, **headers: str) -> httpx2.Response:
    content = httpx2.ByteStream(json.dumps(body).encode())
    return httpx2.Response(status, headers={"Content-Type": "application/json", **headers}, stream=content)


def _empty(status: int) -> httpx2.Response:
    return httpx2.Response(status, stream=httpx2.ByteStream(b""))


def _problem(code: str, detail: str | None = None, **members: Any) -> httpx2.Response:
    return _problem_response(problem(code, detail, **members))


def _problem_response(found: Problem) -> httpx2.Response:
    return _json(found.status, problem_json(found), **{"Content-Type": MEDIA_TYPE})
