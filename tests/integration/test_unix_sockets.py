"""Client and server on a Unix domain socket."""

import asyncio
import json
import signal
import socket
import stat
import threading
from contextlib import contextmanager

import anyio
import pytest
from typer.testing import CliRunner

from proof.forked_process import Forked
from tidewire import AsyncClient, Client
from tidewire.commands.cli import app
from tidewire.errors import NotATidewireServerError
from tidewire_server import Server
from tidewire_server.serving.listener import bind
from tidewire_server.store.store_errors import StoreError

URL = "http://localhost"
ENDPOINTS = """
from collections.abc import AsyncIterator
from tidewire_server import Server

server = Server(retry=0.01)


@server.endpoint
async def words(n: int = 3) -> AsyncIterator[str]:
    text = ""
    for at in range(n):
        text += f"{at} "
        yield text


if __name__ == "__main__":
    import sys
    server.run(uds=sys.argv[1], started=lambda url: print(f"{server.settings.heartbeat} at {url}", flush=True))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("uds")
    (path / "mine.py").write_text(ENDPOINTS)
    return path


@contextmanager
def served(folder, path):
    with Forked("tidewire_server", "mine.py:server", "--uds", str(path), cwd=folder) as process:
        banner = process.stdout.readline()
        assert f" at {path}  (press" in banner, banner + process.stderr.read()
        yield process


@pytest.fixture(scope="module")
def path(folder):
    path = folder / "s.sock"
    with served(folder, path):
        yield path


def test_a_job_runs_through_a_unix_socket(path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Client(URL, uds=path) as client:
        assert "".join(update.text for update in client.submit("words")) == "0 1 2 "
        assert list(client.map("words", [{"n": 1}, {"n": 2}])) == ["0 ", "0 1 "]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.anyio
async def test_async_clients_use_a_unix_socket(path):
    async with AsyncClient(URL, uds=str(path)) as client, anyio.create_task_group() as tasks:
        for n in range(1, 6):

            async def run(n=n):
                assert await client.run("words", n=n) == "".join(f"{at} " for at in range(n))

            tasks.start_soon(run)


def test_a_second_server_does_not_take_the_socket_of_a_living_one(folder, path):
    with Forked("tidewire_server", "mine.py:server", "--uds", str(path), cwd=folder) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert err == (
        f"tidewire serve: cannot bind to {path}: another server is listening there; stop it, or use another path\n"
    )
    with Client(URL, uds=path) as client:
        assert client.run("words", n=1) == "0 "


def test_the_file_of_a_dead_server_is_replaced_and_a_stopped_server_removes_its_file(folder):
    path = folder / "dead.sock"
    with served(folder, path) as process:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    assert path.is_socket()
    with served(folder, path) as process:
        with Client(URL, uds=path) as client:
            assert client.run("words", n=1) == "0 "
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert not path.exists()


def test_a_server_that_stops_leaves_the_file_of_its_successor(folder):
    path = folder / "moved.sock"
    with served(folder, path) as first:
        path.unlink()
        with served(folder, path):
            first.send_signal(signal.SIGTERM)
            first.communicate(timeout=30)
            with Client(URL, uds=path) as client:
                assert client.run("words", n=1) == "0 "


def test_server_run_accepts_a_unix_socket(folder):
    path = folder / "run.sock"
    with Forked("mine", str(path), cwd=folder) as process:
        assert process.stdout.readline() == f"5.0 at {URL}\n"
        with Client(URL, uds=path) as client:
            assert client.run("words", n=1) == "0 "


def test_the_commands_of_the_client_use_the_socket_of_a_server_in_this_process(tmp_path):
    path = tmp_path / "s.sock"
    server = Server(retry=0.01)

    @server.endpoint
    async def double(x: int) -> int:
        return 2 * x

    @server.endpoint
    async def wait() -> None:
        await asyncio.sleep(600)

    def command(name, *arguments):
        return CliRunner().invoke(app, [name, URL, *arguments, "--uds", str(path)])

    lines = tmp_path / "inputs.jsonl"
    lines.write_text('{"x": 1}\n{"x": 2}\n')
    with server.running(uds=path) as url:
        assert url == URL
        assert json.loads(command("call", "double", "x=21", "--json").stdout.splitlines()[-1])["value"] == 42
        assert [
            json.loads(line)["value"] for line in command("map", "double", str(lines)).stdout.splitlines()
        ] == [2, 4]
        job = command("call", "wait", "--detach").stdout.strip()
        late = command("attach", job, "--timeout", "0.2")
        assert f"run: tidewire attach {URL} {job} --uds {path}" in " ".join(late.output.split())
        assert command("cancel", job).stdout.strip() in {"cancelled", "running"}
        assert job in command("jobs", "--json").stdout
        assert "double" in command("describe").stdout
    assert not path.exists()


def test_a_server_that_cannot_start_removes_its_socket(tmp_path):
    server = Server(log=f"sqlite:///{tmp_path}/log.db")
    (tmp_path / "log.db").write_text("not a database " * 100)
    with pytest.raises(StoreError), server.running(uds=tmp_path / "s.sock"):
        pass
    assert not (tmp_path / "s.sock").exists()


def test_a_file_that_is_no_socket_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(OSError, match="exists and is not a socket") as caught:
        bind("", 0, uds=path)
    assert caught.value.strerror.startswith(f"cannot bind to {path}: ")
    assert path.read_text() == "mine"
    with pytest.raises(OSError, match="cannot bind to .*/nowhere/s: No such file or directory"):
        bind("", 0, uds=tmp_path / "nowhere/s")
    with pytest.raises(OSError, match="too long"):
        bind("", 0, uds=tmp_path / ("s" * 200))


def test_a_port_file_is_refused(folder):
    arguments = ["mine.py:server", "--uds", str(folder / "p.sock"), "--port-file", str(folder / "port")]
    with Forked("tidewire_server", *arguments, cwd=folder) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "has no port" in err
    assert not (folder / "p.sock").exists()


def test_the_environment_and_the_file_set_the_socket(folder):
    (folder / "uds.toml").write_text(f'uds = "{folder}/file.sock"\n')
    with Forked("tidewire_server", "--config", "uds.toml", "--show-config", cwd=folder) as process:
        out, _ = process.communicate(timeout=30)
    assert [line.split() for line in out.splitlines() if line.startswith("uds ")] == [
        ["uds", f"{folder}/file.sock", "uds.toml:1"]
    ]


def test_a_server_of_another_protocol_is_named_by_its_socket(tmp_path):
    path = tmp_path / "s.sock"
    listener = bind("", 0, uds=path)

    def answer():
        while True:
            connection, _ = listener.accept()
            with connection:
                if not connection.recv(1000):
                    return
                connection.sendall(b"-ERR unknown command\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        with (
            Client(URL, uds=path) as client,
            pytest.raises(NotATidewireServerError, match=f"{path}.*-ERR unknown command"),
        ):
            client.discover()
    finally:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
        thread.join()
        listener.close()


def test_wrong_paths_raise_at_once():
    with pytest.raises(TypeError, match="uds must be the path"):
        Client(URL, uds=5)
    with pytest.raises(ValueError, match="empty path"):
        Client(URL, uds="")
    with pytest.raises(ValueError, match="are mutually exclusive"):
        AsyncClient(URL, uds="/s", proxy="http://127.0.0.1:9")
