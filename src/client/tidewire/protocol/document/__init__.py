"""Job state as a JSON document (`Document`): applying diffs, integrity checks, and limits on size and depth."""

from tidewire.protocol.document.document import Document

__all__ = ["Document"]
