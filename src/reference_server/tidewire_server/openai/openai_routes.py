"""Routes and handlers of the OpenAI surface.

GET   /openai/v1/models                       the model of `generate`, by each of its names
GET   /openai/v1/models/{name}                one of them
POST  /openai/v1/completions                  generate text for prompts
POST  /openai/v1/chat/completions             generate the next message of a conversation
POST  /openai/v1/responses                    the same as a response, which can be retrieved and resumed
GET   /openai/v1/responses/{id}               the response, or its stream (`stream=true&starting_after=N`)
POST  /openai/v1/responses/{id}/cancel        cancel the response

Every error is in the shape of OpenAI's API. Each POST is a job of `generate`, whose URL is in the header `Tidewire-Job`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.http import request_parameters
from tidewire_server.http.application import TidewireApp
from tidewire_server.http.authentication import principal_of
from tidewire_server.http.problem_responses import failure
from tidewire_server.http.request_reading import read_body, root_of
from tidewire_server.jobs.admission.submit_body import read_json
from tidewire_server.openai.api_errors import ApiError, error_of, invalid
from tidewire_server.openai.completion_objects import ChatWriter, CompletionWriter
from tidewire_server.openai.job_inputs import JobRequest, chat_request, completion_request, response_request
from tidewire_server.openai.job_watch import JobWatch
from tidewire_server.openai.request_members import ENDPOINTS, Members, served_members
from tidewire_server.openai.response_events import ID_PREFIX, ResponseWriter
from tidewire_server.openai.text_progress import TextProgress
from tidewire_server.openai.text_stream import TextStream, whole_texts
from tidewire_server.openai.token_logprobs import TokenBytes
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import LogReader
from tidewire_server.store.records import JobRecord

ROOT: Final = "/openai/v1"

ENDPOINT: Final = "generate"
"""Name of the endpoint whose jobs the surface creates and shows."""

MAX_NUMBER: Final = 2**53 - 1
"""Maximum of the query parameter `starting_after`."""

_MAX_SHOWN: Final = 80

_log = logging.getLogger(__name__)

_Handler = Callable[[Request], Awaitable[ASGIApp]]


def openai_routes(app: TidewireApp, endpoints: Mapping[str, Endpoint], settings: Settings) -> list[Route]:
    """Return the routes of the surface.

    Args:
        app: The application to which the routes are added.
        endpoints: All endpoints by name. `generate` must be one of them when a request arrives.
        settings: The server's settings.
    """
    handlers = OpenAIHandlers(app, endpoints, settings)
    table: list[tuple[str, str, _Handler]] = [
        ("POST", "/chat/completions", handlers.chat),
        ("POST", "/completions", handlers.complete),
        ("POST", "/responses", handlers.respond),
        ("GET", "/responses/{id}", handlers.retrieve),
        ("POST", "/responses/{id}/cancel", handlers.cancel),
        ("GET", "/models", handlers.models),
        ("GET", "/models/{name:path}", handlers.model),
    ]
    routes = [Route(f"{ROOT}{path}", _RouteApp(app, each), methods=[method]) for method, path, each in table]
    return [*routes, Route("/openai{path:path}", _RouteApp(app, handlers.unknown))]


class _RouteApp:
    """ASGI application of one route, which authenticates the caller and converts errors."""

    def __init__(self, app: TidewireApp, handler: _Handler) -> None:
        self._app = app
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response: ASGIApp
        try:
            self._app.authentication.authenticate(request)
            response = await self._handler(request)
        except ApiError as error:
            response = self._refused(error)
        except ProblemError as error:
            response = self._refused(error_of(error.problem, {}, error.headers))
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - logged by `failure`
            response = self._refused(error_of(failure(request, error), {}))
        await response(scope, receive, send)

    def _refused(self, error: ApiError) -> Response:
        self._app.metrics.problems.labels(error.code).inc()
        return error.response()


class OpenAIHandlers:
    """Functions that handle authenticated requests. Each returns the response, which is an ASGI application."""

    def __init__(self, app: TidewireApp, endpoints: Mapping[str, Endpoint], settings: Settings) -> None:
        self._app = app
        self._endpoints = endpoints
        self._settings = settings
        self._created = int(time.time())
        self._token_bytes: TokenBytes | None = None

    # ---- models ------------------------------------------------------------------------------------------------

    async def models(self, _request: Request) -> ASGIApp:
        """Handle `GET /models`."""
        return _json({"object": "list", "data": [self._model(name) for name in self._names]})

    async def model(self, request: Request) -> ASGIApp:
        """Handle `GET /models/{name}`."""
        name = request.path_params["name"]
        self._check_model(name)
        return _json(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "tidewire"}

    @property
    def _names(self) -> list[str]:
        """Names of the model, beginning with its own."""
        found = self._endpoints[ENDPOINT].capabilities(1).model
        own = ENDPOINT if found is None else found.name
        return [*dict.fromkeys([own, *self._settings.served_model_names])]

    def _check_model(self, name: object) -> None:
        if name is None:
            raise ApiError(400, "you must provide the parameter model", param="model", code="missing_parameter")
        if not isinstance(name, str):
            raise invalid("model", "must be a text")
        if name not in self._names:
            message = f"the model {name[:_MAX_SHOWN]!r} does not exist; this server has: {', '.join(self._names)}"
            raise ApiError(404, message, param="model", code="model_not_found")

    # ---- completions -------------------------------------------------------------------------------------------

    async def complete(self, request: Request) -> ASGIApp:
        """Handle `POST /completions`."""
        return await self._complete(request, "completions", completion_request, CompletionWriter)

    async def chat(self, request: Request) -> ASGIApp:
        """Handle `POST /chat/completions`."""
        return await self._complete(request, "chat/completions", chat_request, ChatWriter)

    async def _complete(
        self,
        request: Request,
        endpoint: str,
        translate: Callable[[Mapping[str, Any], Members], JobRequest],
        writer_type: type[CompletionWriter],
    ) -> ASGIApp:
        job = await self._read(request, endpoint, translate)
        tokens = await self._tokens(wanted=job.has_logprobs)
        watch, headers = await self._submit(request, job)
        writer = writer_type(job, watch.record, self._names[0], tokens)
        progress = TextProgress(len(job.inputs) * job.samples if len(job.inputs) == 1 else len(job.inputs), tokens)
        if job.stream:
            return TextStream(watch, writer, progress, headers, _nothing)
        changes, record = await whole_texts(watch, progress, request.receive)
        return _json(writer.completion(changes, record), headers)

    # ---- responses ---------------------------------------------------------------------------------------------

    async def respond(self, request: Request) -> ASGIApp:
        """Handle `POST /responses`."""
        job = await self._read(request, "responses", response_request)
        tokens = await self._tokens(wanted=job.has_logprobs)
        watch, headers = await self._submit(request, job)
        writer = ResponseWriter(watch.record, self._names[0], tokens, background=job.background)
        progress = TextProgress(1, tokens)

        async def end() -> None:
            if not job.store:
                await self._app.service.purge(watch.record)

        if job.stream:
            return TextStream(watch, writer, progress, headers, end)
        if job.background:
            with watch.attached():
                return _json(writer.response(watch.record.status), headers)
        try:
            (change,), record = await whole_texts(watch, progress, request.receive)
            return _json(writer.response(record.status, change, record), headers)
        finally:
            await end()

    async def retrieve(self, request: Request) -> ASGIApp:
        """Handle `GET /responses/{id}`."""
        record, log = await self._find(request)
        if request_parameters.choice(request, "stream", "false", "true") == "false":
            return _json(await self._response(record, log))
        after = request_parameters.integer(request, "starting_after", -1, 0, MAX_NUMBER)
        tokens = await self._tokens_of(log)
        release = self._app.service.readers.acquire_slot(principal_of(request))
        watch = JobWatch(self._app.service, record, log, release)
        writer = ResponseWriter(record, self._names[0], tokens, background=None, after=after)
        return TextStream(watch, writer, TextProgress(1, tokens), _headers(request, record), _nothing)

    async def cancel(self, request: Request) -> ASGIApp:
        """Handle `POST /responses/{id}/cancel`."""
        record, log = await self._find(request)
        await self._app.service.cancel(record, None)
        # The function of the job may take a while to end.
        try:
            async with asyncio.timeout(self._settings.cancel_timeout):
                await self._app.service.outcome(record)
        except TimeoutError:
            pass
        return _json(await self._response(record, log))

    async def _response(self, record: JobRecord, log: LogReader) -> dict[str, Any]:
        tokens = await self._tokens_of(log)
        writer = ResponseWriter(record, self._names[0], tokens, background=None)
        ended, at = log.extent().ended, await log.state()
        changes = [*TextProgress(1, tokens).changes(at)]
        status = str(at.view.value("/items/0/status"))
        return writer.response(status, changes[0] if changes else None, record if ended else None)

    async def _find(self, request: Request) -> tuple[JobRecord, LogReader]:
        """Return the job of a response. A job with several items is not a response."""
        name = request.path_params["id"]
        service = self._app.service
        try:
            record = await service.find(principal_of(request), name.removeprefix(ID_PREFIX))
            if record.endpoint != ENDPOINT or record.batch or not name.startswith(ID_PREFIX):
                raise refuse("job_not_found", "")
            return record, await service.log(record)
        except ProblemError as error:
            if error.problem.code not in {"job_not_found", "job_expired"}:
                raise
            message = f"the response {name[:_MAX_SHOWN]!r} does not exist, or its retention time is over"
            raise ApiError(404, message, param="response_id", code="not_found") from None

    # ---- all endpoints -----------------------------------------------------------------------------------------

    async def unknown(self, request: Request) -> ASGIApp:
        """Handle a request for a URL that does not exist."""
        url = f"{request.method[:20]} {request.url.path[:_MAX_SHOWN]}"
        raise ApiError(404, f"unknown request URL: {url}; the API starts at {ROOT}", code="unknown_url")

    async def _read(
        self,
        request: Request,
        endpoint: str,
        translate: Callable[[Mapping[str, Any], Members], JobRequest],
    ) -> JobRequest:
        settings = self._settings
        with self._app.handlers.bodies.counting() as count:
            body = await read_body(
                request, count, max_bytes=settings.max_body_bytes, within=settings.body_timeout
            )
            members = read_json(body, max_values=settings.max_body_values)
            self._check_model(members.get("model"))
            return translate(served_members(ENDPOINTS[endpoint], members), ENDPOINTS[endpoint])

    async def _submit(self, request: Request, job: JobRequest) -> tuple[JobWatch, dict[str, str]]:
        key = request_parameters.idempotency_key(request)
        principal, service = principal_of(request), self._app.service
        # Acquire the stream slot first, as for an event stream.
        release = service.readers.acquire_slot(principal)
        try:
            submitted = await service.submit(principal, self._endpoints[ENDPOINT], job.body(), key)
            watch = JobWatch(service, submitted.record, await service.log(submitted.record), release)
        except ProblemError as error:
            release()
            raise error_of(error.problem, job.params, error.headers) from None
        except BaseException:
            release()
            raise
        headers = _headers(request, submitted.record)
        return watch, headers | ({"idempotency-replayed": "true"} if submitted.replayed else {})

    async def _tokens(self, *, wanted: bool) -> TokenBytes | None:
        """Return the bytes of the tokens, which are read once, or None if they are not needed."""
        if wanted and self._token_bytes is None:
            endpoint = self._endpoints[ENDPOINT]
            self._token_bytes = await asyncio.to_thread(lambda: TokenBytes(endpoint.resource("vocabulary").body))
        return self._token_bytes if wanted else None

    async def _tokens_of(self, log: LogReader) -> TokenBytes | None:
        view = (await log.state()).view
        return await self._tokens(wanted=view.node(("items", "0", "value", "logprobs")) is not None)


async def _nothing() -> None:
    """Do nothing at the end of a stream."""


def _headers(request: Request, record: JobRecord) -> dict[str, str]:
    return {"tidewire-job": f"{root_of(request)}/jobs/{record.id}"}


def _json(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), 200, {"cache-control": "no-store", **(headers or {})}, "application/json")
