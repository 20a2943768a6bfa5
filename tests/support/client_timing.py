"""A client's clock, sleep and time limits, replaced for a test."""

from typing import TypeVar

from tidewire import AsyncClient, Client
from tidewire.http.api_session import ApiSession, Timing

C = TypeVar("C", Client, AsyncClient)


def session_of(client: Client | AsyncClient) -> ApiSession:
    """What a client makes its requests through."""
    if isinstance(client, Client):
        _, client = client._inner
    return client._starter.session


def with_timing(client: C, timing: Timing) -> C:
    """The client, which has made no request yet, with another timing."""
    session_of(client).timing = timing
    return client
