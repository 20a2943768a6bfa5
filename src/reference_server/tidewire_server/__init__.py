"""The reference server of the Tidewire protocol: functions become endpoints with resumable streams of results."""

from tidewire_server.batching.steps import Append, Last
from tidewire_server.context import Context
from tidewire_server.errors import ItemError
from tidewire_server.server import Server
from tidewire_server.stream import Stream

__all__ = ["Append", "Context", "ItemError", "Last", "Server", "Stream"]
