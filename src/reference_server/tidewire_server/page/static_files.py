"""Routes for the static files of the page: HTML, CSS, JavaScript modules, and the JavaScript client that they use.

The files are the same for every server and every caller, so that they need no authentication. All URLs in them are
relative, so that the page works below any path prefix.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidewire_server.http.application import TidewireApp
from tidewire_server.http.request_reading import header

_HERE: Final = Path(__file__).resolve().parent

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of the files. Files with other suffixes are not served."""

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    # Endpoints return images as base64.
    "img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # Chromium then refuses to parse any text as HTML or as a script.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS: Final = {
    # The browser asks each time whether its copy is current, so that an upgraded server gets its own scripts.
    "cache-control": "no-cache",
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of all files."""


def page_routes(app: TidewireApp) -> Sequence[Route]:
    """Return the routes of the page, or none if the setting `page` is off. The files are read when this function is called.

    Raises:
        FileNotFoundError: The JavaScript client is neither in the installed package nor in a checkout around it.
    """
    if not app.settings.page:
        return []
    files = {f"page/{path.name}": path for path in _files_in(_HERE / "static")}
    files |= {f"page/client/{path.name}": path for path in _files_in(client_folder())}
    files[""] = files.pop("page/index.html")
    return [Route(f"/{name}", _responder(path), methods=["GET"]) for name, path in files.items()]


def client_folder() -> Path:
    """Return the folder with the modules of the JavaScript client, inside the installed package or in the checkout.

    Raises:
        FileNotFoundError: Neither folder exists.
    """
    for place in (_HERE / "client", *(parent / "clients/javascript/src" for parent in _HERE.parents[3:4])):
        if place.is_dir():
            return place
    raise FileNotFoundError(
        "the page at / needs the JavaScript client, which is neither in the package nor in a checkout around it; reinstall "
        "tidewire, or turn the page off (page=False, --no-page)"
    )


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in MEDIA_TYPES)


def _responder(path: Path) -> Callable[[Request], Awaitable[Response]]:
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = HEADERS | {"etag": etag}

    async def respond(request: Request) -> Response:
        known = [tag.strip().removeprefix("W/") for tag in header(request, b"if-none-match").split(",")]
        if etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=MEDIA_TYPES[path.suffix])

    return respond
