"""Show a picture that refines itself step by step: each step replaces the picture by a sharper one.

$ python docs/examples/refine_picture.py picture.png                     # open the file in a viewer that reloads it
"""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import numpy as np

from tidewire import Client
from tidewire_server import Binary, Server

server = Server()


@server.endpoint
def mandelbrot(steps: int = 6) -> Iterator[Binary]:
    """Draw the Mandelbrot set, and double the resolution in each step."""
    for step in range(steps):
        y, x = np.mgrid[-1.2 : 1.2 : 12j * 2**step, -2.1 : 0.6 : 16j * 2**step]
        c = x + 1j * y
        z, reached = np.zeros_like(c), np.zeros(c.shape)
        for _ in range(60):
            z = np.where(np.abs(z) <= 2, z * z + c, z)
            reached += np.abs(z) <= 2
        picture = io.BytesIO()
        matplotlib.image.imsave(picture, reached, cmap="magma", format="png")
        yield picture.getvalue()


if __name__ == "__main__":
    with server.running() as url, Client(url) as client:
        for update in client.submit("mandelbrot", returns=Binary):
            size = Path(sys.argv[1]).write_bytes(update.parse())
            print(f"a picture with {size} bytes")
