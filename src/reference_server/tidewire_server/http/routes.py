"""Routes of the ASGI application, with the functions that handle the requests.

GET    /v1                                  discovery
GET    /v1/endpoints/{name}                 one endpoint: schemas, examples, capabilities
GET    /v1/endpoints/{name}/{resource}      a linked resource, cacheable forever if the URL has its version
POST   /v1/endpoints/{name}/jobs            submit a job: 201 with the job, or 200 with the job's event stream
GET    /v1/jobs                             jobs of the principal, newest first
GET    /v1/jobs/{id}                        state, columns and cursor of one job
DELETE /v1/jobs/{id}                        delete the job
GET    /v1/jobs/{id}/events                 event stream of the job
POST   /v1/jobs/{id}/cancel                 cancel the job, or some of its items
POST   /v1/jobs/{id}/stream-token           short-lived URL of the event stream that needs no Authorization header
GET    /healthz, /readyz, /metrics          health checks and metrics for operators

Starlette routes requests, checks methods, adds CORS headers and converts exceptions to responses. By default, its
behavior differs from the protocol in these ways:

Starlette                                        | this application
-------------------------------------------------+---------------------------------------------------------------------
404, 405 and 500 responses are plain text        | these responses are problem documents [TW-ERR-001]
500 responses bypass the CORS middleware         | 500 responses have CORS headers, so pages can read them [TW-BRW-005]
`Allow` lists the methods of one route           | `Allow` lists all methods of the URL, and OPTIONS [TW-JOB-003]
a 405 may be replaced by a later matching route  | the response is 405 [TW-JOB-003]
a URL with a trailing slash is redirected        | the response is 404, because each resource has only one URL
responses run inside router and middleware       | event streams run outside of both (see `EventStream.__call__`)
each request passes router and middleware        | requests to submit a job pass neither (see `_submit_directly`)
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

from tidewire.protocol.cursor import BEGINNING, ENDED_BY_PROBLEM
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import API_ROOT, StreamToken
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.http import request_parameters, requests_and_responses
from tidewire_server.http.cors import METHODS, Cors
from tidewire_server.http.discovery import DiscoveryDocuments
from tidewire_server.http.event_stream import STREAM, EventStream
from tidewire_server.http.host_check import HostCheck
from tidewire_server.http.incoming_bodies import IncomingBodies
from tidewire_server.http.problem_stream import problem_stream
from tidewire_server.http.replay_plan import NOTHING, plan_replay
from tidewire_server.http.requests_and_responses import (
    PRINCIPAL,
    failure,
    json_response,
    principal_of,
    problem_response,
    read_body,
    root_of,
)
from tidewire_server.http.shared_response import SharedResponse
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection
from tidewire_server.jobs.admission.submit_body import read_json
from tidewire_server.jobs.job_resource import job_members, timestamp
from tidewire_server.jobs.job_service import JobService, Submitted
from tidewire_server.metrics import MEDIA_TYPE, Metrics
from tidewire_server.principals import ANONYMOUS, TokenPrincipals, anonymous_at, is_anonymous
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import JobRecord, Store, StoreError
from tidewire_server.store.open_store import open_store

_PAGE = 50
_MAX_PAGE = 1000


class _LinkName(StringConvertor):
    """Name of a linked resource in a URL.

    The name `jobs` does not match, so that the response to `GET /endpoints/{name}/jobs` is 405 [TW-JOB-003].
    """

    regex = "(?!jobs$)[^/]+"


register_url_convertor("tidewire_link", _LinkName())


class _RouteApp:
    """ASGI application of one route. If the route had a function instead, Starlette would wrap each call of the function in a
    second exception handler.
    """

    def __init__(
        self, handler: requests_and_responses.Handler, authenticate: Callable[[Request], None] | None
    ) -> None:
        self._handler = handler
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if self._authenticate is not None:
            self._authenticate(request)
        response = await self._handler(request)
        await response(scope, receive, send)


class TidewireApp:
    """ASGI application of one server."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        settings: Settings,
        closers: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """Create the application with its routes.

        Args:
            endpoints: All endpoints by name.
            settings: The server's settings.
            closers: Coroutine functions to call at shutdown, such as the `close` of an engine.

        Raises:
            ValueError: A token in the settings is not valid.
        """
        self._endpoints = endpoints
        self._closers = closers
        self._settings = settings
        self._tokens = TokenPrincipals(settings.tokens)
        self._operator_tokens = TokenPrincipals(settings.operator_tokens)
        self._bodies = IncomingBodies(settings.max_incoming_bytes)
        self._service: JobService | None = None
        self._store: Store | None = None
        self.send_buffers_bounded = False
        """Whether the listening socket has the send buffer size `SEND_BUFFER_BYTES`, which its connections inherit."""
        self.single_user = settings.is_single_user(on_loopback=False)
        """Whether all callers are one user. `serve` updates it, because only `serve` knows the server's address."""
        self._starting = asyncio.Lock()
        self._discovery = DiscoveryDocuments(
            endpoints, settings, lambda: self.service, lambda: self._lists_jobs
        )
        self.metrics = Metrics()
        self.metrics.measure(
            "items_running", "Items whose function is running.", lambda: self._queue_depths(0)
        )
        self.metrics.measure("items_waiting", "Items waiting in the queue.", lambda: self._queue_depths(1))
        route = self._route
        self._routes = [
            # Starlette tries the routes in this order, so the routes of the most frequent requests come first.
            route("POST", f"{API_ROOT}/endpoints/{{name}}/jobs", self._submit),
            route("GET", f"{API_ROOT}/jobs/{{id}}/events", self._events, public=True),
            route("GET", f"{API_ROOT}/jobs/{{id}}", self._read),
            route("DELETE", f"{API_ROOT}/jobs/{{id}}", self._purge),
            route("GET", API_ROOT, self._discovery.discover),
            route("GET", f"{API_ROOT}/endpoints/{{name}}", self._discovery.describe),
            route(
                "GET",
                f"{API_ROOT}/endpoints/{{name}}/{{resource:tidewire_link}}",
                self._discovery.linked_resource,
            ),
            route("GET", f"{API_ROOT}/jobs", self._list),
            route("POST", f"{API_ROOT}/jobs/{{id}}/cancel", self._cancel),
            route("POST", f"{API_ROOT}/jobs/{{id}}/stream-token", self._make_stream_token),
            route("GET", "/healthz", self._healthz, public=True),
            route("GET", "/readyz", self._readyz, public=True),
            route("GET", "/metrics", self._metrics, public=True),
        ]
        handlers: dict[Any, Any] = {
            404: self._not_found,
            405: self._method_not_allowed,
            ProblemError: self._refused,
            ClientDisconnect: self._disconnected,
            Exception: self._failed,
        }
        # Do not use the class `Starlette`. It sends 500 responses without CORS headers, so pages cannot read them
        # [TW-BRW-005].
        self._hosts = HostCheck(Router(self._routes, redirect_slashes=False), settings)
        self._http: ASGIApp = ExceptionMiddleware(self._hosts, handlers)
        self._submit_path = self._routes[0].path_regex
        self._direct: ASGIApp = self._submit_directly
        if settings.cors_origins:  # CORS is off by default [TW-BRW-006]
            self._http = Cors(self._http, settings.cors_origins)
            self._direct = Cors(self._direct, settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle HTTP requests and the ASGI lifespan. WebSocket connections are closed immediately."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            if self._service is None:  # This ASGI server does not support the lifespan protocol.
                await self.start()
            _remove_duplicate_prefix(scope)
            scope["app"] = (
                self  # If the scope has an `app`, the router raises exceptions instead of sending 404 and 405 itself.
            )
            scope["tidewire.http.response"] = connection = UvicornConnection(
                send, bounded=self.send_buffers_bounded
            )
            send = connection.framed(scope, receive, send)
            if not _has_one_host(scope):
                app: ASGIApp = self._refuse_host
            else:
                app = self._direct if self._is_submit(scope) else self._http
            try:
                await app(scope, receive, requests_and_responses.with_privacy(send, scope))
                if (stream := scope.pop(STREAM, None)) is not None:
                    await stream(send)
            finally:
                del scope["tidewire.http.response"]  # break the reference cycle between connection and scope
        else:
            await send({"type": "websocket.close", "code": 1000})

    # ---- lifespan ----------------------------------------------------------------------------------------------

    @property
    def service(self) -> JobService:
        """Job service, which exists only while the application is started."""
        if self._service is None:
            raise RuntimeError("the application has not been started; run it with an ASGI server")
        return self._service

    @property
    def started(self) -> bool:
        """Whether the application has been started and is not closed yet."""
        return self._service is not None

    def open_log(self) -> None:
        """Open the log. Commands call this method before `start`, so that they can report early if the log is not
        usable.

        Raises:
            StoreError: The log cannot be opened, or another server is using it.
        """
        if self._store is None and self._service is None:
            self._store = open_store(self._settings)

    async def start(self, *, resume: bool = True) -> None:
        """Start the job service and recover interrupted jobs. If the application has already been started, do nothing.

        Args:
            resume: Whether to run the recovered jobs. If false, the caller calls `resume` when the server's port is open.

        Raises:
            StoreError: The log cannot be opened or read, or another server is using it.
        """
        async with self._starting:
            if self._service is None:
                self.open_log()
                assert self._store is not None  # noqa: S101 - `open_log` sets it
                share = self._settings.caller_share(single_user=self.single_user)
                service, self._store = (
                    JobService(self._endpoints, self._settings, self.metrics, self._store, share=share),
                    None,
                )
                try:
                    await service.start()
                except BaseException:
                    await service.close()
                    raise
                self._service = service
                if resume:
                    await service.resume()

    async def resume(self) -> None:
        """Run the recovered jobs, after `start(resume=False)`."""
        await self.service.resume()

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
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

    async def drain(self, *, expect_readers: bool = True) -> None:
        """Begin the shutdown: reject new jobs, wait up to `shutdown_timeout` for the jobs to end, and end all streams.

        Args:
            expect_readers: See `Shutdown.drain`.
        """
        if self._service is not None:
            await self._service.shutdown.drain(self._settings.shutdown_timeout, expect_readers=expect_readers)

    @property
    def jobs_to_drain(self) -> int:
        """Number of jobs that `drain` waits for."""
        return 0 if self._service is None else len(self._service.shutdown.jobs_to_wait_for())

    @property
    def seconds_for_readers(self) -> float:
        """Number of seconds for which `drain` waits for readers that may be about to reconnect."""
        return 0.0 if self._service is None else self._service.shutdown.expected.seconds_left()

    async def close(self) -> None:
        """Stop all jobs and release all resources.

        A call of `start` or a request starts the application again.
        """
        service, self._service = self._service, None
        if service is not None:
            await service.close()
            for close in self._closers:
                await close()

    # ---- jobs --------------------------------------------------------------------------------------------------

    def _is_submit(self, scope: Scope) -> bool:
        """Return whether a request submits a job, and store the path parameters as Starlette's router does.

        If the server has a path prefix, the result is always False, because only the router knows the rules for
        prefixes.
        """
        if scope["method"] != "POST" or scope.get("root_path"):
            return False
        found = self._submit_path.match(scope["path"])
        if found is None:
            return False
        scope["path_params"] = found.groupdict()
        return True

    async def _submit_directly(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request that submits a job. This method does not call the router and the middleware, but its
        response is the same as theirs.

        The router and the middleware take a twentieth of the CPU time of a short job (bench/jobs.py).
        `test_server_direct_submit` compares the responses of both ways.
        """
        request = Request(scope, receive, send)
        try:
            self._hosts.check(scope)
            self._authenticate(request)
            response = await self._submit(request)
        except ProblemError as error:
            response = await self._refused(request, error)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - logged, and sent as a problem
            response = await self._failed(request, error)
        await response(scope, receive, send)

    async def _submit(self, request: Request) -> ASGIApp:
        as_stream = requests_and_responses.accept_names(request, "text/event-stream")
        if not as_stream:
            requests_and_responses.require_acceptable(request, "application/json")
        endpoint = self._discovery.endpoint(request)
        key = request_parameters.idempotency_key(request)
        with self._bodies.counting() as count:
            body = await self._body(request, count)
            return await self._create_job(request, endpoint, body, key, as_stream=as_stream)

    async def _create_job(
        self, request: Request, endpoint: Endpoint, body: bytes, key: str | None, *, as_stream: bool
    ) -> ASGIApp:
        principal, root, service = principal_of(request), root_of(request), self.service
        if not as_stream:
            submitted = await service.submit(principal, endpoint, body, key)
            job = await service.encoded_resource(submitted.record, root)
            return SharedResponse(job, 201, _submit_headers(submitted, root), self._settings.stall_timeout)
        # Acquire the stream slot first. If that failed after the job was submitted, the job would run despite the
        # error.
        release_slot = service.acquire_slot(principal)
        try:
            submitted = await service.submit(principal, endpoint, body, key)
            log = await service.log(submitted.record)
        except BaseException:
            release_slot()
            raise
        job_url = f"{root}/jobs/{submitted.record.id}"
        events_url = f"{job_url}/events"
        headers = [(b"location", job_url.encode()), (b"content-location", events_url.encode())]
        if submitted.replayed:
            headers.append((b"idempotency-replayed", b"true"))
        plan = plan_replay(None, log.extent())
        return EventStream(
            service, submitted.record, log, plan, release_slot, events_url=events_url, headers=headers
        )

    @property
    def _lists_jobs(self) -> bool:
        """Whether callers may list their jobs. An anonymous caller cannot prove which jobs are its own [TW-JOB-076]."""
        return self.single_user or bool(self._tokens)

    async def _list(self, request: Request) -> ASGIApp:
        if not self._lists_jobs:
            raise refuse(
                "not_found",
                "this server does not list the jobs of anonymous callers; use the ids of your jobs, or start the server "
                "with tokens, or with --single-user if all callers are one user",
            )
        requests_and_responses.require_acceptable(request, "application/json")
        limit = request_parameters.integer(request, "limit", _PAGE, 1, _MAX_PAGE)
        principal, root = principal_of(request), root_of(request)
        before = request_parameters.text(request, "before") or None
        records = await self.service.store.jobs.list(principal, before=before, limit=limit + 1)
        page = records[:limit]
        jobs = [await self._entry(record, root) for record in page]
        body: dict[str, Any] = {"jobs": [each for each in jobs if each is not None]}
        if len(records) > limit:
            body["next"] = f"{root}/jobs?limit={limit}&before={page[-1].id}"
        return json_response(body)

    async def _entry(self, record: JobRecord, root: str) -> Any:
        """Return the entry for a job in the list of jobs, or None if the job has just been deleted."""
        try:
            return job_members(await self.service.resource(record, root))
        except ProblemError as error:
            if error.problem.code != "job_expired":
                raise
            return None

    async def _read(self, request: Request) -> ASGIApp:
        requests_and_responses.require_acceptable(request, "application/json")
        record = await self._record(request)
        job = await self.service.encoded_resource(record, root_of(request))
        return SharedResponse(job, 200, {}, self._settings.stall_timeout)

    async def _purge(self, request: Request) -> ASGIApp:
        await self.service.purge(await self._record(request))
        return Response(status_code=204, headers={"cache-control": "no-store"})

    async def _cancel(self, request: Request) -> ASGIApp:
        requests_and_responses.require_acceptable(request, "application/json")
        record = await self._record(request)
        with self._bodies.counting() as count:
            body = await self._body(request, count, optional=True)
            members = read_json(body, max_values=self._settings.max_body_values) if body else {}
            items = request_parameters.items_to_cancel(members, await self._item_count(record))
        running = await self.service.cancel(record, items)
        job = await self.service.encoded_resource(record, root_of(request))
        return SharedResponse(job, 202 if running else 200, {}, self._settings.stall_timeout)

    async def _item_count(self, record: JobRecord) -> int:
        return (await (await self.service.log(record)).state()).view.length("/items")

    async def _record(self, request: Request) -> JobRecord:
        return await self.service.find(principal_of(request), request.path_params["id"])

    async def _body(self, request: Request, count: Callable[[int], None], *, optional: bool = False) -> bytes:
        settings = self._settings
        return await read_body(
            request, count, max_bytes=settings.max_body_bytes, within=settings.body_timeout, optional=optional
        )

    # ---- streams -----------------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> ASGIApp:
        sent_cursor = (
            request.headers.get("last-event-id", "").strip(" \t")
            or request_parameters.text(request, "after")
            or None
        )
        self.metrics.stream_requests.labels("no" if sent_cursor is None else "yes").inc()
        if (
            not request_parameters.has_token(request)
            and request_parameters.choice(request, "errors", "http", "inband") == "http"
        ):
            return await self._open_stream(request, sent_cursor)

        try:
            return await self._open_stream(request, sent_cursor)
        except ProblemError as error:
            found = error.problem
        except Exception as error:  # noqa: BLE001 - logged, and sent as an event
            found = failure(request, error)
        self._count_problem(found)
        return problem_stream(found, retry=self._settings.retry)

    async def _open_stream(self, request: Request, sent_cursor: str | None) -> ASGIApp:
        if sent_cursor == str(ENDED_BY_PROBLEM):
            return Response(status_code=204, headers={"cache-control": "no-store"})
        token_seconds_left = None
        if request_parameters.has_token(request):
            token_seconds_left = await self._authenticate_by_token(request)
        else:
            self._authenticate(request)
        requests_and_responses.require_acceptable(request, "text/event-stream")
        record = await self._record(request)
        cursor = request_parameters.parse_cursor(sent_cursor)
        min_interval_ms = round(self._settings.min_snapshot_interval * 1000)
        requested_ms = request_parameters.integer(request, "min_interval_ms", min_interval_ms, 0, 2**31)
        interval = (
            max(min_interval_ms, requested_ms) / 1000
            if request_parameters.choice(request, "diffs", "1", "0") == "0"
            else None
        )
        log = await self.service.log(record)
        plan = plan_replay(cursor, log.extent())
        if plan == NOTHING:
            return Response(status_code=204, headers={"cache-control": "no-store"})
        release_slot = self.service.acquire_slot(principal_of(request))
        events_url = f"{root_of(request)}/jobs/{record.id}/events"
        return EventStream(
            self.service,
            record,
            log,
            plan,
            release_slot,
            events_url=events_url,
            snapshot_interval=interval,
            as_logged=cursor == BEGINNING,
            token_seconds_left=token_seconds_left,
        )

    async def _make_stream_token(self, request: Request) -> ASGIApp:
        requests_and_responses.require_acceptable(request, "application/json")
        record = await self._record(request)
        token, until = self.service.stream_tokens.make(record.id)
        url = f"{root_of(request)}/jobs/{record.id}/events?errors=inband&token={token}"
        return json_response(StreamToken(url=url, expires_at=timestamp(until)))

    # ---- operators ---------------------------------------------------------------------------------------------

    async def _healthz(self, _request: Request) -> ASGIApp:
        return json_response({"status": "ok"})

    async def _readyz(self, _request: Request) -> ASGIApp:
        if self.service.shutdown.began:
            raise refuse("unavailable", "this server is shutting down")
        await self.service.store.check()
        return json_response({"status": "ready"})

    async def _metrics(self, request: Request) -> ASGIApp:
        # The metrics are totals of all principals, so the token of a principal is not sufficient.
        if self._tokens and not self._operator_tokens:
            raise refuse(
                "forbidden",
                "the metrics need an operator token, and this server has none; set operator_tokens or "
                "--operator-token-file",
            )
        self._operator_tokens.principal(requests_and_responses.header(request, b"authorization"))
        return Response(self.metrics.page(), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})

    def _queue_depths(self, which: int) -> list[tuple[str, float]]:
        if self._service is None:
            return []
        return [(name, self._service.depth(name)[which]) for name in self._endpoints]

    # ---- problems ----------------------------------------------------------------------------------------------

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        detail = f"there is no resource at {request.url.path[:200]!r}; the API starts at {root_of(request)}"
        return await self._refused(request, refuse("not_found", detail))

    async def _method_not_allowed(self, request: Request, _error: Exception) -> Response:
        # Starlette's `Allow` header lists the methods of a single route, but a URL may have several routes.
        routes = (each for each in self._routes if each.matches(request.scope)[0] is Match.PARTIAL)
        allowed = {"OPTIONS"}.union(*(each.methods or () for each in routes))
        allow = {"allow": ", ".join(method for method in METHODS if method in allowed)}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"cache-control": "no-store"} | allow)
        detail = f"{request.method[:20]} is not allowed for this URL; allowed: {allow['allow']}"
        return await self._refused(request, refuse("method_not_allowed", detail, headers=allow))

    async def _refused(self, _request: Request, error: ProblemError) -> Response:
        self._count_problem(error.problem)
        return problem_response(error.problem, error.headers)

    async def _refuse_host(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = "an HTTP/1.1 request must have exactly one Host header (RFC 9112, section 3.2)"
        response = await self._refused(Request(scope), refuse("bad_parameter", detail))
        await response(scope, receive, send)

    async def _failed(self, request: Request, error: Exception) -> Response:
        return await self._refused(request, ProblemError(failure(request, error)))

    async def _disconnected(self, _request: Request, _error: Exception) -> None:
        """Send no response, because the client disconnected while sending its request."""

    def _count_problem(self, found: Problem) -> None:
        self.metrics.problems.labels(found.code).inc()

    # ---- authorization -----------------------------------------------------------------------------------------

    def _route(
        self, method: str, path: str, handler: requests_and_responses.Handler, *, public: bool = False
    ) -> Route:
        return Route(path, _RouteApp(handler, None if public else self._authenticate), methods=[method])

    def _authenticate(self, request: Request) -> None:
        if self._tokens:
            request.scope[PRINCIPAL] = self._tokens.principal(
                requests_and_responses.header(request, b"authorization")
            )
        else:
            request.scope[PRINCIPAL] = self._anonymous(request)

    def _anonymous(self, request: Request) -> str:
        """Return the principal of an anonymous caller."""
        if self.single_user:
            return ANONYMOUS
        client = request.scope.get("client")
        return anonymous_at(client[0] if client else None)

    async def _authenticate_by_token(self, request: Request) -> Callable[[], float]:
        """Authenticate a request by its stream token. Return a function that returns the seconds until it expires.

        With the token, a client has the same access to the stream as the job's principal. The stream counts towards the
        limit of this principal. If the job is anonymous, the stream counts towards the limit of the reader's address.
        """
        job = request.path_params["id"]
        seconds_left = self.service.stream_tokens.check(request_parameters.text(request, "token"), job)
        found = await self.service.store.jobs.get(job)
        request.scope[PRINCIPAL] = (
            self._anonymous(request) if found is None or is_anonymous(found.principal) else found.principal
        )
        return seconds_left


def _submit_headers(submitted: Submitted, root: str) -> dict[str, str]:
    headers = {"location": f"{root}/jobs/{submitted.record.id}"}
    return headers | {"idempotency-replayed": "true"} if submitted.replayed else headers


def _has_one_host(scope: Scope) -> bool:
    """Return whether a request has one Host header, or uses a version of HTTP that does not require this header."""
    version: str = scope["http_version"]
    return version != "1.1" or [name for name, _ in scope["headers"]].count(b"host") == 1


def _remove_duplicate_prefix(scope: Scope) -> None:
    """Remove the path prefix of a proxy from the path if the path contains it twice.

    The ASGI server adds `root_path` to the path. If the proxy has not removed the prefix itself, the path then contains
    the prefix twice.
    """
    prefix = scope.get("root_path", "").rstrip("/")
    if prefix and scope["path"].startswith(f"{prefix}{prefix}/"):
        scope["path"] = scope["path"][len(prefix) :]
