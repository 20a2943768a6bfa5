"""`FakeServer`: the protocol's resources over scripted answers."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tidewire.http.transport import mount, unmount
from tidewire.protocol import strict_json
from tidewire.protocol.cursor import BEGINNING, Cursor
from tidewire.protocol.messages import to_json
from tidewire.protocol.problems import MEDIA_TYPE, problem
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
from tidewire.testing.fake_transport import FakeTransport
from tidewire.testing.generation_values import TokenIds
from tidewire.testing.http_messages import FakeRequest, FakeResponse

URL: Final = "http://tidewire.test"
"""Where a fake server is, by default. The name leads nowhere: nothing leaves the process."""
HEARTBEAT: Final = 0.2
"""Seconds: a stream that has stalled is found out after 2.5 of these."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A submit that a fake server took or refused.

    Attributes:
        endpoint: The endpoint's name.
        inputs: The inputs, shared members led in; one where `input` was given.
        batch: Whether `inputs` was given.
        body: The whole body, as it came.
        idempotency_key: The header of that name.
        headers: All headers, names in lower case.
        job_id: The job that it started or found; None where it was refused.
        replayed: Whether its key had come before: it started nothing.
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
        """The only input.

        Raises:
            ValueError: There are several.
        """
        (only,) = self.inputs
        return only


class FakeServer:
    """A server of the protocol in this process, without a socket, whose endpoints answer as a test scripts them.

    While it is entered, every client that is made for its `url` talks to it. Nothing is random and nothing waits: a
    job goes on while it is read, and a cut or a stall happens once.

    Attributes:
        url: Where clients find it.
        submits: The submits that came, in order, repetitions among them.
        requests: Method and path of every request.
        cuts: Connections that were broken or stalled on purpose.
        cancels: Ids of the jobs that a cancel was asked for.
        vocabularies_sent: How often a vocabulary was sent whole.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        heartbeat: float = HEARTBEAT,
        limits: Limits | None = None,
        token: str | None = None,
    ) -> None:
        """Make a server; `with` puts it in its place.

        Args:
            url: An origin, such as `http://127.0.0.1:8000` where the program under test insists on that.
            heartbeat: Seconds; see `HEARTBEAT`.
            limits: What discovery says; `max_inputs` is kept to.
            token: Requests need `Authorization: Bearer` and this; None: they need nothing.
        """
        self.url: str = url.rstrip("/")
        self.submits: list[Submit] = []
        self.requests: list[tuple[str, str]] = []
        self.cuts: int = 0
        self.cancels: list[str] = []
        self.vocabularies_sent: int = 0
        self._opened: list[str] = []
        """For each stream, its job."""
        self._heartbeat_ms = max(1, round(heartbeat * 1000))
        self._limits = limits or Limits()
        self._token = token
        self._endpoints: dict[str, FakeEndpoint] = {}
        self._jobs: dict[str, FakeJob] = {}
        self._expired: set[str] = set()
        self._ids = TokenIds()
        self._keys: dict[tuple[str, str], tuple[bytes, FakeJob]] = {}

    def __enter__(self) -> Self:
        mount(self.url, FakeTransport(self._answer, self._count_cut))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unmount(self.url)

    # ---- for a test --------------------------------------------------------------------------------------------

    def endpoint(
        self, name: str, *, batch: int | None = 1024, max_top: int = 20, rollback: bool = False
    ) -> FakeEndpoint:
        """The endpoint of a name, made when it is first asked for.

        Args:
            name: Its name.
            batch: Inputs of one job at most; None: it takes no batches.
            max_top: Candidates of a token at most.
            rollback: Whether it says that text may become void; then `iter_text` waits for the end.
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
        """Streams that were opened."""
        return len(self._opened)

    @property
    def resumes(self) -> int:
        """Streams among them that were not the first of their job."""
        return len(self._opened) - len(set(self._opened))

    def job_status(self, job_id: str) -> str:
        """How far a job is: it goes on while it is read."""
        return self._jobs[job_id].status

    def forget(self, job_id: str) -> None:
        """Let a job expire: it is answered with 410 from here on."""
        del self._jobs[job_id]
        self._expired.add(job_id)

    def _count_cut(self) -> None:
        self.cuts += 1

    # ---- the protocol ------------------------------------------------------------------------------------------

    def _answer(self, asked: FakeRequest) -> FakeResponse:
        parts = urlsplit(asked.target)
        self.requests.append((asked.method, parts.path))
        if self._token is not None and asked.headers.get("authorization") != f"Bearer {self._token}":
            return _problem("unauthorized")
        match asked.method, *parts.path.strip("/").split("/"):
            case ["GET", "v1"]:
                return _json(200, to_json(self._discovery()))
            case ["GET", "v1", "endpoints", name] if name in self._endpoints:
                return _json(200, to_json(self._description(self._endpoints[name])))
            case ["GET", "v1", "endpoints", name, "vocabulary"] if name in self._endpoints:
                return self._vocabulary(asked.headers.get("if-none-match"))
            case ["POST", "v1", "endpoints", name, "jobs"] if unquote(name) in self._endpoints:
                return self._submit(self._endpoints[unquote(name)], asked)
            case [_, "v1", "endpoints", name, *_]:
                names = ", ".join(self._endpoints) or "none"
                return _problem("endpoint_not_found", f"no endpoint {unquote(name)!r}; there are: {names}")
            case ["GET", "v1", "jobs"]:
                newest = reversed(self._jobs.values())
                return _json(200, {"jobs": [job.resource(state=False) for job in newest]})
            case [method, "v1", "jobs", job_id, *rest] if job_id in self._jobs:
                return self._job(self._jobs[job_id], method, rest, asked)
            case [_, "v1", "jobs", job_id, *_] if job_id in self._expired:
                return _problem("job_expired")
            case [_, "v1", "jobs", job_id, *_]:
                return _problem("job_not_found", f"no job {job_id}")
            case _:
                return _problem("not_found", f"nothing at {parts.path}")

    def _discovery(self) -> Discovery:
        return Discovery(
            server="tidewire.testing",
            durability="process",
            capabilities=["list", "delete", "batches", "logprobs", "idempotency"],
            limits=self._limits,
            heartbeat_ms=self._heartbeat_ms,
            endpoints=[EndpointSummary(name=name, href=f"/v1/endpoints/{name}") for name in self._endpoints],
        )

    def _description(self, endpoint: FakeEndpoint) -> EndpointDescription:
        root = f"/v1/endpoints/{endpoint.name}"
        return EndpointDescription(
            name=endpoint.name,
            input_schema={},
            value_schema={},
            capabilities=endpoint.capabilities,
            links={"self": root, "jobs": f"{root}/jobs", "vocabulary": f"{root}/vocabulary"},
        )

    def _vocabulary(self, known: str | None) -> FakeResponse:
        tokens = [base64.b64encode(text.encode()).decode() for text in self._ids.texts]
        name = sha256(json.dumps(tokens).encode()).hexdigest()
        if known == f'"{name}"':
            return FakeResponse(304, {}, b"")
        self.vocabularies_sent += 1
        return _json(200, {"hash": name, "tokens": tokens, "special": []}, ETag=f'"{name}"')

    def _submit(self, endpoint: FakeEndpoint, asked: FakeRequest) -> FakeResponse:
        body: Any = strict_json.loads(asked.body)
        batch = "inputs" in body
        shared = body.get("shared", {})
        given = body["inputs"] if batch else [body["input"]]
        inputs = [{**shared, **one} if isinstance(one, dict) else one for one in given]
        key = asked.headers.get("idempotency-key")

        def note(job_id: str | None, *, replayed: bool = False) -> None:
            seen = Submit(endpoint.name, inputs, batch, body, key, asked.headers, job_id, replayed)
            self.submits.append(seen)

        known = self._keys.get((endpoint.name, key or ""))
        if known is not None:
            if known[0] != asked.body:
                note(None)
                return _problem("idempotency_key_reused")
            note(known[1].id, replayed=True)
            return _job_reply(201, known[1], **{"Idempotency-Replayed": "true"})
        refusal = endpoint._refusal()
        if refusal is not None:
            note(None)
            return _problem(refusal.code, **refusal.members)
        most = min(
            self._limits.max_inputs,
            1 if endpoint.capabilities.batch is None else endpoint.capabilities.batch.max_items,
        )
        if batch and len(inputs) > most:
            note(None)
            return _problem("batch_too_large", f"at most {most}", pointer="/inputs")
        answers = [endpoint._next(value) for value in inputs]
        job = FakeJob(
            f"job-{len(self._jobs) + len(self._expired) + 1}",
            endpoint.name,
            answers,
            inputs,
            batch=batch,
            ids=self._ids,
        )
        self._jobs[job.id] = job
        if key is not None:
            self._keys[endpoint.name, key] = (asked.body, job)
        note(job.id)
        return _job_reply(201, job)

    def _job(self, job: FakeJob, method: str, rest: list[str], asked: FakeRequest) -> FakeResponse:
        match method, *rest:
            case ["GET"]:
                return _job_reply(200, job)
            case ["GET", "events"]:
                return self._events(job, asked)
            case ["POST", "cancel"]:
                body: Any = strict_json.loads(asked.body) if asked.body else {}
                self.cancels.append(job.id)
                job.cancel(body.get("items"))
                return _job_reply(202, job)
            case ["DELETE"]:
                self.forget(job.id)
                return FakeResponse(204, {}, b"")
            case _:
                return _problem("method_not_allowed")

    def _events(self, job: FakeJob, asked: FakeRequest) -> FakeResponse:
        query = parse_qs(urlsplit(asked.target).query)
        text = asked.headers.get("last-event-id") or query.get("after", [None])[0]
        self._opened.append(job.id)
        cursor = None if text is None else BEGINNING if text == str(BEGINNING) else Cursor.parse(text)
        if job.over_at(cursor):
            return FakeResponse(204, {}, b"")
        frames: Iterator[bytes | Signal] = job.frames(cursor, self._heartbeat_ms)
        return FakeResponse(200, {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}, frames)


def _job_reply(status: int, job: FakeJob, **headers: str) -> FakeResponse:
    return _json(status, job.resource(), Location=f"/v1/jobs/{job.id}", **headers)


def _json(status: int, body: Any, **headers: str) -> FakeResponse:
    content = json.dumps(body).encode()
    return FakeResponse(status, {"Content-Type": "application/json", **headers}, content)


def _problem(code: str, detail: str | None = None, **members: Any) -> FakeResponse:
    found = problem(code, detail, **members)
    wait = {} if found.retry_after_ms is None else {"Retry-After": "0"}
    content = json.dumps(problem_json(found)).encode()
    return FakeResponse(found.status, {"Content-Type": MEDIA_TYPE, **wait}, content)
