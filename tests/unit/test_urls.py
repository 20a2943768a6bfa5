"""`tidewire.http.links_and_origins`: links are resolved as in RFC 3986, with and without the fast path."""

from itertools import product

import httpx2
import pytest

from support.tables import for_each_case
from tidewire.errors import ProtocolError
from tidewire.http.links_and_origins import resolve, same_origin
from tidewire.http.transport import origin

BASES = (
    "http://127.0.0.1:8000/v1/jobs/j1",
    "https://example.org",
    "https://example.org/ai/v1/?q#f",
    "http://[::1]:8000/x",
    "http://Example.org/x",
    "http://user@example.org/x",
    "http://bücher.example/x",
)
LINKS = (
    "/v1/jobs/j1/events",
    "/a//b/",
    "//other.example/x",
    "/../x",
    "/./x",
    "/a%20b",
    "/a b",
    "/a?x=1#y",
    "/a:b",
    "/\\other.example",
    "events",
    "../x",
    "?x",
    "",
    "/",
    "http://other.example/x",
    "HTTP://EXAMPLE.ORG:80/x",
)


@for_each_case(product(BASES, LINKS))
def test_link_is_resolved_like_httpx_does(base, link):
    assert resolve(base, link) == str(httpx2.URL(base).join(link))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("link", ["/a\n", "/a\0", "http://[::1", "http://a\tb/"])
def test_invalid_link_is_refused(base, link):
    with pytest.raises(ProtocolError, match="invalid link"):
        resolve(base, link)


URLS = [
    *BASES,
    "http://127.0.0.1:800/x",
    "https://127.0.0.1:8000/x",
    "http://127.0.0.1:8000?x",
    "http://127.0.0.1:8000@example.org/",
    "http://example.org:80",
]


@for_each_case(product(URLS, repeat=2))
def test_urls_have_the_same_origin_if_scheme_host_and_port_are_equal(one, other):
    assert same_origin(one, other) == (origin(one) == origin(other))
