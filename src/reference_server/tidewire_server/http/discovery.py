"""Handlers of discovery requests. They return the server's capabilities and limits, and the schemas of its endpoints."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tidewire.protocol import messages
from tidewire.protocol.problems import no_such_endpoint
from tidewire.protocol.resources import Discovery
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import refuse
from tidewire_server.http.authentication import Authentication
from tidewire_server.http.lifespan import Lifespan
from tidewire_server.http.problem_responses import json_response
from tidewire_server.http.request_reading import require_acceptable, root_of
from tidewire_server.settings import Settings


def _installed() -> str:
    try:
        return version("tidewire")
    except PackageNotFoundError:
        return "0"


SERVER = f"tidewire_server/{_installed()}"
"""Name and version of the server."""

_CAPABILITIES = (
    "deadlines",
    "delete",
    "disconnect",
    "snapshots_only",
    "batches",
    "inband_problems",
    "idempotency",
    "stream_tokens",
)

_IMMUTABLE = "public, max-age=31536000, immutable"


class DiscoveryDocuments:
    """Route handlers that describe the server and its endpoints."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        settings: Settings,
        lifespan: Lifespan,
        authentication: Authentication,
    ) -> None:
        """Create the handlers.

        Args:
            endpoints: All endpoints by name.
            settings: The server's settings.
            lifespan: Provides the job service.
            authentication: Decides whether callers may list their jobs.
        """
        self._endpoints = endpoints
        self._settings = settings
        self._lifespan = lifespan
        self._authentication = authentication

    async def discover(self, request: Request) -> ASGIApp:
        """Handle `GET /v1` and describe the server."""
        require_acceptable(request, "application/json")
        settings, root = self._settings, root_of(request)
        capabilities = [*_CAPABILITIES]
        if self._authentication.lists_jobs:
            capabilities.append("list")
        if any(each.capabilities(1).logprobs is not None for each in self._endpoints.values()):
            capabilities.append("logprobs")
        service = self._lifespan.service
        shared = service.store.replicas is not None
        body = Discovery(
            server=SERVER,
            durability=service.store.durability,
            capabilities=sorted(capabilities),
            limits=settings.limits,
            heartbeat_ms=round(settings.heartbeat * 1000),
            endpoints=[
                endpoint.summarize(root, service.workers.count(name) if shared else None)
                for name, endpoint in self._endpoints.items()
            ],
        )
        members = messages.to_json(body)
        members["limits"] |= settings.model_dump(
            include={"max_retained_jobs", "max_retained_bytes", "max_tombstones"}
        )
        members["min_interval_ms"] = round(settings.min_snapshot_interval * 1000)
        return json_response(members)

    async def describe(self, request: Request) -> ASGIApp:
        """Handle `GET /v1/endpoints/{name}` and describe one endpoint."""
        require_acceptable(request, "application/json")
        endpoint = self.endpoint(request)
        return json_response(endpoint.describe(root_of(request), self._lifespan.service.max_inputs(endpoint)))

    async def linked_resource(self, request: Request) -> ASGIApp:
        """Handle `GET /v1/endpoints/{name}/{resource}` and send a linked resource, such as a model's vocabulary."""
        endpoint, name = self.endpoint(request), request.path_params["resource"]
        if name not in endpoint.links:
            raise refuse("not_found", f"endpoint {endpoint.name!r} has no resource {name[:80]!r}")
        resource = endpoint.resource(name)
        etag = f'"{resource.version}"'
        # A response to a URL without the version must not be cached forever, because this URL does not change when the
        # resource changes.
        caching = _IMMUTABLE if request.query_params.get("v") == resource.version else "no-cache"
        if self._authentication.is_required:
            caching = caching.replace("public", "private")
        headers = {"etag": etag, "cache-control": caching}
        known = request.headers.get("if-none-match", "").split(",")
        if etag in [tag.strip().removeprefix("W/") for tag in known]:
            return Response(status_code=304, headers=headers)
        return Response(resource.body, headers=headers, media_type=resource.media_type)

    def endpoint(self, request: Request) -> Endpoint:
        """Return the endpoint that the URL names.

        Raises:
            ProblemError: No endpoint has this name.
        """
        name = request.path_params["name"]
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise refuse("endpoint_not_found", no_such_endpoint(name, self._endpoints))
        return endpoint
