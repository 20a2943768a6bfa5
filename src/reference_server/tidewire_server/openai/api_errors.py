"""Errors in the format of OpenAI's API, and the conversion of the server's problem documents to this format."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.responses import Response

from tidewire.protocol.problems import Problem

_STATUSES: Final = {422: 400, 410: 404}
"""HTTP statuses that OpenAI's API does not use → the status that replaces them."""

_CODES: Final = {
    "unauthorized": "invalid_api_key",
    "invalid_input": "invalid_value",
    "input_too_long": "context_length_exceeded",
    "queue_full": "rate_limit_exceeded",
}
"""Error code of this server → error code of OpenAI's API. Codes that are not listed are sent unchanged."""


class ApiError(Exception):
    """Error that the client receives in the format of OpenAI's API. `param` is the name of the invalid request member.
    `code` is the machine-readable kind of the error. The status is used only if the response has not begun.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        self._headers = dict(headers or {})

    def response(self) -> Response:
        """Return the response that reports the error."""
        headers = {"cache-control": "no-store", **self._headers}
        return Response(orjson.dumps(self.body), self.status, headers, "application/json")


def invalid(param: str, message: str) -> ApiError:
    """Create the error for a member with an invalid value. The caller must raise it."""
    return ApiError(400, f"{param} {message}", param=param, code="invalid_value")


def unsupported(param: str, reason: str = "") -> ApiError:
    """Create the error for a member that is not supported, or that has an unsupported value. The caller must raise it."""
    message = f"{param} is not supported{reason}; remove it"
    return ApiError(400, message, param=param, code="unsupported_parameter")


def error_of(
    found: Problem, params: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> ApiError:
    """Convert a problem document, and the headers of its response, to an `ApiError`. `params` maps each input member of
    `generate` to the request member from which it was created.
    """
    status, code = _STATUSES.get(found.status, found.status), _CODES.get(found.code, found.code)
    pointer = found.pointer or ""
    # The pointer refers to the job's body, for example `/input/max_tokens` or `/inputs/3/prompt`.
    path = re.sub("^/inputs/[0-9]+", "/input", pointer).split("/")
    params = params or {}
    param = params.get(path[2]) if len(path) > 2 else None
    message = (found.detail or found.title).removeprefix(f"{pointer}: ")
    # The message may also mention other members of the job's input. Replace them by the names of the request members.
    message = re.sub("/input(?:s/[0-9]+)?/([a-z_]+)", lambda other: params.get(other[1], other[1]), message)
    if param is not None and not message.startswith(param):
        message = f"{param}: {message}"
    further: dict[str, Any] = dict(headers or {})
    if found.retry_after_ms is not None:
        further["retry-after"] = str(math.ceil(found.retry_after_ms / 1000))
    if not found.retryable or found.code == "worker_lost":
        # Without this header, OpenAI's clients retry every status of 500 or above. The server itself has already retried a
        # job that fails with `worker_lost`.
        further["x-should-retry"] = "false"
    return ApiError(status, message, param=param, code=code, headers=further)
