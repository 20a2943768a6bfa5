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
    "method_not_allowed": (404, "unknown_url"),
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

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""Type of an error by its status. All others have the type of their class of statuses."""


class ApiError(Exception):
    """Error that the client receives in the shape of OpenAI's API.

    Attributes:
        status: Status of the response, if the response has not begun.
        param: Name of the invalid member of the request, or None.
        code: Machine-readable kind of the error.
        headers: Further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error as a JSON object."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the response that reports the error."""
        headers = {"cache-control": "no-store"} | self.headers
        return Response(orjson.dumps(self.body), self.status, headers, "application/json")


def invalid(param: str, message: str) -> ApiError:
    """Create the error for a member with an invalid value. The caller must raise it."""
    return ApiError(400, f"{param} {message}", param=param, code="invalid_value")


def error_of(
    found: Problem, params: Mapping[str, str], headers: Mapping[str, str] | None = None
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
    param = params.get(path[2]) if len(path) > 2 else None
    message = (found.detail or found.title).removeprefix(f"{pointer}: ")
    if param is not None and param not in message:
        message = f"{param}: {message}"
    further = dict(headers or {})
    if found.retry_after_ms is not None:
        further["retry-after"] = str(math.ceil(found.retry_after_ms / 1000))
    if not found.retryable:
        # Otherwise the clients of OpenAI would repeat a request that failed with a status of 500 or above, or with 409.
        further["x-should-retry"] = "false"
    return ApiError(status, message, param=param, code=code, headers=further)
