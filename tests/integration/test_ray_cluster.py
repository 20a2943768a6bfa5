"""A server that starts a local Ray cluster of its own, or cannot reach one."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from support.free_port import free_port
from support.postgres_server import BINARIES
from support.reference_server import eventually
from support.serve_command import run

pytestmark = [
    pytest.mark.ray,
    pytest.mark.heavy,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install -e '.[ray]'"),
    pytest.mark.timeout(180),
]

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, ::ffff:127.0.0.1 and ::1, as in /proc/net/tcp."""

PROGRAM = """
import os
from tidewire_server import Server, ray_workers

server = Server()

@server.endpoint(name="pids", batch=True, workers=ray_workers(2, num_cpus=0))
class Pids:
    def __call__(self, words: list[str]) -> list[int]:
        return [os.getpid() for _ in words]
"""


def processes_of(session):
    """Ids of the processes that have inherited an environment variable from the server, without Ray's two agents, which notice
    only after a minute that their node has been killed.
    """
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"TIDEWIRE_TEST_SESSION={session}" in (folder / "environ").read_text()
            if marked and b"Agent" not in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except (OSError, UnicodeDecodeError):
            continue
    return found


def listening(pids):
    """Local addresses on which the processes listen, as hexadecimal numbers."""
    inodes = set()
    for pid in pids:
        try:
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_local_cluster_listens_on_loopback_only_and_ends_with_the_server(end, tmp_path):
    """The module of the class is found by the actors, although the command runs in another folder."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/pids.py").write_text(PROGRAM)
    environment = {**os.environ, "TIDEWIRE_TEST_SESSION": tmp_path.name}
    environment.pop("RAY_ADDRESS", None)
    command = (
        sys.executable,
        "-m",
        "tidewire_server",
        "code/pids.py:server",
        "--port",
        "0",
        "--port-file",
        "port",
    )
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            port = tmp_path / "port"
            eventually(lambda: port.exists() or server.poll() is not None, within=120)
            assert server.poll() is None, server.stderr.read()
            url = f"http://127.0.0.1:{int(port.read_text())}/v1/endpoints/pids/jobs"
            answer = httpx2.post(
                url, json={"input": {"words": "a"}}, headers={"accept": "text/event-stream"}, timeout=120
            )
            processes = processes_of(tmp_path.name)
            assert '"status":"succeeded"' in answer.text
            assert len(processes) > 3
            addresses = listening(processes)
            assert addresses
            assert addresses <= LOOPBACK
            server.send_signal(end)
            assert server.wait(60) == (0 if end is signal.SIGTERM else -end)
            eventually(lambda: not processes_of(tmp_path.name), within=60)
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:{port}", "Connection refused"),
        ("ray://10.0.0.1:10001", "run the server on a node of the cluster"),
    ],
    ids=["unreachable", "client"],
)
def test_cluster_that_cannot_be_used_ends_the_server_with_one_line(address, reason, tmp_path):
    address = address.format(port=free_port())
    (tmp_path / "pids.py").write_text(PROGRAM)
    process = run(tmp_path, "pids.py:server", "--port", "0", RAY_ADDRESS=address)
    output, errors = process.communicate()

    assert process.returncode == 1
    assert output == ""
    (line,) = errors.splitlines()
    assert line.startswith(f"tidewire serve: cannot use the Ray cluster '{address}': ")
    assert reason in line


@pytest.mark.postgres
@pytest.mark.skipif(BINARIES is None, reason="PostgreSQL is not installed: apt install postgresql")
def test_only_a_process_with_functions_needs_the_cluster(tmp_path, database_url):
    address = f"127.0.0.1:{free_port()}"
    (tmp_path / "pids.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "tidewire_server.commands.worker",
        "pids.py:server",
        "--log",
        database_url,
    ]
    environment = os.environ | {"RAY_ADDRESS": address}
    worker = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert worker.returncode == 1
    (line,) = worker.stderr.splitlines()
    assert line.startswith(f"tidewire worker: cannot use the Ray cluster '{address}': ")

    arguments = (
        "pids.py:server",
        "--no-functions",
        "--port",
        "0",
        "--port-file",
        "port",
        "--log",
        database_url,
    )
    front = run(tmp_path, *arguments, RAY_ADDRESS=address)
    try:
        eventually((tmp_path / "port").exists)
    finally:
        front.send_signal(signal.SIGTERM)
        front.communicate()
    assert front.returncode == 0
