"""The state of a job as a JSON document (`Document`), with diffs, integrity checks, and limits on size and depth."""

from tidewire.protocol.document.document import Document

__all__ = ["Document"]
