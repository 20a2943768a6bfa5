"""The ASGI application of a server (`TidewireApp`): its routes, and its differences from Starlette.

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
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Self

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidewire.protocol.resources import API_ROOT
from tidewire_server import tracing
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.http.authentication import Authentication
from tidewire_server.http.cors import METHODS, cors
from tidewire_server.http.discovery import DiscoveryDocuments
from tidewire_server.http.event_stream import STREAM
from tidewire_server.http.handlers import Handlers
from tidewire_server.http.host_check import HostCheck
from tidewire_server.http.lifespan import Lifespan
from tidewire_server.http.problem_responses import failure, problem_response
from tidewire_server.http.request_reading import root_of
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection
from tidewire_server.jobs.endpoint_queues_and_groups import global_limits
from tidewire_server.jobs.job_service import JobService
from tidewire_server.jobs.replicas.live_workers import LiveWorkers
from tidewire_server.metrics import Metrics
from tidewire_server.principals import PrincipalFunction
from tidewire_server.settings import Settings

_WORKER_METRICS: Final = (
    ("pool_workers", "Workers of the endpoint, whether they run or not (option `workers`)."),
    ("pool_workers_ready", "Workers that have loaded the function, including the busy ones."),
    ("pool_workers_busy", "Workers that run a call."),
    ("pool_workers_lost", "Workers that have died or were replaced since the server started."),
)
"""Name and description of the metric for each member of `SlotCounts`."""

_Handler = Callable[[Request], Awaitable[ASGIApp]]


class _EndpointName(StringConvertor):
    """URL convertor for the name of an endpoint.

    A slash at the start or end of the name matches too, because Gradio writes names such as `/predict`. The error response can
    then suggest `predict` [TW-DSC-029]. If the slash did not match, the error would be `not_found`, without a suggestion.
    """

    regex = "/?[^/]+/?"


class _LinkName(StringConvertor):
    """URL convertor for the name of a linked resource.

    The name `jobs` does not match, so that the response to `GET /endpoints/{name}/jobs` is 405 [TW-JOB-003].
    """

    regex = "(?!jobs$)[^/]+"


register_url_convertor("tidewire_endpoint", _EndpointName())
register_url_convertor("tidewire_link", _LinkName())


class _RouteApp:
    """ASGI application of one route. Starlette wraps each call of a plain handler function in a second exception handler, and
    this class avoids that.
    """

    def __init__(self, handler: _Handler, authenticate: Callable[[Request], Awaitable[None]] | None) -> None:
        self._handler = handler
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        with tracing.continued(scope["headers"]):
            if self._authenticate is not None:
                await self._authenticate(request)
            response = await self._handler(request)
            await response(scope, receive, send)


class TidewireApp:
    """ASGI application of one server."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        settings: Settings,
        closers: Sequence[Callable[[], Awaitable[None]]] = (),
        principal: PrincipalFunction | None = None,
        routes: Iterable[Callable[[Self], Iterable[Route]]] = (),
    ) -> None:
        """Create the application with its routes.

        Args:
            endpoints: All endpoints by name.
            settings: The server's settings.
            closers: Coroutine functions to call at shutdown, such as the `close` of an engine.
            principal: Function that returns the name of the caller, in place of tokens.
            routes: Functions that return additional routes. See `Server.add_routes`.

        Raises:
            ValueError: A token in the settings is not valid.
        """
        self._endpoints = endpoints
        self.settings = settings
        self.authentication = Authentication(settings, principal)
        self.metrics = Metrics()
        self.metrics.measure(
            "items_running", "Items whose function is running.", lambda: self._queue_depths(0)
        )
        self.metrics.measure("items_waiting", "Items waiting in the queue.", lambda: self._queue_depths(1))
        for number, (name, text) in enumerate(_WORKER_METRICS):
            self.metrics.measure(name, text, partial(self._worker_counts, number))
        self.metrics.measure(
            "workers", "Live processes that run the endpoint.", lambda: self._workers(LiveWorkers.count)
        )
        self.metrics.measure(
            "slots",
            "Calls that all live processes can run at the same time.",
            self._slots,
        )
        self.metrics.measure(
            "batch_size",
            "Moving average of the number of items in one call of a batched function.",
            self._batch_sizes,
        )
        self.metrics.measure(
            "generated_tokens",
            "Tokens generated by text generation since the server started.",
            lambda: [
                (name, each.generated_tokens)
                for name, each in endpoints.items()
                if each.generated_tokens is not None
            ],
        )
        self.lifespan = Lifespan(endpoints, settings, self.metrics, self.authentication, closers)
        self.send_buffers_bounded = False
        """Whether connections have inherited the send buffer size `SEND_BUFFER_BYTES` from the listening socket."""
        discovery = DiscoveryDocuments(endpoints, settings, self.lifespan, self.authentication)
        self.handlers = handlers = Handlers(
            settings, self.metrics, self.lifespan, self.authentication, discovery
        )
        route = self._route
        self._routes = [
            # Starlette tries the routes in this order, so the routes of the most frequent requests come first.
            route("POST", f"{API_ROOT}/endpoints/{{name:tidewire_endpoint}}/jobs", handlers.submit),
            route("GET", f"{API_ROOT}/jobs/{{id}}/events", handlers.events, public=True),
            route("GET", f"{API_ROOT}/jobs/{{id}}", handlers.read),
            route("DELETE", f"{API_ROOT}/jobs/{{id}}", handlers.purge),
            route("GET", API_ROOT, discovery.discover),
            route("GET", f"{API_ROOT}/endpoints/{{name:tidewire_endpoint}}", discovery.describe),
            route(
                "GET", f"{API_ROOT}/endpoints/{{name}}/{{resource:tidewire_link}}", discovery.linked_resource
            ),
            route("GET", f"{API_ROOT}/jobs", handlers.list),
            route("POST", f"{API_ROOT}/jobs/{{id}}/cancel", handlers.cancel),
            route("POST", f"{API_ROOT}/jobs/{{id}}/stream-token", handlers.make_stream_token),
            route("GET", "/healthz", handlers.healthz, public=True),
            route("GET", "/readyz", handlers.readyz, public=True),
            route("GET", "/metrics", handlers.metrics_page, public=True),
            *(each for further in routes for each in further(self)),
        ]
        errors: dict[Any, Any] = {
            404: self._not_found,
            405: self._method_not_allowed,
            ProblemError: self._refused,
            ClientDisconnect: self._disconnected,
            Exception: self._failed,
        }
        # Do not use the class `Starlette`. It sends 500 responses without CORS headers, so pages cannot read them
        # [TW-BRW-005].
        router = Router(self._routes, redirect_slashes=False)
        self._http: ASGIApp = ExceptionMiddleware(HostCheck(router, settings), errors)
        if settings.cors_origins:  # CORS is off by default [TW-BRW-006]
            self._http = cors(self._http, settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle HTTP requests and the ASGI lifespan. WebSocket connections are closed immediately."""
        if scope["type"] == "lifespan":
            await self.lifespan.run(receive, send)
        elif scope["type"] == "http":
            if not self.lifespan.started:  # This ASGI server does not support the lifespan protocol.
                # Start in an empty context. Otherwise the functions of all jobs would inherit the context variables of this
                # request, such as its user.
                await asyncio.get_running_loop().create_task(self.lifespan.start(), context=Context())
            _correct_prefix(scope)
            # Set `app`, because the router then raises exceptions instead of sending 404 and 405 responses itself.
            scope["app"] = self
            scope["tidewire.http.response"] = connection = UvicornConnection(
                send, bounded=self.send_buffers_bounded
            )
            send = connection.framed(scope, receive, send)
            app = self._http if _has_one_host(scope) else self._refuse_host
            try:
                await app(scope, receive, _with_privacy(send, scope))
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
        return self.lifespan.service

    @property
    def single_user(self) -> bool:
        """Whether all callers are one user."""
        return self.authentication.single_user

    async def start(self) -> None:
        """Start the application. Call this only if an outer application does not run the ASGI lifespan of this one. See
        `Lifespan.start`.
        """
        await self.lifespan.start()

    async def close(self) -> None:
        """Stop all jobs and release all resources. See `Lifespan.close`."""
        await self.lifespan.close()

    def serves(self, path: str) -> bool:
        """Return whether the application has a route with this path."""
        return any(route.path == path for route in self._routes)

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
        self.metrics.problems.labels(error.problem.code).inc()
        return problem_response(error.problem, error.headers)

    async def _refuse_host(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = "an HTTP/1.1 request must have exactly one Host header (RFC 9112, section 3.2)"
        response = await self._refused(Request(scope), refuse("bad_parameter", detail))
        await response(scope, receive, send)

    async def _failed(self, request: Request, error: Exception) -> Response:
        return await self._refused(request, ProblemError(failure(request, error)))

    async def _disconnected(self, _request: Request, _error: Exception) -> None:
        """Send no response, because the client disconnected while sending its request."""

    # ---- routes ------------------------------------------------------------------------------------------------

    def _route(self, method: str, path: str, handler: _Handler, *, public: bool = False) -> Route:
        authenticate = None if public else self.authentication.authenticate
        return Route(path, _RouteApp(handler, authenticate), methods=[method])

    def _worker_counts(self, number: int) -> list[tuple[str, float]]:
        return [
            (name, each.workers.counts()[number])
            for name, each in self._endpoints.items()
            if each.workers is not None
        ]

    def _queue_depths(self, which: int) -> list[tuple[str, float]]:
        if not self.lifespan.started:
            return []
        return [(name, self.service.scheduler.depth(name)[which]) for name in self._endpoints]

    def _batch_sizes(self) -> list[tuple[str, float]]:
        if not self.lifespan.started:
            return []
        return [
            (name, self.service.scheduler.batch_size(name))
            for name, each in self._endpoints.items()
            if each.batching is not None
        ]

    def _slots(self) -> list[tuple[str, float]]:
        limits = global_limits(self._endpoints.values())
        return [
            (name, min(slots, limits[name].calls) if name in limits else slots)
            for name, slots in self._workers(lambda workers, name: workers.total(name).slots)
        ]

    def _workers(self, read: Callable[[LiveWorkers, str], float]) -> list[tuple[str, float]]:
        if not self.lifespan.started:
            return []
        return [(name, read(self.service.workers, name)) for name in self._endpoints]


def _has_one_host(scope: Scope) -> bool:
    """Return whether a request has one Host header, or uses a version of HTTP that does not require this header."""
    version: str = scope["http_version"]
    return version != "1.1" or [name for name, _ in scope["headers"]].count(b"host") == 1


def _correct_prefix(scope: Scope) -> None:
    """Remove the path prefix of a proxy from the path if the path contains it twice, and add it if it is missing.

    The ASGI server adds `root_path` to the path. If the proxy has not removed the prefix itself, the path then contains
    the prefix twice. hypercorn, granian and `FastAPI(root_path=…)` do not add it. If the application is mounted, Starlette
    would then find no route, because `root_path` also contains the path of the mount.
    """
    prefix, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    whole = scope.get("app_root_path", "").rstrip("/") + path
    if prefix and path.startswith(f"{prefix}{prefix}/"):
        scope["path"] = path[len(prefix) :]
    elif whole.startswith(f"{prefix}/") and not path.startswith(f"{prefix}/"):
        scope["path"] = whole


def _with_privacy(send: Send, scope: Scope) -> Send:
    """Add the `Referrer-Policy: no-referrer` header to a response if the URL contains a secret stream token."""
    if b"token=" not in scope["query_string"]:
        return send

    async def send_privately(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"referrer-policy", b"no-referrer")]}
        await send(message)

    return send_privately
