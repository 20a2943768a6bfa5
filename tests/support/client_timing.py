"""Replaceable clock, sleep and timeouts of a client under test."""

from typing import TypeVar

from tidewire import AsyncClient, Client
from tidewire.client import starter_of
from tidewire.http.api_session import ApiSession, Timing

C = TypeVar("C", Client, AsyncClient)


def session_of(client: Client | AsyncClient) -> ApiSession:
    """Return the API session of a client, blocking or async."""
    if isinstance(client, Client):
        _, client = client._inner
    return starter_of(client).session


def with_timing(client: C, timing: Timing) -> C:
    """Set the timing of a client that has not made a request yet, and return the client."""
    session_of(client).timing = timing
    return client
