"""A job's state as a JSON document: applying diffs, checking them, and bounding what they cost."""

from tidewire.protocol.document.document import Document

__all__ = ["Document"]
