"""Client and server with a real nginx between them, configured as docs/how-to/behind-nginx.md shows."""

import pytest

from support.free_port import free_port
from support.nginx import needs_nginx, nginx
from support.sample_server import sentence, served
from support.scripted_server import HOLD, STREAM, ScriptedServer, answer, event, hello, job, snapshot, state
from tidewire import Client, RetryPolicy
from tidewire.errors import InvalidInputError

pytestmark = needs_nginx


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
