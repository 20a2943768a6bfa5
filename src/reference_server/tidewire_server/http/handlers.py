"""Handlers of requests for jobs and event streams, and of the operators' requests for health and metrics."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tidewire.protocol.cursor import BEGINNING, ENDED_BY_PROBLEM
from tidewire.protocol.messages import ephemeral_frame
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import StreamToken
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import ProblemError, refuse
from tidewire_server.http import request_parameters
from tidewire_server.http.authentication import Authentication, principal_of
from tidewire_server.http.body_memory_limit import IncomingBodies
from tidewire_server.http.discovery import DiscoveryDocuments
from tidewire_server.http.event_stream import HEADERS, EventStream
from tidewire_server.http.lifespan import Lifespan
from tidewire_server.http.problem_responses import failure, json_response
from tidewire_server.http.replay_plan import NOTHING, plan_replay
from tidewire_server.http.request_reading import accept_names, read_body, require_acceptable, root_of
from tidewire_server.http.shared_response import SharedResponse
from tidewire_server.jobs.admission.job_submitter import Submitted
from tidewire_server.jobs.admission.submit_body import read_json
from tidewire_server.jobs.job_resource import job_members, read_job, timestamp
from tidewire_server.metrics import MEDIA_TYPE, Metrics
from tidewire_server.settings import Settings
from tidewire_server.store.records import JobRecord

_PAGE = 50
_MAX_PAGE = 1000
_NO_STORE = {"cache-control": "no-store"}


class Handlers:
    """Handlers of authenticated requests. Each handler returns the response as an ASGI application."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        lifespan: Lifespan,
        authentication: Authentication,
        discovery: DiscoveryDocuments,
    ) -> None:
        """Create the handlers.

        Args:
            settings: The server's settings.
            metrics: Metrics of the application.
            lifespan: Provides the job service. It is read for each request, because the service starts later.
            authentication: Authenticates requests for event streams, which may have a stream token instead of other
                credentials.
            discovery: Handlers of the discovery requests. They find the endpoint that a URL names.
        """
        self._settings = settings
        self._metrics = metrics
        self._lifespan = lifespan
        self._authentication = authentication
        self._discovery = discovery
        self.bodies = IncomingBodies(settings.max_incoming_bytes)
        """Request bodies that are being received or processed."""

    def counting(self, request: Request) -> AbstractContextManager[Callable[[int], None]]:
        """Count the body of an authenticated request. See `IncomingBodies.counting`."""
        return self.bodies.counting(principal_of(request), self._lifespan.caller_share)

    # ---- jobs --------------------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> ASGIApp:
        """Handle `POST /v1/endpoints/{name}/jobs`."""
        as_stream = accept_names(request, "text/event-stream")
        if not as_stream:
            require_acceptable(request, "application/json")
        endpoint = self._discovery.endpoint(request)
        key = request_parameters.idempotency_key(request)
        with self.counting(request) as count:
            body = await self._body(request, count)
            return await self._create_job(request, endpoint, body, key, as_stream=as_stream)

    async def _create_job(
        self, request: Request, endpoint: Endpoint, body: bytes, key: str | None, *, as_stream: bool
    ) -> ASGIApp:
        principal, root, service = principal_of(request), root_of(request), self._lifespan.service
        if not as_stream:
            submitted = await service.submit(principal, endpoint, body, key)
            job = await service.encoded_resource(submitted.record, root)
            return SharedResponse(job, 201, _submit_headers(submitted, root), self._settings.stall_timeout)
        # Acquire the stream slot before the submit. If it failed afterwards, the job would run although the request fails.
        release_slot = service.readers.acquire_slot(principal)
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

    async def list(self, request: Request) -> ASGIApp:
        """Handle `GET /v1/jobs`."""
        if not self._authentication.lists_jobs:
            raise refuse(
                "not_found",
                "this server does not list the jobs of anonymous callers; use the ids of your jobs, or start the server "
                "with tokens, or with --single-user if all callers are one user",
            )
        require_acceptable(request, "application/json")
        limit = request_parameters.integer(request, "limit", _PAGE, 1, _MAX_PAGE)
        principal, root = principal_of(request), root_of(request)
        before = request_parameters.text(request, "before") or None
        found = await self._lifespan.service.store.jobs.list(principal, before=before, limit=limit + 1)
        page = found[:limit]
        body: dict[str, Any] = {"jobs": [job_members(read_job(*each, root)) for each in page]}
        if len(found) > limit:
            last, _ = page[-1]
            body["next"] = f"{root}/jobs?limit={limit}&before={last.id}"
        text = self._lifespan.service.texts.body(principal, orjson.dumps(body))
        return SharedResponse([text], 200, {}, self._settings.stall_timeout)

    async def read(self, request: Request) -> ASGIApp:
        """Handle `GET /v1/jobs/{id}`."""
        require_acceptable(request, "application/json")
        record = await self._record(request)
        job = await self._lifespan.service.encoded_resource(record, root_of(request))
        return SharedResponse(job, 200, {}, self._settings.stall_timeout)

    async def purge(self, request: Request) -> ASGIApp:
        """Handle `DELETE /v1/jobs/{id}`."""
        await self._lifespan.service.purge(await self._record(request))
        return Response(status_code=204, headers=_NO_STORE)

    async def cancel(self, request: Request) -> ASGIApp:
        """Handle `POST /v1/jobs/{id}/cancel`."""
        require_acceptable(request, "application/json")
        record = await self._record(request)
        with self.counting(request) as count:
            body = await self._body(request, count, optional=True)
            members = read_json(body, max_values=self._settings.max_body_values) if body else {}
            items = request_parameters.items_to_cancel(members, await self._item_count(record))
        running = await self._lifespan.service.cancel(record, items)
        record = await self._record(
            request
        )  # Another server may run the job, or the job may just have ended.
        job = await self._lifespan.service.encoded_resource(record, root_of(request))
        return SharedResponse(job, 202 if running else 200, {}, self._settings.stall_timeout)

    async def _item_count(self, record: JobRecord) -> int:
        return (await (await self._lifespan.service.log(record)).state()).view.length("/items")

    async def _record(self, request: Request) -> JobRecord:
        return await self._lifespan.service.find(principal_of(request), request.path_params["id"])

    async def _body(self, request: Request, count: Callable[[int], None], *, optional: bool = False) -> bytes:
        settings = self._settings
        return await read_body(
            request, count, max_bytes=settings.max_body_bytes, within=settings.body_timeout, optional=optional
        )

    # ---- streams -----------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> ASGIApp:
        """Handle `GET /v1/jobs/{id}/events`. This handler authenticates the request itself."""
        sent_cursor = (
            request.headers.get("last-event-id", "").strip(" \t")
            or request_parameters.text(request, "after")
            or None
        )
        self._metrics.stream_requests.labels("no" if sent_cursor is None else "yes").inc()
        in_band = request_parameters.has_token(request)
        in_band = in_band or request_parameters.choice(request, "errors", "http", "inband") == "inband"
        try:
            return await self._open_stream(request, sent_cursor)
        except Exception as error:
            if not in_band:
                raise
            found = error.problem if isinstance(error, ProblemError) else failure(request, error)
        self._metrics.problems.labels(found.code).inc()
        return _problem_stream(found, retry=self._settings.retry)

    async def _open_stream(self, request: Request, sent_cursor: str | None) -> ASGIApp:
        if sent_cursor == str(ENDED_BY_PROBLEM):
            return Response(status_code=204, headers=_NO_STORE)
        token_seconds_left = None
        if request_parameters.has_token(request):
            token_seconds_left = await self._check_stream_token(request)
        else:
            await self._authentication.authenticate(request)
        require_acceptable(request, "text/event-stream")
        record = await self._record(request)
        cursor = request_parameters.parse_cursor(sent_cursor)
        min_interval_ms = round(self._settings.min_snapshot_interval * 1000)
        requested_ms = request_parameters.integer(request, "min_interval_ms", min_interval_ms, 0, 2**31)
        interval = (
            max(min_interval_ms, requested_ms) / 1000
            if request_parameters.choice(request, "diffs", "1", "0") == "0"
            else None
        )
        log = await self._lifespan.service.log(record)
        plan = plan_replay(cursor, log.extent())
        if plan == NOTHING:
            return Response(status_code=204, headers=_NO_STORE)
        release_slot = self._lifespan.service.readers.acquire_slot(principal_of(request))
        events_url = f"{root_of(request)}/jobs/{record.id}/events"
        return EventStream(
            self._lifespan.service,
            record,
            log,
            plan,
            release_slot,
            events_url=events_url,
            snapshot_interval=interval,
            as_logged=cursor == BEGINNING,
            token_seconds_left=token_seconds_left,
            resumed=cursor is not None,
        )

    async def _check_stream_token(self, request: Request) -> Callable[[], float]:
        """Authenticate a request by its stream token. Return a function that returns the seconds until the token expires."""
        job, service = request.path_params["id"], self._lifespan.service
        seconds_left = service.stream_tokens.check(request_parameters.text(request, "token"), job)
        found = await service.store.jobs.get(job)
        self._authentication.authenticate_as_reader(request, None if found is None else found.principal)
        return seconds_left

    async def make_stream_token(self, request: Request) -> ASGIApp:
        """Handle `POST /v1/jobs/{id}/stream-token`."""
        require_acceptable(request, "application/json")
        record = await self._record(request)
        token, until = self._lifespan.service.stream_tokens.make(record.id)
        url = f"{root_of(request)}/jobs/{record.id}/events?errors=inband&token={token}"
        return json_response(StreamToken(url=url, expires_at=timestamp(until)))

    # ---- operators ---------------------------------------------------------------------------------------------

    async def healthz(self, _request: Request) -> ASGIApp:
        """Handle `GET /healthz`."""
        return json_response({"status": "ok"})

    async def readyz(self, _request: Request) -> ASGIApp:
        """Handle `GET /readyz`."""
        if self._lifespan.service.shutdown.began:
            raise refuse("unavailable", "this server is shutting down")
        for endpoint in self._lifespan.service.endpoints.values():
            if (reason := endpoint.unavailable()) is not None:
                raise refuse("unavailable", reason)
        await self._lifespan.service.store.check()
        return json_response({"status": "ready"})

    async def metrics_page(self, request: Request) -> ASGIApp:
        """Handle `GET /metrics`."""
        self._authentication.check_operator(request)
        return Response(self._metrics.page(), media_type=MEDIA_TYPE, headers=_NO_STORE)


def _submit_headers(submitted: Submitted, root: str) -> dict[str, str]:
    headers = {"location": f"{root}/jobs/{submitted.record.id}"}
    return headers | {"idempotency-replayed": "true"} if submitted.replayed else headers


def _problem_stream(found: Problem, *, retry: float) -> Response:
    """Create an event-stream response that contains one `problem` event. Pages in a browser need such a response, because
    `EventSource` hides the HTTP status of a response from them.

    If the problem is not retryable, the event has a special id. The `EventSource` reconnects and sends this id as its
    cursor. The server then responds with 204, which is the only way to stop an `EventSource`.
    """
    wait = found.retry_after_ms if found.retryable and found.retry_after_ms else round(retry * 1000)
    last = None if found.retryable else str(ENDED_BY_PROBLEM)
    frame = ephemeral_frame("problem", found, id=last, retry_ms=wait)
    response = Response(frame, headers={name.decode(): value.decode() for name, value in HEADERS})
    # Event streams have no Content-Length, because intermediaries may add comments or change line endings.
    del response.headers["content-length"]
    return response
