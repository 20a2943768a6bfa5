"""Report the progress of a function, and show it while the caller waits.

$ python docs/examples/progress.py
"""

import time

from tidewire import Client
from tidewire.protocol.messages import Progress, Queue
from tidewire_server import Context, Server

server = Server()


@server.endpoint
def train(ctx: Context, epochs: int = 20) -> dict[str, float]:
    """Minimize (x - 3)², one step per epoch."""
    x = 0.0
    for epoch in range(epochs):
        x -= 0.2 * 2 * (x - 3)
        ctx.progress(epoch + 1, epochs, unit="epochs", phase="training")
        time.sleep(0.05)
    return {"x": round(x, 3)}


def show(message: Queue | Progress) -> None:
    if isinstance(message, Progress):
        print(
            f"\r{message.phase}: {message.current:g} of {message.total:g} {message.unit}", end="", flush=True
        )


if __name__ == "__main__":
    with server.running() as url, Client(url) as client:
        job = client.submit("train")
        job.listener = show
        result = job.result()
    print(f"\n{result}")
