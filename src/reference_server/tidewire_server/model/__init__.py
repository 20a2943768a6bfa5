"""Former import path of `tidewire_server.default_model`."""

from tidewire_server.default_model import default_model

__all__ = ["default_model"]
