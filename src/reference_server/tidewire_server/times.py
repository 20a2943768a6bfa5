"""Times as the wire writes them."""

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, to the millisecond, of seconds since the Unix epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
