"""Reference server for the Tidewire protocol. It serves Python functions as endpoints with resumable result streams."""

from tidewire.install_command import install_command

try:
    from tidewire.protocol.jsonable import Binary
    from tidewire_server.batching.ray_workers import ray_workers
    from tidewire_server.endpoints.context import Context
    from tidewire_server.endpoints.stream import Stream
    from tidewire_server.endpoints.yieldables import Append, Last
    from tidewire_server.errors import ItemError
    from tidewire_server.page import page_routes
    from tidewire_server.server import ADDED_ROUTES, Server
except ModuleNotFoundError as error:
    if (error.name or "").startswith("tidewire"):
        raise
    raise ModuleNotFoundError(
        f"tidewire_server needs {error.name or error}, which is not installed: {install_command('server')}",
        name=error.name,
    ) from None

ADDED_ROUTES.append(page_routes)

__all__ = ["Append", "Binary", "Context", "ItemError", "Last", "Server", "Stream", "ray_workers"]
