"""Request bodies that the server takes slowly, or not at all."""

import gc
import socket
import threading
import time

import anyio
import pytest

from support.scripted_server import answer, job, state
from tidewire import AsyncClient, Client, RetryPolicy
from tidewire.errors import SilenceTimeoutError, TransportError


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


@pytest.mark.heavy
def test_the_answer_timeout_does_not_limit_the_time_to_send_the_whole_body():
    size, slow = 16 * 2**20, 8 * 2**20
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # The kernels of both sides together hold less than half of the body.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)

        def take_slowly():
            connection, _ = listener.accept()
            with connection:
                received = 0
                while received < size and (data := connection.recv(2**16)):
                    received += len(data)
                    if received < slow:
                        time.sleep(2.5 * len(data) / slow)
                connection.sendall(answer(201, job(state("", status="running"))))

        thread = threading.Thread(target=take_slowly)
        thread.start()
        url = "http://127.0.0.1:{1}".format(*listener.getsockname())
        with Client(url, answer_timeout=1.5, retry=RetryPolicy(attempts=1)) as client:
            assert client.submit("echo", {"text": "x" * size}).id == "j1"
        thread.join()


def test_a_body_that_the_server_does_not_take_is_a_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = "http://127.0.0.1:{1}".format(*listener.getsockname())
        with Client(url, answer_timeout=0.2, retry=RetryPolicy(attempts=1)) as client:
            with pytest.raises(SilenceTimeoutError, match="the request could not be sent in time"):
                client.submit("echo", {"text": "x" * 30_000_000})
