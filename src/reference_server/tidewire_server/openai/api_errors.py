"""Errors in the shape of OpenAI's API, and the conversion of problems to them."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.responses import Response

from tidewire.protocol.problems import Problem

_CODES: Final = {
    "unauthorized": (401, "invalid_api_key"),
    "job_not_found": (404, "not_found"),
    "job_expired": (404, "not_found"),
    "invalid_input": (400, "invalid_value"),
    "input_too_long": (400, "context_length_exceeded"),
    "batch_too_large": (400, "batch_too_large"),
    "top_logprobs_too_large": (400, "invalid_value"),
    "item_refused": (400, "invalid_value"),
    "queue_full": (429, "rate_limit_exceeded"),
    "too_many_jobs": (429, "rate_limit_exceeded"),
    "too_many_streams": (429, "rate_limit_exceeded"),
}
"""Status and code for the problems whose status or code differ in OpenAI's API. All others keep theirs."""

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
"""Type of an error by its status. All others have the type of their class of statuses."""


class ApiError(Exception):
    """Error that the client receives in the shape of OpenAI's API. `param` is the name of the invalid member of the request,
    and `code` the machine-readable kind of the error. The status is used only if the response has not begun.
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
        kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        self._headers = dict(headers or {})

    def response(self) -> Response:
        """Return the response that reports the error."""
        headers = {"cache-control": "no-store", **self._headers}
        return Response(orjson.dumps(self.body), self.status, headers, "application/json")


def invalid(param: str, message: str) -> ApiError:
    """Create the error for a member with an invalid value. The caller must raise it."""
    return ApiError(400, f"{param} {message}", param=param, code="invalid_value")


def error_of(
    found: Problem, params: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> ApiError:
    """Convert a problem.

    Args:
        found: The problem.
        params: Name of the request's member by the member of the input of `generate` that it has set.
        headers: Headers of the problem's response.
    """
    status, code = _CODES.get(found.code, (found.status, found.code))
    pointer = found.pointer or ""
    # A pointer into the job's body, such as `/input/max_tokens` or `/inputs/3/prompt`.
    path = re.sub("^/inputs/[0-9]+", "/input", pointer).split("/")
    param = (params or {}).get(path[2]) if len(path) > 2 else None
    message = (found.detail or found.title).removeprefix(f"{pointer}: ")
    if param is not None and param not in message:
        message = f"{param}: {message}"
    further: dict[str, Any] = dict(headers or {})
    if found.retry_after_ms is not None:
        further["retry-after"] = str(math.ceil(found.retry_after_ms / 1000))
    if not found.retryable:
        # Otherwise the clients of OpenAI would repeat a request that has failed with a status of 500 or above.
        further["x-should-retry"] = "false"
    return ApiError(status, message, param=param, code=code, headers=further)
