"""Server with the endpoint `generate` in front of other engines, for a process that tests kill and start again."""

from typing import Any

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
