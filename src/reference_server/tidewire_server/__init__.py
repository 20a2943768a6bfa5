"""The reference server of the Tidewire protocol: functions become endpoints with resumable streams of results."""

from tidewire_server.errors import ItemError
from tidewire_server.server import Server
from tidewire_server.stream import Stream

__all__ = ["ItemError", "Server", "Stream"]
