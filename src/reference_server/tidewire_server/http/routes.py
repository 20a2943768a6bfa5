"""The routes: what each URL answers.

GET    /v1                                  discovery
GET    /v1/endpoints/{name}                 one endpoint: schemas, examples, capabilities
GET    /v1/endpoints/{name}/{resource}      what else it offers, cached for good by its version
POST   /v1/endpoints/{name}/jobs            submit; 201 with the job, or 200 with its stream
GET    /v1/jobs                             the caller's jobs, newest first
GET    /v1/jobs/{id}                        the job: state, columns and cursor at one moment
DELETE /v1/jobs/{id}                        purge
GET    /v1/jobs/{id}/events                 the stream
POST   /v1/jobs/{id}/cancel                 cancel the job, or some of its items
POST   /v1/jobs/{id}/stream-token           a URL of the stream that needs no header, for some minutes
GET    /healthz, /readyz, /metrics          for operators

Starlette routes requests, checks methods, adds CORS headers and turns exceptions into responses. Its rules and ours:

Starlette                                        | here
-------------------------------------------------+---------------------------------------------------------------------
404, 405 and 500 are texts                       | problems (TW-ERR-001)
500 is sent outside of the CORS middleware       | inside: a page can read it (TW-BRW-005)
`Allow` has the methods of one route             | all methods of the URL, and OPTIONS (TW-JOB-003)
a later route that takes the method wins over 405| 405 (TW-JOB-003)
a URL with a slash too many is redirected        | 404: a URL has one form
a response runs within router and middleware     | so it does, but for an event stream (see `EventStream.__call__`)
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tidewire.protocol import messages
from tidewire.protocol.cursor import BEGINNING, ENDED_BY_PROBLEM
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import API_ROOT, JobResource, StreamToken
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.http import request_parameters, requests_and_responses
from tidewire_server.http.cors import METHODS, Cors
from tidewire_server.http.discovery import DiscoveryDocuments
from tidewire_server.http.event_stream import STREAM, EventStream
from tidewire_server.http.problem_stream import problem_stream
from tidewire_server.http.replay_plan import NOTHING, plan_replay
from tidewire_server.http.requests_and_responses import answer, failure, problem_answer, read_body, root_of
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection
from tidewire_server.jobs.admission.submit_body import read_json
from tidewire_server.jobs.job_resource import timestamp
from tidewire_server.jobs.job_service import JobService, Submitted
from tidewire_server.metrics import MEDIA_TYPE, Metrics
from tidewire_server.principals import ANONYMOUS, TokenPrincipals
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import JobRecord, Store, StoreError
from tidewire_server.store.open_store import open_store

_PAGE = 50
_MAX_PAGE = 1000


class _LinkName(StringConvertor):
    """Not `jobs`: Starlette prefers a later route that takes the method to a 405 of this one (TW-JOB-003)."""

    regex = "(?!jobs$)[^/]+"


register_url_convertor("tidewire_link", _LinkName())


class TidewireApp:
    """The ASGI application of one server."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        settings: Settings,
        closers: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """Make the routes.

        Args:
            endpoints: All endpoints by name.
            settings: The server's settings.
            closers: What is to be closed when the server ends.

        Raises:
            ValueError: A token is wrong.
        """
        self._endpoints = endpoints
        self._closers = closers
        self._settings = settings
        self._tokens = TokenPrincipals(settings.tokens)
        self._service: JobService | None = None
        self._store: Store | None = None
        self.send_buffers_bounded = False
        """Whether connections inherit `uvicorn_internals.SEND_BUFFER_BYTES` from the socket that listens."""
        self._starting = asyncio.Lock()
        self._descriptions = DiscoveryDocuments(endpoints, settings, lambda: self.service)
        self.metrics = Metrics()
        self.metrics.measure("items_running", "Items whose function runs.", lambda: self._depths(0))
        self.metrics.measure("items_waiting", "Items that wait in the queue.", lambda: self._depths(1))
        route = self._route
        self._routes = [
            # Starlette tries them in this order: the most frequent come first.
            route("POST", f"{API_ROOT}/endpoints/{{name}}/jobs", self._submit),
            route("GET", f"{API_ROOT}/jobs/{{id}}/events", self._events, public=True),
            route("GET", f"{API_ROOT}/jobs/{{id}}", self._read),
            route("DELETE", f"{API_ROOT}/jobs/{{id}}", self._purge),
            route("GET", API_ROOT, self._descriptions.discover),
            route("GET", f"{API_ROOT}/endpoints/{{name}}", self._descriptions.describe),
            route(
                "GET", f"{API_ROOT}/endpoints/{{name}}/{{resource:tidewire_link}}", self._descriptions.further
            ),
            route("GET", f"{API_ROOT}/jobs", self._list),
            route("POST", f"{API_ROOT}/jobs/{{id}}/cancel", self._cancel),
            route("POST", f"{API_ROOT}/jobs/{{id}}/stream-token", self._make_stream_token),
            route("GET", "/healthz", self._healthz, public=True),
            route("GET", "/readyz", self._readyz, public=True),
            route("GET", "/metrics", self._metrics),
        ]
        handlers: dict[Any, Any] = {
            404: self._not_found,
            405: self._method_not_allowed,
            ProblemError: self._refused,
            ClientDisconnect: self._disconnected,
            Exception: self._failed,
        }
        # Not `Starlette`: it handles `Exception` outside of all middleware, and a page could not read a 500 (TW-BRW-005).
        self._http: ASGIApp = ExceptionMiddleware(Router(self._routes, redirect_slashes=False), handlers)
        if settings.cors_origins:  # no origin by default (TW-BRW-006)
            self._http = Cors(self._http, settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or live through one lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            if self._service is None:  # an ASGI server that has no lifespan
                await self.start()
            _take_prefix_off(scope)
            scope["app"] = self  # with it, as under `Starlette`, the router raises 404 and 405
            scope["tidewire.http.response"] = connection = UvicornConnection(
                send, bounded=self.send_buffers_bounded
            )
            send = connection.framed(scope, receive, send)
            try:
                await self._http(scope, receive, requests_and_responses.with_privacy(send, scope))
                if (stream := scope.pop(STREAM, None)) is not None:
                    await stream(send)
            finally:
                del scope["tidewire.http.response"]  # which leads back to the scope
        else:
            await send({"type": "websocket.close", "code": 1000})

    # ---- life --------------------------------------------------------------------------------------------------

    @property
    def service(self) -> JobService:
        """What runs, once it was started."""
        if self._service is None:
            raise RuntimeError("the application was not started: use it through an ASGI server")
        return self._service

    @property
    def started(self) -> bool:
        """Whether it was started and has not ended."""
        return self._service is not None

    def open_log(self) -> None:
        """Open the log ahead of the start, for whoever wants to know at once that it cannot be.

        Raises:
            StoreError: It cannot be opened, or another server has it.
        """
        if self._store is None and self._service is None:
            self._store = open_store(self._settings)

    async def start(self) -> None:
        """Begin, and take up what an earlier server left; nothing where that was done.

        Raises:
            StoreError: The log cannot be opened or read, or another server has it.
        """
        async with self._starting:
            if self._service is None:
                self.open_log()
                assert self._store is not None  # noqa: S101 - it was opened
                service, self._store = (
                    JobService(self._endpoints, self._settings, self.metrics, self._store),
                    None,
                )
                try:
                    await service.start()
                except BaseException:
                    await service.close()
                    raise
                self._service = service

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except StoreError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def settle(self) -> None:
        """Begin to shut down: send readers away, take nothing new, and let running jobs end for a bounded time."""
        if self._service is not None:
            await self._service.settle(self._settings.shutdown_timeout)

    async def close(self) -> None:
        """Cancel what still runs and let go of everything; the next request or start begins anew."""
        service, self._service = self._service, None
        if service is not None:
            await service.close()
            for close in self._closers:
                await close()

    # ---- jobs --------------------------------------------------------------------------------------------------

    async def _submit(self, request: Request) -> ASGIApp:
        as_stream = requests_and_responses.names(request, "text/event-stream")
        if not as_stream:
            requests_and_responses.accepts(request, "application/json")
        endpoint = self._descriptions.endpoint(request)
        key = request_parameters.idempotency_key(request)
        body = await self._body(request)
        principal, root = request.state.principal, root_of(request)
        if not as_stream:
            submitted = await self.service.submit(principal, endpoint, body, key)
            resource = await self.service.resource(submitted.record, root)
            return answer(_as_read(resource), 201, _submit_headers(submitted, root))
        # Its place is taken first: a job must not run whose submit was answered with an error.
        give_back = self.service.take_place(principal)
        try:
            submitted = await self.service.submit(principal, endpoint, body, key)
            log = await self.service.log(submitted.record)
        except BaseException:
            give_back()
            raise
        headers = _submit_headers(submitted, root)
        headers["content-location"] = events_url = f"{root}/jobs/{submitted.record.id}/events"
        begins = plan_replay(None, log.extent())
        return EventStream(
            self.service, submitted.record, log, begins, give_back, events_url=events_url, headers=headers
        )

    async def _list(self, request: Request) -> ASGIApp:
        requests_and_responses.accepts(request, "application/json")
        limit = request_parameters.integer(request, "limit", _PAGE, 1, _MAX_PAGE)
        principal, root = request.state.principal, root_of(request)
        before = request_parameters.text(request, "before") or None
        records = await self.service.store.jobs.list(principal, before=before, limit=limit + 1)
        page = records[:limit]
        jobs = [await self._entry(record, root) for record in page]
        body: dict[str, Any] = {"jobs": [each for each in jobs if each is not None]}
        if len(records) > limit:
            body["next"] = f"{root}/jobs?limit={limit}&before={page[-1].id}"
        return answer(body)

    async def _entry(self, record: JobRecord, root: str) -> Any:
        """How a job stands in a list; None where it has gone since it was found."""
        try:
            return _as_read(await self.service.resource(record, root, state=False))
        except ProblemError as error:
            if error.problem.code != "job_expired":
                raise
            return None

    async def _read(self, request: Request) -> ASGIApp:
        requests_and_responses.accepts(request, "application/json")
        record = await self._record(request)
        return answer(_as_read(await self.service.resource(record, root_of(request))))

    async def _purge(self, request: Request) -> ASGIApp:
        await self.service.purge(await self._record(request))
        return Response(status_code=204, headers={"cache-control": "no-store"})

    async def _cancel(self, request: Request) -> ASGIApp:
        requests_and_responses.accepts(request, "application/json")
        record = await self._record(request)
        body = await self._body(request, optional=True)
        items = (
            request_parameters.items_to_cancel(read_json(body), len(await self._items(record)))
            if body
            else None
        )
        running = await self.service.cancel(record, items)
        resource = await self.service.resource(record, root_of(request))
        return answer(_as_read(resource), 202 if running else 200)

    async def _items(self, record: JobRecord) -> list[Any]:
        state = (await (await self.service.log(record)).state()).view
        items: Any = state.value("/items")
        return items  # type: ignore[no-any-return]

    async def _record(self, request: Request) -> JobRecord:
        return await self.service.find(request.state.principal, request.path_params["id"])

    async def _body(self, request: Request, *, optional: bool = False) -> bytes:
        settings = self._settings
        return await read_body(
            request, max_bytes=settings.max_body_bytes, within=settings.body_timeout, optional=optional
        )

    # ---- streams -----------------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> ASGIApp:
        asked = (
            request.headers.get("last-event-id", "").strip(" \t")
            or request_parameters.text(request, "after")
            or None
        )
        self.metrics.stream_requests.labels("no" if asked is None else "yes").inc()
        if (
            not request_parameters.has_token(request)
            and request_parameters.choice(request, "errors", "http", "inband") == "http"
        ):
            return await self._open(request, asked)

        try:
            return await self._open(request, asked)
        except ProblemError as error:
            found = error.problem
        except Exception as error:  # noqa: BLE001 - logged, and sent inside the stream
            found = failure(request, error)
        self._count_problem(found)
        return problem_stream(found, retry=self._settings.retry)

    async def _open(self, request: Request, asked: str | None) -> ASGIApp:
        if asked == str(ENDED_BY_PROBLEM):
            return Response(status_code=204, headers={"cache-control": "no-store"})
        if request_parameters.has_token(request):
            await self._admit_by_token(request)
        else:
            self._admit(request)
        requests_and_responses.accepts(request, "text/event-stream")
        record = await self._record(request)
        cursor = request_parameters.cursor_of(asked)
        least = round(self._settings.min_snapshot_interval * 1000)
        spacing = request_parameters.integer(request, "min_interval_ms", least, 0, 2**31)
        interval = (
            max(least, spacing) / 1000
            if request_parameters.choice(request, "diffs", "1", "0") == "0"
            else None
        )
        log = await self.service.log(record)
        begins = plan_replay(cursor, log.extent())
        if begins == NOTHING:
            return Response(status_code=204, headers={"cache-control": "no-store"})
        give_back = self.service.take_place(record.principal)
        events_url = f"{root_of(request)}/jobs/{record.id}/events"
        return EventStream(
            self.service,
            record,
            log,
            begins,
            give_back,
            events_url=events_url,
            snapshot_interval=interval,
            as_logged=cursor == BEGINNING,
        )

    async def _make_stream_token(self, request: Request) -> ASGIApp:
        requests_and_responses.accepts(request, "application/json")
        record = await self._record(request)
        token, until = self.service.stream_tokens.make(record.id)
        url = f"{root_of(request)}/jobs/{record.id}/events?errors=inband&token={token}"
        return answer(StreamToken(url=url, expires_at=timestamp(until)))

    # ---- operators ---------------------------------------------------------------------------------------------

    async def _healthz(self, _request: Request) -> ASGIApp:
        return answer({"status": "ok"})

    async def _readyz(self, _request: Request) -> ASGIApp:
        if self.service.draining:
            raise refuse("unavailable", "this server is shutting down")
        await self.service.store.check()
        return answer({"status": "ready"})

    async def _metrics(self, _request: Request) -> ASGIApp:
        return Response(self.metrics.page(), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})

    def _depths(self, which: int) -> list[tuple[str, float]]:
        if self._service is None:
            return []
        return [(name, self._service.depth(name)[which]) for name in self._endpoints]

    # ---- problems ----------------------------------------------------------------------------------------------

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        what = f"there is nothing at {request.url.path[:200]!r}; all begins at {root_of(request)}"
        return await self._refused(request, refuse("not_found", what))

    async def _method_not_allowed(self, request: Request, _error: Exception) -> Response:
        # Starlette's `Allow` has the methods of one route, and a URL may have two.
        routes = (each for each in self._routes if each.matches(request.scope)[0] is Match.PARTIAL)
        taken = {"OPTIONS"}.union(*(each.methods or () for each in routes))
        allow = {"allow": ", ".join(method for method in METHODS if method in taken)}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"cache-control": "no-store"} | allow)
        detail = f"{request.method[:20]} is not taken here, but {allow['allow']}"
        return await self._refused(request, refuse("method_not_allowed", detail, headers=allow))

    async def _refused(self, _request: Request, error: ProblemError) -> Response:
        self._count_problem(error.problem)
        return problem_answer(error.problem, error.headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        return await self._refused(request, ProblemError(failure(request, error)))

    async def _disconnected(self, _request: Request, _error: Exception) -> None:
        """The client left while it sent its body: there is nobody to respond to."""

    def _count_problem(self, found: Problem) -> None:
        self.metrics.problems.labels(found.code).inc()

    # ---- who is let in -----------------------------------------------------------------------------------------

    def _route(
        self, method: str, path: str, handler: requests_and_responses.Handler, *, public: bool = False
    ) -> Route:
        async def admitted(request: Request) -> ASGIApp:
            if not public:
                self._admit(request)
            return await handler(request)

        return Route(path, admitted, methods=[method])

    def _admit(self, request: Request) -> None:
        request.state.principal = self._tokens.principal(
            requests_and_responses.header(request, b"authorization")
        )

    async def _admit_by_token(self, request: Request) -> None:
        """Let in whoever has a stream token of the job: as the job's own principal, and to nothing but its stream."""
        job = request.path_params["id"]
        self.service.stream_tokens.check(request_parameters.text(request, "token"), job)
        found = await self.service.store.jobs.get(job)
        request.state.principal = ANONYMOUS if found is None else found.principal


def _as_read(job: JobResource) -> dict[str, Any]:
    """A job's members. `done` is there in any case: null says that the job has not ended (section 6.4)."""
    return {"done": None} | messages.to_json(job)


def _submit_headers(submitted: Submitted, root: str) -> dict[str, str]:
    headers = {"location": f"{root}/jobs/{submitted.record.id}"}
    return headers | {"idempotency-replayed": "true"} if submitted.replayed else headers


def _take_prefix_off(scope: Scope) -> None:
    """Serve alike behind a proxy that takes the prefix off, to which the ASGI server adds it again, and one that does not."""
    prefix = scope.get("root_path", "").rstrip("/")
    if prefix and scope["path"].startswith(f"{prefix}{prefix}/"):
        scope["path"] = scope["path"][len(prefix) :]
