"""Server with the endpoint `generate` in front of other engines, for a process that tests kill and start again."""

from typing import Any

from tidewire_server import Server
from tidewire_server.generation.upstream import add_upstream


def upstream_front(urls: list[str], upstream: dict[str, Any] = {}, **settings: Any) -> Server:  # noqa: B006
    server = Server(**settings)
    add_upstream(server, *urls, **upstream)
    return server
