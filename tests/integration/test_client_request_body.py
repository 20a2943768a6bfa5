"""A connection that breaks while the client sends a request body leaves no unclosed generator."""

import gc
import socket
import threading

import anyio
import pytest

from tidewire import AsyncClient, RetryPolicy
from tidewire.errors import TransportError


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.filterwarnings("error")
def test_a_reset_during_the_request_body_leaves_no_unclosed_generator(backend):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(1000)
                connection.close()  # Closing with unread bytes makes the kernel send a reset.

        thread = threading.Thread(target=refuse)
        thread.start()

        async def submit():
            url = "http://127.0.0.1:{1}".format(*listener.getsockname())
            retry = RetryPolicy(attempts=2, max_delay=0.01)
            async with AsyncClient(url, retry=retry) as client:
                with pytest.raises(TransportError):
                    await client.submit("echo", {"text": "x" * 30_000_000})
            gc.collect()

        anyio.run(submit, backend=backend)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
