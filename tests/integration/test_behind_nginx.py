"""Client and server with a real nginx between them, configured as docs/how-to/behind-nginx.md shows."""

import re
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.free_port import free_port
from support.sample_server import sentence, served
from support.scripted_server import HOLD, STREAM, ScriptedServer, answer, event, hello, job, snapshot, state
from tidewire import Client, RetryPolicy
from tidewire.errors import InvalidInputError

PAGE = Path(__file__).parents[2] / "docs/how-to/behind-nginx.md"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt install nginx-light")


def page_configuration(*, path):
    """The configuration from the page: at the root, or with its lines inside the `location` of a path."""
    server, under_path = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if not path:
        return server
    lines = re.search(r"proxy_pass [^\n]*\n(.*?)\n    }", server, re.DOTALL)[1]
    location = under_path.replace("    # and the lines from above", lines)
    return f"server {{ listen 8080;\n{location}\n}}"


@contextmanager
def nginx(folder, upstream, port, *, path=False):
    site = page_configuration(path=path).replace("127.0.0.1:8000", urlsplit(upstream).netloc)
    site = site.replace("listen 8080", f"listen 127.0.0.1:{port}")
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\nworker_processes 1;\nevents {{}}\nhttp {{ access_log off;\n{temporary}{site}\n}}\n"
    )
    command = [NGINX, "-p", str(folder), "-e", f"{folder}/error.log", "-c", "nginx.conf", "-g", "daemon off;"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 20
            while True:
                assert process.poll() is None, process.stderr.read().decode()
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert time.monotonic() < deadline, "nginx did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


@pytest.mark.parametrize("path", [False, True], ids=["root", "path"])
def test_jobs_run_through_nginx(path, tmp_path):
    with served(root_path="/ai") if path else served() as server:
        with nginx(tmp_path, server, free_port(), path=path) as url:
            with Client(url + "/ai" if path else url) as client:
                job = client.submit("talk", words=30)
                assert "".join(job.iter_text()) == job.result() == sentence(30)
                assert client.job(job.id).result() == sentence(30)
                assert list(client.map("double", ({"x": x} for x in range(50)), batch_size=20))[-1] == 98
                running = client.submit("forever")
                assert running.cancel() in {"running", "cancelled"}


def test_nginx_does_not_buffer_events_of_a_server_without_buffering_headers(tmp_path):
    def script(request):
        if request.method == "POST":
            yield answer(201, job(state("", status="running"), columns=["/items/0/value"]))
        else:
            yield (
                STREAM
                + hello()
                + snapshot("1-1", state(""), columns=["/items/0/value"])
                + event("Hel", id="1-2")
            )
            yield HOLD

    with ScriptedServer(script) as server, nginx(tmp_path, server.url, free_port()) as url:
        with Client(url, timeout=10) as client:
            texts = (update.text for update in client.submit("talk") if update.text)
            assert next(texts) == "Hel"


def test_a_stream_continues_after_nginx_stops_and_restarts(tmp_path):
    port = free_port()
    retry_policy = RetryPolicy(max_delay=0.1)
    with served(retry=0.01) as server, Client(f"http://127.0.0.1:{port}", retry=retry_policy) as client:
        with nginx(tmp_path, server, port):
            job = client.submit("talk", words=60, slow=True)
            updates = iter(job)
            text = next(updates).text
        with nginx(tmp_path, server, port):
            text += "".join(update.text for update in updates)
            assert text == job.result() == sentence(60)


def test_a_body_above_the_limit_of_nginx_raises_invalid_input_with_413(tmp_path):
    with served() as server, nginx(tmp_path, server, free_port()) as url, Client(url) as client:
        with pytest.raises(InvalidInputError, match="413"):
            client.submit("talk", pad="x" * 9 * 2**20)
