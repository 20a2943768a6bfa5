"""The reference server of the Tidewire protocol: functions become endpoints with resumable streams of results."""

from tidewire_server.endpoints.context import Context
from tidewire_server.endpoints.yieldables import Append, Last
from tidewire_server.errors import ItemError
from tidewire_server.log_writer.stream import Stream
from tidewire_server.server import Server

__all__ = ["Append", "Context", "ItemError", "Last", "Server", "Stream"]
