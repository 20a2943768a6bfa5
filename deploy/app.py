"""Example of a server for compose.yaml. Replace the endpoint by your own."""

import time
from collections.abc import Iterator

from tidewire_server import Append, Context, Server

server = Server()


@server.endpoint(on_restart="continue")
def count(ctx: Context, n: int = 10, pause: float = 0.2) -> Iterator[Append[str]]:
    """Count slowly. If the worker is killed, another one continues with the next number."""
    for number in range(len((ctx.previous or "").split()), n):
        yield Append(f"{number} ")
        time.sleep(pause)
