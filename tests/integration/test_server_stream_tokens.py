"""Stream tokens: URLs that let an EventSource read the stream of one job for a limited time and nothing else."""

import asyncio
import contextlib
import signal
import socket
import string
import time
from collections.abc import Iterator
from datetime import datetime

import httpx2
import pytest

from support import serve_command
from support.reference_server import QUICK, Fold, Peer, Reading, data, eventually, serving
from support.sample_server import served
from support.server_address import address_of
from tidewire import AsyncClient, Client
from tidewire.errors import JobNotFoundError
from tidewire_server import Server, Stream
from tidewire_server.errors import ProblemError
from tidewire_server.jobs.admission.stream_tokens import StreamTokens

OWNER, OTHER = "owner:o-token", "other:x-token"
SECRET = "a secret of at least thirty-two characters"


def make_server(**settings: object) -> Server:
    server = Server(**(QUICK | {"tokens": (OWNER, OTHER), "default_concurrency_limit": None} | settings))

    @server.endpoint
    async def hold(stream: Stream[str]) -> None:
        stream.append("held")
        await asyncio.Event().wait()

    @server.endpoint
    async def large(stream: Stream[str]) -> None:
        stream.append("x" * 3_000_000)
        await asyncio.Event().wait()

    @server.endpoint
    def say() -> str:
        return "hi"

    return server


@pytest.fixture(scope="module")
def peer():
    with serving(make_server(), authorization="Bearer o-token") as peer:
        yield peer


@pytest.fixture(scope="module")
def anonymous(peer):
    with Peer(peer.url) as anonymous:
        yield anonymous


def url_of(peer: Peer, job: str) -> str:
    answer = peer.http.post(f"/v1/jobs/{job}/stream-token")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    return answer.json()["url"]


def read(anonymous: Peer, url: str, **headers: str) -> tuple[httpx2.Response, list]:
    with anonymous.http.stream("GET", url, headers=headers) as answer:
        return answer, list(Reading(answer))


def test_a_stream_token_url_opens_its_stream_without_credentials(peer, anonymous):
    assert "stream_tokens" in peer.http.get("/v1").json()["capabilities"]
    job = peer.start("say")
    body = peer.http.post(f"/v1/jobs/{job}/stream-token").json()
    seconds_left = datetime.fromisoformat(body["expires_at"]).timestamp() - time.time()
    assert 200 < seconds_left <= 300
    answer, events = read(anonymous, body["url"])
    assert answer.status_code == 200
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert Fold().take(events).items[0]["value"] == "hi"
    assert Fold().take(read(anonymous, f"{body['url']}&after=0-0")[1]).done["status"] == "succeeded"
    gone, _ = read(anonymous, body["url"], **{"last-event-id": events[-1].id})
    assert (gone.status_code, gone.headers["referrer-policy"]) == (204, "no-referrer")


def test_a_stream_token_authorizes_nothing_else(peer, anonymous):
    job, second = peer.start("say"), peer.start("say")
    query = url_of(peer, job).partition("?")[2]
    token = query.partition("token=")[2]
    for method, path in [
        ("GET", f"/v1/jobs/{job}"),
        ("POST", f"/v1/jobs/{job}/cancel"),
        ("POST", f"/v1/jobs/{job}/stream-token"),
        ("DELETE", f"/v1/jobs/{job}"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1"),
    ]:
        assert anonymous.http.request(method, f"{path}?{query}").status_code == 401, path
        bearer_header = {"authorization": f"Bearer {token}"}
        assert anonymous.http.request(method, path, headers=bearer_header).status_code == 401, path
    _, (event,) = read(anonymous, f"/v1/jobs/{second}/events?{query}")
    assert (event.type, event.id, data(event)["code"]) == ("problem", "0-1", "unauthorized")
    assert anonymous.http.get(f"/v1/jobs/{job}/events").status_code == 401


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda token: "",
        lambda token: "x",
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: ("B" if token[0] == "A" else "A") + token[1:],
        lambda token: token[:20] + ("B" if token[20] == "A" else "A") + token[21:],
        lambda token: "%C3%A9" * 43,
        lambda token: "%00" * 43,
        lambda token: "A" * 100_0,
        lambda token: "A" * 43,
    ],
)
def test_an_invalid_stream_token_sends_an_in_band_problem_that_ends_the_event_source(
    peer, anonymous, corrupt
):
    job = peer.start("say")
    url, _, token = url_of(peer, job).rpartition("token=")
    answer, (event,) = read(anonymous, f"{url}token={corrupt(token)}")
    assert (answer.status_code, answer.headers["referrer-policy"]) == (200, "no-referrer")
    assert (event.type, event.id, data(event)["code"]) == ("problem", "0-1", "unauthorized")
    assert read(anonymous, f"{url}token={corrupt(token)}", **{"last-event-id": "0-1"})[0].status_code == 204


def test_problems_of_a_token_url_are_in_band_without_the_errors_parameter(peer, anonymous):
    job = peer.start("say")
    url = url_of(peer, job).replace("errors=inband&", "")
    answer, (event,) = read(anonymous, f"{url}&after=nonsense")
    assert (answer.status_code, data(event)["code"]) == (200, "bad_cursor")
    peer.http.delete(f"/v1/jobs/{job}")
    assert data(read(anonymous, url)[1][0])["code"] == "job_expired"


@pytest.fixture(scope="module")
def short_lived():
    """A server process whose stream tokens expire after one to two seconds."""
    settings = {"retry": 0.01, "min_snapshot_interval": 0.02, "tokens": [OWNER], "stream_token_ttl": 2}
    with served(**settings) as url, Peer(url, authorization="Bearer o-token") as peer:
        yield peer


@contextlib.contextmanager
def opened(peer: Peer, url: str) -> Iterator[Reading]:
    """Open a stream without other credentials than those in its URL."""
    with Peer(peer.url) as anonymous, anonymous.http.stream("GET", url) as answer:
        yield Reading(answer)


def test_an_open_stream_ends_when_its_token_expires_and_continues_with_another_token(short_lived):
    job = short_lived.start("forever")
    body = short_lived.http.post(f"/v1/jobs/{job}/stream-token").json()
    url, expires_at = body["url"], datetime.fromisoformat(body["expires_at"]).timestamp()
    folds = Fold(keep_states=False), Fold(keep_states=False)
    with opened(short_lived, url) as diffs, opened(short_lived, f"{url}&diffs=0") as snapshots:
        for fold, reading in zip(folds, (diffs, snapshots), strict=True):
            events = list(reading)
            assert time.time() >= expires_at
            assert (events[-1].type, data(events[-1])["reason"]) == ("goaway", "auth_expired")
            fold.take(events)
    with opened(short_lived, f"{url}&after={folds[0].cursor}") as refused:
        assert [data(event).get("code") for event in refused] == ["unauthorized"]
    renewed = url_of(short_lived, job)
    short_lived.http.post(f"/v1/jobs/{job}/cancel")
    for fold, query in zip(folds, (f"&after={folds[0].cursor}", "&diffs=0"), strict=True):
        with opened(short_lived, f"{renewed}{query}") as reading:
            assert fold.take(list(reading)).done["status"] == "cancelled"


@pytest.fixture
def server_with_clock(monkeypatch):
    """A server, and a function that sets its wall clock. Stream tokens expire after one to two seconds."""
    offset, now = [0.0], time.time

    def jump(seconds: float) -> None:
        offset[0] += seconds

    monkeypatch.setattr(time, "time", lambda: now() + offset[0])
    server = make_server(
        tokens=(), stream_token_ttl=2, heartbeat=0.05, retry=3.0, min_grace=0.2, stall_timeout=2
    )
    with serving(server) as peer:
        yield peer, jump


@pytest.mark.heavy
def test_the_wall_clock_decides_when_an_open_stream_ends(server_with_clock):
    peer, jump = server_with_clock
    with opened(peer, url_of(peer, peer.start("hold"))) as reading:
        reading.until("snapshot")
        jump(-3600)
        for _ in range(45):  # longer than the token would have been valid without the jump
            reading.until("ping")
        jump(3600)
        assert data(reading.until("goaway"))["reason"] == "auth_expired"


def test_the_pause_after_an_expired_token_does_not_count_as_time_without_a_reader(server_with_clock):
    peer, jump = server_with_clock
    job = peer.start("hold", on_disconnect="cancel", grace_ms=0)
    with opened(peer, url_of(peer, job)) as reading:
        reading.until("snapshot")
        jump(3600)
        assert data(reading.until("goaway"))["retry_ms"] > 2000
    later = time.monotonic() + 0.5  # longer than `min_grace`
    eventually(lambda: time.monotonic() > later)
    assert peer.job(job)["status"] == "running"


@pytest.mark.heavy
def test_a_reader_that_is_too_slow_for_goaway_loses_its_connection(server_with_clock):
    peer, jump = server_with_clock
    url = url_of(peer, peer.start("large"))
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(10)
        reader.connect(address_of(peer.url))
        reader.sendall(f"GET {url} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert reader.recv(100)
        jump(3600)
        with pytest.raises(ConnectionResetError):
            read_slowly(reader)


def read_slowly(reader: socket.socket) -> None:
    """Read without a stall, but so slowly that a large snapshot would take minutes."""
    for _ in range(1000):
        assert reader.recv(1000)
        time.sleep(0.03)


def test_only_the_owner_of_a_job_gets_a_stream_token(peer):
    job = peer.start("say")
    with Peer(peer.url, authorization="Bearer x-token") as other:
        answer = other.http.post(f"/v1/jobs/{job}/stream-token")
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")


def test_a_server_without_authentication_issues_stream_tokens():
    with serving(make_server(tokens=())) as peer:
        job = peer.start("say")
        assert Fold().take(read(peer, url_of(peer, job))[1]).items[0]["value"] == "hi"


def test_processes_that_share_a_secret_accept_each_others_tokens():
    now = [1_000.0]
    keys = (SECRET.encode(), SECRET.encode(), b"another")
    here, there, other_secret = (StreamTokens(key, 300, lambda: now[0]) for key in keys)
    token, until = here.make("a-job")
    assert until == 1_300
    now[0] = 1_299.9
    there.check(token, "a-job")
    for verifier, job, at in [
        (other_secret, "a-job", 1_000.0),
        (there, "b-job", 1_000.0),
        (there, "a-job", 1_300.0),
    ]:
        now[0] = at
        with pytest.raises(ProblemError, match="token"):
            verifier.check(token, job)


def test_the_server_prints_no_token(tmp_path):
    (tmp_path / "small.py").write_text(
        "from tidewire_server import Server\nserver = Server()\n\n\n@server.endpoint\ndef say() -> str:\n    return 'hi'\n"
    )
    secrets = {"TIDEWIRE_TOKENS": "me:a-long-token", "TIDEWIRE_STREAM_TOKEN_SECRET": SECRET}
    with serve_command.served(tmp_path, "small.py:server", "--log-level", "debug", **secrets) as (
        process,
        server,
    ):
        with Peer(server.url, authorization="Bearer a-long-token") as peer:
            stream = url_of(peer, peer.start("say"))
            read(peer, stream)
            read(peer, f"{stream}x")
        process.send_signal(signal.SIGTERM)
        output = "".join(process.communicate())
    assert "serving" in output or "tidewire" in output
    for secret in (stream.partition("token=")[2], "a-long-token", SECRET):
        assert secret not in output


def test_an_empty_token_parameter_is_ignored(peer, anonymous):
    job = peer.start("say")
    _, events = read(peer, f"/v1/jobs/{job}/events?token=")
    assert events[-1].type == "done"
    assert anonymous.http.get(f"/v1/jobs/{job}/events?token=").status_code == 401


def test_a_token_has_only_one_spelling():
    tokens = StreamTokens(b"k" * 32, 300)
    genuine, _ = tokens.make("job")
    tokens.check(genuine, "job")
    for character in string.ascii_letters + string.digits + "-_=":
        other = genuine[:-1] + character
        if other != genuine:
            with pytest.raises(ProblemError):
                tokens.check(other, "job")


# ---- requested with the client ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["job", "batch_job"])
def test_client_returns_an_absolute_url_with_a_token(peer, anonymous, kind):
    with Client(f"{peer.url}/v1", token="o-token") as client:
        url = getattr(client, kind)(client.submit("say").id).stream_url()
        assert url.startswith(f"{peer.url}/v1/jobs/")
        answer, events = read(anonymous, url)
        assert (answer.status_code, events[-1].type) == (200, "done")
        with pytest.raises(JobNotFoundError):
            client.job("nothing").stream_url()


async def test_async_client_returns_the_same_url(peer, anonymous):
    async with AsyncClient(peer.url, token="o-token") as client:
        job = await client.submit("say")
        _, events = await asyncio.to_thread(read, anonymous, await job.stream_url())
    assert events[-1].type == "done"
