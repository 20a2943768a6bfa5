"""Failure of a client in a scenario."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Failure of the client in a scenario."""

    kind: str
    """Category: cursor, path, header, wait, drawn, repeat, count, foreign, open, pace, hung, died, promptness,
    end, problem, value, again, text, retracted, order, never, kept, items, incomplete, secret; of event streams also
    events, id, retry, late."""
    rules: tuple[str, ...]
    """Ids of the requirements that fail."""
    expected: str
    got: str
