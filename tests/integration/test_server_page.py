"""The page at `/`: its static files, their headers, and where the server serves them."""

import contextlib
import re
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from support.reference_server import QUICK, serving
from tidewire_server import Server
from tidewire_server.page import static_files

STATIC = Path(static_files.__file__).parent / "static"
MAX_LINES = 2_500


def make_server(**settings) -> Server:
    server = Server(**(QUICK | settings))

    @server.endpoint
    def secret_of_the_house(text: str = "hi") -> str:
        return text

    return server


@pytest.fixture(scope="module")
def peer():
    with serving(make_server(tokens=("me:sesame",))) as peer:
        yield peer


def files_of(text: str) -> set[str]:
    """Return the URLs of files that an HTML document or a module names."""
    return set(re.findall(r'(?: src=| href=|from )"([^"#\s]+)"', text))


def test_page_and_all_files_that_it_uses_are_public(peer):
    found, unread = {}, {httpx2.URL(peer.url).join("/")}
    while unread:
        url = unread.pop()
        answer = peer.http.get(url)
        assert answer.status_code == 200, url
        found[url.path] = answer
        unread |= {url.join(name) for name in files_of(answer.text)} - {
            httpx2.URL(peer.url).join(path) for path in found
        }
    assert {"/", "/page/app.js", "/page/style.css", "/page/icon.svg", "/page/client/index.js"} <= found.keys()
    assert len(found) > 20
    for path, answer in found.items():
        assert "secret_of_the_house" not in answer.text, path
        assert "sesame" not in answer.text, path


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/app.js", "text/javascript; charset=utf-8"),
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
        ("/page/client/index.js", "text/javascript; charset=utf-8"),
    ],
)
def test_files_have_strict_headers_and_are_revalidated(peer, path, media_type):
    answer = peer.http.get(path)
    assert answer.headers["content-type"] == media_type
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]

    head = peer.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))
    for known in (answer.headers["etag"], f'W/{answer.headers["etag"]}, "other"', "*"):
        same = peer.http.get(path, headers={"if-none-match": known})
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["etag"] == answer.headers["etag"]
    assert peer.http.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/index.html",
        "/page/nothing.js",
        "/page/../settings.py",
        "/page/%2e%2e/page_routes.py",
        "/page/client/",
    ],
)
def test_other_files_are_not_served(peer, path):
    assert peer.http.get(path).status_code == 404


def test_other_methods_are_refused(peer):
    answer = peer.http.post("/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


def test_page_can_be_turned_off():
    with serving(make_server(page=False)) as peer:
        assert peer.http.get("/").status_code == 404
        assert peer.http.get("/page/app.js").status_code == 404
        assert peer.http.get("/v1").status_code == 200


def test_page_is_served_below_the_path_of_a_mount():
    server = make_server()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette):
        await server.app.start()
        yield
        await server.app.close()

    site = Starlette(lifespan=lifespan)
    site.mount("/ai", server.app)
    with TestClient(site) as client:
        page = client.get("/ai")  # redirected to the URL with a slash, below which its relative URLs are
        assert page.url.path == "/ai/"
        assert page.headers["content-type"].startswith("text/html")
        assert client.get("/ai/page/app.js").status_code == 200
        assert client.get("/").status_code == 404


def test_files_name_only_relative_urls():
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == [], path
        assert [name for name in files_of(text) if name.startswith("/")] == [], path


def test_values_are_never_parsed_as_html():
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|srcdoc",
            text,
        )
        assert found == [], path


def test_page_stays_small():
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in STATIC.iterdir()) <= MAX_LINES


def test_missing_client_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(static_files, "_HERE", tmp_path / "tidewire_server/page")
    with pytest.raises(
        FileNotFoundError, match=r"reinstall tidewire, or turn the page off \(page=False, --no-page\)"
    ):
        static_files.client_folder()
