"""The fault proxy of the conformance suite cuts, resets and stalls connections as planned."""

import asyncio
import gc
import socket
import threading
from contextlib import contextmanager, suppress

import pytest

from support.server_address import address_of
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy, Slow


@contextmanager
def chunk_server(*chunks: bytes):
    """A server that sends the chunks to each connection and then closes it; yields the server's address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            # A cut closes the connection while the server still sends.
            with connection, suppress(ConnectionError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for chunk in chunks:
                    connection.sendall(chunk)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def read_all(proxy: FaultProxy) -> bytes:
    with socket.create_connection(address_of(proxy.url), timeout=5) as connection:
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
        return received


def test_all_bytes_pass_without_a_planned_cut():
    with chunk_server(b"a" * 100_000, b"end") as server, FaultProxy(server, lambda _: None) as proxy:
        assert read_all(proxy) == b"a" * 100_000 + b"end"
        assert proxy.cuts == []


def test_a_cut_passes_exactly_its_number_of_bytes():
    with chunk_server(b"0123456789") as server, FaultProxy(server, lambda _: Cut(after=4)) as proxy:
        assert read_all(proxy) == b"0123"
        assert proxy.cuts == [b"0123"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_mark_split_across_chunks_is_counted(size):
    text = b"x data: one data: two data: three"
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    cut = Cut(mark=b"data:", occurrence=2, after=3)
    with chunk_server(*chunks) as server, FaultProxy(server, lambda _: cut) as proxy:
        assert read_all(proxy) == b"x data: one data: tw"


def test_only_the_planned_connection_is_cut():
    with chunk_server(b"0123456789") as server:
        with FaultProxy(server, lambda number: Cut(after=1) if number == 1 else None) as proxy:
            assert [read_all(proxy) for _ in range(3)] == [b"0123456789", b"0", b"0123456789"]
            assert proxy.connections == 3


def test_a_planned_reset_raises_connection_reset():
    with (
        chunk_server(b"0123456789") as server,
        FaultProxy(server, lambda _: Cut(after=2, how="rst")) as proxy,
    ):
        with pytest.raises(ConnectionResetError):
            read_all(proxy)


def test_bytes_of_a_request_are_cut_as_those_of_a_response():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cut = Cut(after=3, of="request")
        with FaultProxy(listener.getsockname(), lambda _: cut) as proxy:
            with socket.create_connection(proxy.address, timeout=5) as connection:
                connection.sendall(b"0123456789")
                accepted, _ = listener.accept()
                with accepted:
                    assert accepted.recv(100, socket.MSG_WAITALL) == b"012"
            assert proxy.faults == {"fin of a request": 1}


@pytest.mark.parametrize("slow", [Slow(singly=5), Slow(singly=1000), Slow(delay=0.001)])
def test_slow_bytes_arrive_unchanged(slow):
    with chunk_server(b"0123456789" * 20) as server, FaultProxy(server, lambda _: slow) as proxy:
        assert read_all(proxy) == b"0123456789" * 20
        assert proxy.faults == {"slow": 1}


def test_a_stall_keeps_the_connection_open_and_silent():
    with (
        chunk_server(b"0123456789") as server,
        FaultProxy(server, lambda _: Cut(after=2, how="stall")) as proxy,
    ):
        with socket.create_connection(address_of(proxy.url), timeout=5) as connection:
            assert connection.recv(2, socket.MSG_WAITALL) == b"01"
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)


def test_an_unreachable_server_closes_the_client_connection():
    with chunk_server() as server:
        pass
    with FaultProxy(server, lambda _: None) as proxy:
        assert read_all(proxy) == b""


@pytest.mark.parametrize("steps", range(8))
def test_a_proxy_that_stops_while_a_connection_ends_closes_both_sides(steps):
    async def stop_after(steps):
        arrived = asyncio.get_running_loop().create_future()
        listener = await asyncio.start_server(
            lambda reader, writer: arrived.set_result((reader, writer)), "127.0.0.1", 0
        )
        proxy = FaultProxy(listener.sockets[0].getsockname(), lambda _: None)
        ends = socket.socketpair()
        async with listener:
            reader, writer = await asyncio.open_connection(sock=ends[0])
            serving = asyncio.ensure_future(proxy.serve(0, reader, writer))
            server_reader, server_writer = await arrived
            ends[1].close()
            for _ in range(steps):
                await asyncio.sleep(0)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            writer.close()
            assert await asyncio.wait_for(server_reader.read(), 10) == b""
            server_writer.close()

    asyncio.run(stop_after(steps))
    gc.collect()
