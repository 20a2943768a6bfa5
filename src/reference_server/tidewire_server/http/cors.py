"""CORS middleware, which allows web pages from other origins to read responses (spec/10-browsers.md, section 10.2)."""

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidewire.protocol.problems import problem
from tidewire_server.http.problem_responses import problem_response

METHODS: Final = ("GET", "POST", "DELETE", "HEAD", "OPTIONS")
ALLOW_HEADERS: Final = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID")  # TW-BRW-008
EXPOSE_HEADERS: Final = ("Location", "Content-Location", "Retry-After", "Idempotency-Replayed")  # TW-BRW-009
_STAINLESS: Final = (
    "Arch",
    "Lang",
    "OS",
    "Package-Version",
    "Retry-Count",
    "Runtime",
    "Runtime-Version",
    "Timeout",
)
OPENAI_HEADERS: Final = ("User-Agent", *(f"X-Stainless-{name}" for name in _STAINLESS))
"""Headers that the JavaScript package `openai` adds to each request."""
OPENAI_EXPOSED: Final = ("Tidewire-Job",)
"""Response header that scripts with this package may read."""
PREFLIGHT_MAX_AGE: Final = 600  # TW-BRW-010


class Cors(CORSMiddleware):
    """CORS middleware with the preflight responses that the protocol requires.

    Starlette responds to preflight requests with plain text and status 200 or 400. This class responds to an accepted
    preflight request with status 204 and no body. It responds to a rejected one with a problem document, like to all other
    errors [TW-ERR-001]. Both responses have the headers that section 10.5 of the specification requires.
    """

    def __init__(
        self,
        app: ASGIApp,
        origins: Collection[str],
        sent: Collection[str] = (),
        exposed: Collection[str] = (),
    ) -> None:
        """Create the middleware.

        Args:
            app: The application.
            origins: Origins of the pages that may read responses.
            sent: Headers that pages may send in addition to those of the protocol.
            exposed: Headers that pages may read in addition to those of the protocol.
        """
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=(*ALLOW_HEADERS, *sent),
            expose_headers=(*EXPOSE_HEADERS, *exposed),
            max_age=PREFLIGHT_MAX_AGE,
        )
        allowed = ", ".join((*ALLOW_HEADERS, *sent))
        own = {"Access-Control-Allow-Headers": allowed, "Vary": "Origin"}
        self.preflight_headers |= own | self.simple_headers

    def preflight_response(self, request_headers: Headers) -> Response:
        decision = super().preflight_response(request_headers)
        if decision.status_code == 200:
            response = Response(status_code=204, headers={"cache-control": "no-store"})
        else:
            detail = f"{bytes(decision.body).decode()}; pages from the origins in the setting cors_origins may send "
            detail += f"{', '.join(METHODS)} with the headers {', '.join(ALLOW_HEADERS)}"
            response = problem_response(problem("bad_parameter", detail))
        response.headers.update({k: v for k, v in decision.headers.items() if not k.startswith("content-")})
        return response


def cors(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    """Return the application with CORS. Below `/openai`, pages may also use the headers of the package `openai`."""
    native, openai = Cors(app, origins), Cors(app, origins, OPENAI_HEADERS, OPENAI_EXPOSED)

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", "").rstrip("/"))
        await (openai if path.startswith("/openai/") else native)(scope, receive, send)

    return choose
