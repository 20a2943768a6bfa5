"""Routes and handlers of the OpenAI surface.

GET   /openai/v1/models                       the model of `generate`, by each of its names
GET   /openai/v1/models/{name}                the model by one name
POST  /openai/v1/completions                  generate text for prompts
POST  /openai/v1/chat/completions             generate the next message of a conversation
POST  /openai/v1/responses                    generate the next message as a response, which can be retrieved and resumed
GET   /openai/v1/responses/{id}               the response, or its stream (`stream=true&starting_after=N`)
POST  /openai/v1/responses/{id}/cancel        cancel the response

Every error has the format of OpenAI's API. Each POST request for text starts a job of `generate`, and the response header
`Tidewire-Job` contains the URL of the job.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidewire_server import tracing
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.http.application import TidewireApp
from tidewire_server.http.authentication import principal_of
from tidewire_server.http.problem_responses import failure
from tidewire_server.http.request_parameters import choice, idempotency_key, integer
from tidewire_server.http.request_reading import read_body, root_of
from tidewire_server.http.shared_response import SharedResponse
from tidewire_server.openai.api_errors import ApiError, error_of, invalid
from tidewire_server.openai.completion_objects import ChatWriter, CompletionWriter
from tidewire_server.openai.job_inputs import JobRequest, chat_request, completion_request, response_request
from tidewire_server.openai.job_watch import JobWatch
from tidewire_server.openai.request_body import read_request_body
from tidewire_server.openai.request_members import MAX_SHOWN
from tidewire_server.openai.response_events import ID_PREFIX, ResponseWriter
from tidewire_server.openai.text_progress import TextProgress
from tidewire_server.openai.text_stream import OpenAIStream, whole_texts
from tidewire_server.openai.token_logprobs import TokenBytes
from tidewire_server.store.log_interface import LogReader
from tidewire_server.store.records import JobRecord

ROOT: Final = "/openai/v1"

ENDPOINT: Final = "generate"
"""Name of the endpoint whose jobs serve the requests."""

_Handler = Callable[[Request], Awaitable[ASGIApp]]
_Translate = Callable[[Mapping[str, Any]], JobRequest]


def openai_routes(app: TidewireApp, endpoints: Mapping[str, Endpoint]) -> list[Route]:
    """Return the routes of the OpenAI surface. `endpoints` must contain `generate` when the first request arrives."""
    handlers = OpenAIHandlers(app, endpoints)
    chat = partial(handlers.complete, chat_request, ChatWriter)
    limited = partial(completion_request, limits=app.settings.limits)
    completion = partial(handlers.complete, limited, CompletionWriter)
    table: list[tuple[str, str, _Handler]] = [
        ("POST", "/chat/completions", chat),
        ("POST", "/completions", completion),
        ("POST", "/responses", handlers.respond),
        ("GET", "/responses/{id}", handlers.retrieve),
        ("POST", "/responses/{id}/cancel", handlers.cancel),
        ("GET", "/models", handlers.models),
        ("GET", "/models/{name:path}", handlers.models),
    ]
    routes = [Route(f"{ROOT}{path}", _OpenAIRoute(app, each), methods=[verb]) for verb, path, each in table]
    # Answer wrong URLs in the format of OpenAI's API too: a script's base URL may lack `/openai`, `/v1` or both.
    unknown = ["/openai{path:path}", *(f"{base}{path}" for base in ("", "/v1") for _, path, _ in table)]
    return [*routes, *(Route(path, _OpenAIRoute(app, handlers.unknown)) for path in unknown)]


class _OpenAIRoute:
    """ASGI application of one route. It authenticates the caller and converts errors to the format of OpenAI's API."""

    def __init__(self, app: TidewireApp, handler: _Handler) -> None:
        self._app = app
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            with tracing.continued(scope["headers"]):
                await self._app.authentication.authenticate(request)
                response = await self._handler(request)
        except ClientDisconnect:
            raise
        except Exception as found:  # noqa: BLE001 - logged by `failure`
            if isinstance(found, ProblemError):
                found = error_of(found.problem, headers=found.headers)
            error = found if isinstance(found, ApiError) else error_of(failure(request, found))
            self._app.metrics.problems.labels(error.code).inc()
            response = error.response()
        await response(scope, receive, send)


class OpenAIHandlers:
    """Handlers of authenticated requests. Each handler returns the response as an ASGI application."""

    def __init__(self, app: TidewireApp, endpoints: Mapping[str, Endpoint]) -> None:
        self._app = app
        self._endpoints = endpoints
        self._created = int(time.time())
        self._token_bytes: TokenBytes | None = None

    async def unknown(self, request: Request) -> ASGIApp:
        """Handle a request for a URL that does not exist."""
        url = f"{request.method[:20]} {request.url.path[:MAX_SHOWN]}"
        raise ApiError(404, f"unknown request URL: {url}; the API starts at {ROOT}", code="unknown_url")

    async def models(self, request: Request) -> ASGIApp:
        """Handle `GET /models` and `GET /models/{name}`."""
        self._check_available()
        common = {"object": "model", "created": self._created, "owned_by": "tidewire"}
        if (name := request.path_params.get("name")) is not None:
            self._check_model(name)
            return self._json(request, {"id": name, **common})
        return self._json(
            request, {"object": "list", "data": [{"id": each, **common} for each in self._names]}
        )

    @property
    def _names(self) -> list[str]:
        """Name of the model, followed by its aliases."""
        found = self._endpoints[ENDPOINT].capabilities(1).model
        own = ENDPOINT if found is None else found.name
        return [*dict.fromkeys([own, *self._app.settings.served_model_names])]

    def _check_available(self) -> None:
        """Raise an error if no engine is available yet, because the model's name may then be unknown."""
        if (reason := self._endpoints[ENDPOINT].unavailable()) is not None:
            raise refuse("unavailable", reason)

    def _check_model(self, name: object) -> None:
        if not isinstance(name, str):
            raise invalid("model", "must be the name of a model")
        if name not in self._names:
            message = f"the model {name[:MAX_SHOWN]!r} does not exist; there is {', '.join(self._names)}"
            raise ApiError(404, message, param="model", code="model_not_found")

    # ---- completions -------------------------------------------------------------------------------------------

    async def complete(
        self, translate: _Translate, writer_type: type[CompletionWriter], request: Request
    ) -> ASGIApp:
        """Handle `POST /completions` and `POST /chat/completions`."""
        job, tokens, watch, headers = await self._submit(request, translate)
        writer = writer_type(job, watch.record, self._names[0], tokens)
        progress = TextProgress(job.items, tokens)
        if job.stream:
            return OpenAIStream(watch, writer, progress, headers, holds_head=True)
        return self._json(
            request, writer.completion(*await whole_texts(watch, progress, request.receive)), headers
        )

    # ---- responses ---------------------------------------------------------------------------------------------

    async def respond(self, request: Request) -> ASGIApp:
        """Handle `POST /responses`."""
        job, tokens, watch, headers = await self._submit(request, response_request)
        writer = ResponseWriter(watch.record, self._names[0], tokens, background=job.background)
        progress = TextProgress(1, tokens)

        async def end() -> None:
            if not job.store:
                await self._app.service.purge(watch.record)

        if job.stream:
            return OpenAIStream(watch, writer, progress, headers, end, holds_head=not job.background)
        if job.background:
            with watch.attached():
                return self._json(request, writer.response(watch.record.status), headers)
        try:
            (whole,), record = await whole_texts(watch, progress, request.receive)
            return self._json(request, writer.response(record.status, whole, record), headers)
        finally:
            await end()

    async def retrieve(self, request: Request) -> ASGIApp:
        """Handle `GET /responses/{id}`."""
        record, log, tokens = await self._find(request)
        if choice(request, "stream", "false", "true") == "false":
            return await self._response(request, record, log, tokens)
        after = integer(request, "starting_after", -1, 0, 2**39)
        writer = ResponseWriter(record, self._names[0], tokens, after=after)
        release = self._app.service.readers.acquire_slot(principal_of(request))
        watch = JobWatch(self._app.service, record, log, release)
        return OpenAIStream(watch, writer, TextProgress(1, tokens), _job_header(request, record))

    async def cancel(self, request: Request) -> ASGIApp:
        """Handle `POST /responses/{id}/cancel`."""
        record, log, tokens = await self._find(request)
        await self._app.service.cancel(record, None)
        with suppress(TimeoutError):  # The function of the job may take a while to end.
            async with asyncio.timeout(self._app.settings.cancel_timeout):
                await self._app.service.outcome(record)
        return await self._response(request, record, log, tokens)

    async def _response(
        self, request: Request, record: JobRecord, log: LogReader, tokens: TokenBytes | None
    ) -> ASGIApp:
        ended, at = log.extent().ended, await log.state()
        whole = next(TextProgress(1, tokens).changes(at), None)
        writer = ResponseWriter(record, self._names[0], tokens)
        body = writer.response(str(at.view.value("/items/0/status")), whole, record if ended else None)
        return self._json(request, body, _job_header(request, record))

    async def _find(self, request: Request) -> tuple[JobRecord, LogReader, TokenBytes | None]:
        """Return the job of a response. A job with several items is not a response."""
        name, service = request.path_params["id"], self._app.service
        record = await service.find(principal_of(request), name.removeprefix(ID_PREFIX))
        if record.endpoint != ENDPOINT or record.batch or not name.startswith(ID_PREFIX):
            raise refuse("job_not_found", f"response {name[:MAX_SHOWN]!r} does not exist")
        log = await service.log(record)
        column = (await log.state()).view.node(("items", "0", "value", "logprobs"))
        return record, log, None if column is None else await self._tokens()

    # ---- all endpoints -----------------------------------------------------------------------------------------

    async def _submit(
        self, request: Request, translate: _Translate
    ) -> tuple[JobRequest, TokenBytes | None, JobWatch, dict[str, str]]:
        """Read a request and submit its job. The result also contains the response headers and, if log-probabilities were
        requested, the bytes of the tokens.
        """
        settings, service, principal = self._app.settings, self._app.service, principal_of(request)
        key = idempotency_key(request)
        with self._app.handlers.counting(request) as count:
            limits: dict[str, Any] = {"max_bytes": settings.max_body_bytes, "within": settings.body_timeout}
            content = await read_body(request, count, **limits)
            body = read_request_body(content, max_values=settings.max_body_values)
            del content
            self._check_available()
            self._check_model(body.get("model"))
            job = translate(body)
            del body
            if (model := self._endpoints[ENDPOINT].capabilities(1).model) is not None:
                job.check_served(model.features, self._endpoints[ENDPOINT].input.unsupported)
            # Do what may fail before the job is submitted. Otherwise the job would run although the request fails.
            tokens = await self._tokens() if "logprobs" in job.inputs[0] else None
            release_slot = service.readers.acquire_slot(principal)
            try:
                submitted = await service.submit(principal, self._endpoints[ENDPOINT], job.body(), key)
                watch = JobWatch(service, submitted.record, await service.log(submitted.record), release_slot)
            except BaseException as error:
                release_slot()
                if isinstance(error, ProblemError):
                    raise error_of(error.problem, job.params, error.headers) from None
                raise
        headers = _job_header(request, submitted.record)
        return job, tokens, watch, headers | ({"idempotency-replayed": "true"} if submitted.replayed else {})

    def _json(
        self, request: Request, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> ASGIApp:
        """Return a JSON response. Slow readers of equal bodies share one copy in memory, because a body may be large."""
        text = self._app.service.texts.body(principal_of(request), orjson.dumps(body))
        return SharedResponse([text], 200, headers or {}, self._app.settings.stall_timeout)

    async def _tokens(self) -> TokenBytes | None:
        """Return the bytes of the model's tokens, or None if `generate` has no vocabulary. They are read once and cached."""
        endpoint = self._endpoints[ENDPOINT]
        if self._token_bytes is None and "vocabulary" in endpoint.links:
            vocabulary = await asyncio.to_thread(endpoint.resource, "vocabulary")
            self._token_bytes = await asyncio.to_thread(TokenBytes, vocabulary.body)
        return self._token_bytes


def _job_header(request: Request, record: JobRecord) -> dict[str, str]:
    return {"tidewire-job": f"{root_of(request)}/jobs/{record.id}", "x-request-id": record.id}
