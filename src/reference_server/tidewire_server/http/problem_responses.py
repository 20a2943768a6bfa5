"""Create JSON responses, and problem responses for refused requests and for requests that failed unexpectedly."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tidewire.protocol import problems
from tidewire.protocol.messages import to_text
from tidewire.protocol.problems import Problem, problem
from tidewire.protocol.wire_model import WireModel
from tidewire_server.errors import EndpointFunctionError
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)


def json_response(body: WireModel | Mapping[str, Any]) -> Response:
    """Create a JSON response with the status 200 and the header `Cache-Control: no-store`."""
    content = to_text(body).encode() if isinstance(body, WireModel) else orjson.dumps(body)
    return Response(content, headers={"cache-control": "no-store"}, media_type="application/json")


def problem_response(found: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Create a problem response.

    If the problem has the member `retry_after_ms`, the response has a `Retry-After` header with the time in whole
    seconds.
    """
    wait = (
        {} if found.retry_after_ms is None else {"retry-after": str(math.ceil(found.retry_after_ms / 1000))}
    )
    return Response(
        orjson.dumps(problems.to_json(found)),
        found.status,
        {"cache-control": "no-store"} | wait | dict(headers or {}),
        problems.MEDIA_TYPE,
    )


def failure(request: Request, error: Exception) -> Problem:
    """Log an unexpected exception, and return the problem that the server sends to the client."""
    if isinstance(error, StoreError):
        if not error.logged:
            _log.error("%s", error)
        return problem(
            "unavailable",
            "the server cannot read or write its stored jobs at the moment; the server's log has the details",
        )
    # Log only the path, because the query may contain a stream token.
    _log.error("%s %r failed", request.method, request.url.path, exc_info=error)
    details = "the server's log has the details"
    if isinstance(error, EndpointFunctionError):
        # Do not use the status 500: clients treat it as a lost connection and would repeat the request for minutes
        # [TW-CLI-058].
        return Problem(
            code="endpoint.function_failed",
            title="A function of the endpoint failed",
            status=424,
            detail=f"{error}; {details}",
            pointer=error.pointer,
        )
    return problem("internal", f"the request failed because of an internal error; {details}")
