"""Server with the endpoint `generate` in front of other engines, in this process or in one that tests kill."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.reference_server import QUICK
from support.scripted_engine import until_ready
from tidewire import Client
from tidewire_server import Server
from tidewire_server.generation import generate_endpoint
from tidewire_server.generation.upstream import add_upstream


def upstream_front(
    urls: list[str],
    upstream: dict[str, Any] = {},  # noqa: B006
    mark_interval: float = generate_endpoint.MARK_INTERVAL,
    **settings: Any,
) -> Server:
    """Return the server. `mark_interval` replaces the constant of `generate_endpoint`."""
    generate_endpoint.MARK_INTERVAL = mark_interval
    server = Server(**settings)
    add_upstream(server, *urls, **upstream)
    return server


@contextmanager
def running_front(
    *urls: str,
    wait: bool = True,
    settings: dict[str, Any] = {},  # noqa: B006
    **options: Any,
) -> Iterator[Client]:
    """Serve the endpoint in this process, wait until it has reached an engine, and yield a client without a token."""
    with upstream_front(list(urls), options, **QUICK | settings).running() as url:
        if wait:
            until_ready(url)
        with Client(url) as client:
            yield client
