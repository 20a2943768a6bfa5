"""Several servers on one database, behind a real nginx that is configured as docs/how-to/behind-nginx.md shows.

The client needs nothing for this that it does not need for one server: it resumes its streams wherever nginx sends it.
"""

import re
from contextlib import ExitStack

import httpx2
import pytest

from support.free_port import free_port
from support.nginx import needs_nginx, nginx_with, several_servers
from support.numbers_server import text_of
from support.postgres_server import needs_postgres
from support.reference_server import eventually
from support.server_process import ServerProcess
from tidewire import Client, RetryPolicy

pytestmark = [needs_nginx, *needs_postgres]


@pytest.fixture
def replicas(database_url, tmp_path):
    """Two servers on one database, and the URL of nginx in front of them."""
    with ExitStack() as stack:
        servers = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            process = ServerProcess(
                tmp_path / name,
                "support.numbers_server:numbers_server",
                log=database_url,
                retry=0.01,
                shutdown_timeout=0.1,
            )
            servers.append(stack.enter_context(process))
        site = several_servers([server.url for server in servers])
        yield servers, stack.enter_context(nginx_with(site, tmp_path, free_port()))


def metric(server, name):
    """The sum of a metric of one server over its labels."""
    page = httpx2.get(f"{server.url}/metrics").text
    return sum(float(line.split()[-1]) for line in page.splitlines() if re.match(rf"{name}[{{ ]", line))


def server_with(metric_name, servers):
    """Wait until a metric of one of the servers is not 0, and return this server."""
    return eventually(
        lambda: next((each for each in servers if metric(each, metric_name) > 0), None), within=20
    )


def submits(folder):
    return [line for line in (folder / "access.log").read_text().splitlines() if line.startswith("POST")]


@pytest.mark.heavy
@pytest.mark.parametrize("killed", ["tidewire_open_streams", "tidewire_items_running"])
def test_a_client_resumes_at_the_other_server_after_one_is_killed(killed, replicas, tmp_path):
    """The killed server is that of the reader, or that of the function, which may be the same one."""
    servers, url = replicas
    with Client(url, retry=RetryPolicy(max_delay=0.2)) as client:
        job = client.submit("numbers", n=150)
        updates = iter(job)
        text = ""
        while len(text.split()) < 10:
            text += next(updates).text
        server_with(killed, servers).kill()
        for update in updates:
            assert update.deleted == 0
            text += update.text or ""
        assert text == job.result() == text_of(150)
    (submit,) = submits(tmp_path)
    assert submit.endswith("/numbers/jobs 200")


@pytest.mark.heavy
def test_readers_and_jobs_survive_a_rolling_restart(replicas, tmp_path):
    """Each server stops as planned and starts again, while jobs run and are read through nginx."""
    servers, url = replicas
    with Client(url, retry=RetryPolicy(max_delay=0.2)) as client:
        jobs = [client.submit("numbers", n=200) for _ in range(4)]
        readers = [iter(job) for job in jobs]
        texts = [next(updates).text or "" for updates in readers]
        for server in servers:
            assert server.stop() == 0
            server.start()
        for index, updates in enumerate(readers):
            for update in updates:
                assert update.deleted == 0
                texts[index] += update.text or ""
        assert texts == [job.result() for job in jobs] == [text_of(200)] * 4
    assert len(submits(tmp_path)) == 4


def test_submits_succeed_while_one_of_the_servers_is_down(replicas, tmp_path):
    """nginx passes a request for which it could not connect to the other server, so no client sees an error."""
    servers, url = replicas
    servers[0].kill()
    with Client(url, retry=RetryPolicy(attempts=1)) as client:
        assert [client.run("numbers", n=1) for _ in range(6)] == [text_of(1)] * 6
    assert len(submits(tmp_path)) == 6
