"""The applications of `docs/how-to/inside-an-existing-app.md`, each in a process of uvicorn."""

import contextlib
import importlib
import re
import signal
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from proof.forked_process import Forked
from support.free_port import free_port
from support.reference_server import Peer, eventually
from tidewire import Client
from tidewire.errors import RequestError
from tidewire.testing import FakeServer
from tidewire_server import Server, Stream

PAGE = (Path(__file__).parents[2] / "docs/how-to/inside-an-existing-app.md").read_text(encoding="utf-8")
COOKIES = {"ann": "session=s3cr3t", "bob": "session=pa55"}
OTHER_FRAMEWORK = ("from fastapi import FastAPI", "from starlette.applications import Starlette as FastAPI")

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install fastapi")


def block(name):
    """Return the code block of the page that is written to this file."""
    return re.search(rf"^```python [^\n]*file={re.escape(name)}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[
        1
    ]


class Uvicorn:
    """An application in a process of uvicorn."""

    def __init__(self, folder, target):
        self.folder, self.target, self.port = folder, target, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        options = ["--port", str(self.port), "--timeout-graceful-shutdown", "5"]
        self.process = Forked("uvicorn", self.target, *options, cwd=self.folder)

    def listens(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        assert self.process.poll() is None
        return False

    def end(self, how=signal.SIGKILL):
        self.process.send_signal(how)
        self.process.communicate(20)
        return self.process.returncode

    def __enter__(self):
        self.start()
        eventually(self.listens, within=30)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end()


@pytest.fixture(params=["FastAPI", pytest.param("Starlette", marks=pytest.mark.slow)])
def mounted(request, tmp_path):
    text = block("app.py")
    (tmp_path / "app.py").write_text(text if request.param == "FastAPI" else text.replace(*OTHER_FRAMEWORK))
    with Uvicorn(tmp_path, "app:app") as application:
        yield application


def client_of(application, account):
    return Client(f"{application.url}/ai", headers={"cookie": COOKIES[account]})


def test_accounts_of_the_application_have_their_own_jobs(mounted):
    with client_of(mounted, "ann") as ann, client_of(mounted, "bob") as bob:
        job = ann.submit("story", words=2)
        assert job.result() == "word 0 word 1 "
        assert [each.id for each in ann.jobs()] == [job.id]
        assert bob.jobs() == []
        with pytest.raises(RequestError):
            bob.job(job.id).result()
    with Client(f"{mounted.url}/ai") as nobody, pytest.raises(RequestError) as refused:
        nobody.run("story")
    assert refused.value.status_code == 401
    assert httpx2.get(f"{mounted.url}/ai/healthz").status_code == 200


def status_in_the_log(file, job):
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as log:
        return log.execute("SELECT status FROM job WHERE id = ?", (job,)).fetchone()[0]


@pytest.mark.heavy
def test_waiting_jobs_run_after_a_restart_before_the_first_request(mounted):
    with client_of(mounted, "ann") as ann:
        running, waiting = (ann.submit("story", words=60) for _ in range(2))
        eventually(lambda: running.status() == "running")
        assert waiting.status() == "queued"
        mounted.end()
        mounted.start()
        # Not even a connection: what is read here is the file.
        for job in (running, waiting):
            eventually(
                lambda job=job: status_in_the_log(mounted.folder / "jobs.db", job.id) == "succeeded", 40
            )
        assert waiting.result() == running.result() == "".join(f"word {number} " for number in range(60))


def test_a_planned_stop_leaves_the_jobs_to_the_next_process(mounted):
    with client_of(mounted, "ann") as ann:
        job = ann.submit("story", words=100)
        eventually(lambda: job.status() == "running")
        assert mounted.end(signal.SIGTERM) in {0, -signal.SIGTERM}
        mounted.start()
        assert job.result().startswith("word 0 word 1 ")


@pytest.fixture
def relayed(tmp_path):
    """The relay, and a Tidewire server behind it."""
    server = Server(default_concurrency_limit=None)

    @server.endpoint
    async def story(stream: Stream[str], words: int = 5) -> None:
        import asyncio

        for number in range(words):
            stream.append(f"word {number} ")
            await asyncio.sleep(0.02)

    with server.running() as url, Peer(url) as peer:
        text = block("relay.py").replace("http://127.0.0.1:8000", url).replace("grace=10", "grace=5")
        (tmp_path / "relay.py").write_text(text)
        with Uvicorn(tmp_path, "relay:app") as application:
            yield application, peer


def test_the_relay_passes_the_text_on_while_it_arrives(relayed):
    application, peer = relayed
    with httpx2.stream("GET", f"{application.url}/story?words=100", timeout=20) as response:
        assert response.headers["content-type"].startswith("text/plain")
        pieces = response.iter_text()
        text = next(pieces)
        (job,) = peer.http.get("/v1/jobs").json()["jobs"]
        assert job["status"] == "running"
        text += "".join(pieces)
    assert text == "".join(f"word {number} " for number in range(100))


@pytest.mark.heavy
def test_the_relayed_job_is_cancelled_when_the_browser_leaves(relayed):
    application, peer = relayed
    with httpx2.stream("GET", f"{application.url}/story?words=100000", timeout=20) as response:
        next(response.iter_text())
    (job,) = peer.http.get("/v1/jobs").json()["jobs"]
    eventually(lambda: peer.job(job["id"])["status"] == "cancelled", within=30)


def test_the_relay_can_be_tested_any_number_of_times_with_a_fake_server(tmp_path, monkeypatch):
    from starlette.testclient import TestClient

    (tmp_path / "tested_relay.py").write_text(block("relay.py"))
    monkeypatch.syspath_prepend(tmp_path)
    app = importlib.import_module("tested_relay").app
    for _ in range(2):
        with FakeServer("http://127.0.0.1:8000") as gpu, TestClient(app) as browser:
            gpu.endpoint("story").streams(["word 0 ", "word 1 "]).cuts_after(1)
            assert [browser.get("/story?words=2").text for _ in range(2)] == ["word 0 word 1 "] * 2


def test_the_relay_is_at_most_ten_lines():
    function = block("relay.py")[block("relay.py").index("@app.get") :]
    assert len([line for line in function.splitlines() if line.strip()]) <= 10
