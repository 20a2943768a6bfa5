"""A request whose connection breaks while its body is on the way leaves nothing behind."""

import gc
import socket
import threading

import anyio
import pytest

from tidewire import AsyncClient, RetryPolicy
from tidewire.errors import TransportError


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.filterwarnings("error")
def test_a_body_cut_short_leaves_no_generator_to_the_garbage_collector(backend):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(1000)
                connection.close()  # with bytes unread: the other side gets a reset

        thread = threading.Thread(target=refuse)
        thread.start()

        async def submit():
            url = "http://127.0.0.1:{1}".format(*listener.getsockname())
            retry = RetryPolicy(submit_attempts=2, initial=0.01)
            async with AsyncClient(url, retry=retry) as client:
                with pytest.raises(TransportError):
                    await client.submit("echo", {"text": "x" * 30_000_000})
            gc.collect()

        anyio.run(submit, backend=backend)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
