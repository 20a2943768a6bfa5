"""Reference server in its own process that tests kill and restart on the same log file and port."""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2

from support.sample_server import sentence
from support.server_process import START_LIMIT, ServerProcess
from tidewire_server import Append, Context, Last, Server, Stream
from tidewire_server.script_endpoint import add_script


class JobRequests:
    """Requests to a server, with a new connection for each, because kept ones would break when the server is killed."""

    def __init__(self, url: str) -> None:
        limits = httpx2.Limits(max_keepalive_connections=0)
        self.http = httpx2.Client(base_url=url, timeout=20, limits=limits)

    def submit(self, endpoint: str, key: str | None = None, **body: Any) -> httpx2.Response:
        headers = {} if key is None else {"idempotency-key": key}
        body = {"input": {}} | body if "inputs" not in body else body
        return self.http.post(f"/v1/endpoints/{endpoint}/jobs", json=body, headers=headers)

    def job(self, job: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ended(self, job: str) -> dict[str, Any]:
        """Wait until the job has ended, and return its resource."""
        return self.until(job, lambda found: found.get("done") is not None)

    def until(self, job: str, condition: Any) -> dict[str, Any]:
        give_up = time.monotonic() + START_LIMIT
        while not condition(found := self.job(job)):
            assert time.monotonic() < give_up, found
            time.sleep(0.005)
        return found

    def events(self, job: str, after: str = "0-0") -> bytes:
        """Return the bytes of the logged events of a job, read up to the end of its stream."""
        headers = {"last-event-id": after}
        answer = self.http.get(f"/v1/jobs/{job}/events", headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.content[answer.content.index(b"id:") :]


class Killed(ServerProcess, JobRequests):
    """A server with a log file, and an HTTP client for it."""

    def __init__(
        self, folder: Path, function: str = "support.killable_server:killable_server", **settings: Any
    ) -> None:
        self.log = folder / "log.db"
        settings = {"log": f"sqlite:///{self.log}", "max_attempts": 1000, "retry": 0.01} | settings
        ServerProcess.__init__(self, folder, function, **settings)
        JobRequests.__init__(self, self.url)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.http.close()


@contextlib.contextmanager
def killed_server(**settings: Any) -> Iterator[Killed]:
    with tempfile.TemporaryDirectory() as folder, Killed(Path(folder), **settings) as server:
        yield server


def killable_server(hide: tuple[str, ...] = (), once: str | Path = os.devnull, **settings: Any) -> Server:
    once = Path(once)
    server = Server(**settings)
    add_script(server)

    @server.endpoint(concurrency_limit=None)
    async def talk(words: int, stream: Stream[str], pause: float = 0.002) -> None:
        text = sentence(words)
        for at in range(0, len(text), 3):
            stream.append(text[at : at + 3])
            await asyncio.sleep(pause)

    @server.endpoint(concurrency_limit=2)
    async def shout(text: str, pause: float = 0.0, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        stream.usage(tokens=len(text))
        stream.append(text.upper())
        await asyncio.sleep(pause)

    @server.endpoint(on_restart="fail", concurrency_limit=1)
    async def pay(pause: float = 60.0, crash: bool = False) -> str:
        with once.open("a") as journal:
            journal.write("paid\n")
        if crash:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(pause)
        return "paid"

    @server.endpoint(concurrency_limit=None)
    async def journaled(number: int, pause: float = 0.0) -> int:
        with once.open("a") as journal:
            journal.write(f"{number}\n")
        await asyncio.sleep(pause)
        return 2 * number

    @server.endpoint
    def deaf(text: str, stream: Stream[str]) -> None:
        """Ignore a cancel. Write a line to `once` at each start, and continue when the file `once` + `.go` exists."""
        with once.open("a") as journal:
            journal.write(f"{text}\n")
        stream.append(text)
        while not once.with_name(f"{once.name}.go").exists():
            time.sleep(0.01)

    @server.endpoint(batch=True, batch_timeout=0.05)
    def deaf_together(text: list[str]) -> Iterator[dict[int, Append[str]]]:
        """Like `deaf`, but for a batch."""
        with once.open("a") as journal:
            journal.write("".join(f"{each}\n" for each in text))
        yield dict(enumerate(map(Append, text)))
        while not once.with_name(f"{once.name}.go").exists():
            time.sleep(0.01)

    @server.endpoint
    async def poison() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @server.endpoint(batch=True)
    def poison_together(number: list[int]) -> list[int]:
        os.kill(os.getpid(), signal.SIGKILL)
        return number

    @server.endpoint(on_restart="fail", batch=True)
    def pay_together(pause: list[float]) -> list[str]:
        with once.open("a") as journal:
            journal.write("paid\n")
        os.kill(os.getpid(), signal.SIGKILL)
        return ["paid" for _ in pause]

    @server.endpoint(concurrency_limit=None)
    async def churn(stream: Stream[str], chunks: int = 1000) -> None:
        try:
            for _ in range(chunks):
                stream.append("x" * 50_000)
                stream.truncate(50_000)
                await asyncio.sleep(0.001)
        except Exception:
            once.touch()
            raise

    @server.endpoint
    async def fork() -> int:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        return child

    _add_endpoints_that_report_their_attempt(server)
    for name in hide:
        del server.endpoints[name]
    return server


def _add_endpoints_that_report_their_attempt(server: Server) -> None:
    """Add endpoints that log their attempt and `ctx.previous`, and end in the second attempt."""

    def seen(ctx: Context) -> dict[str, Any]:
        return {"attempt": ctx.attempt, "previous": ctx.previous}

    @server.endpoint
    async def seen_async(ctx: Context) -> dict[str, Any]:
        if ctx.attempt == 1:
            await asyncio.sleep(60)
        return seen(ctx)

    @server.endpoint
    def seen_sync(ctx: Context) -> dict[str, Any]:
        while ctx.attempt == 1:
            time.sleep(0.01)
        return seen(ctx)

    @server.endpoint
    def seen_generator(ctx: Context) -> Iterator[dict[str, Any]]:
        yield seen(ctx)
        while ctx.attempt == 1:
            time.sleep(0.01)

    @server.endpoint
    async def seen_stream(stream: Stream[dict[str, Any]], ctx: Context) -> None:
        stream.set("", seen(ctx))
        if ctx.attempt == 1:
            await asyncio.sleep(60)

    @server.endpoint(batch=True, batch_timeout=0.05)
    def seen_batch(name: list[str], ctx: Context) -> Iterator[dict[int, Any]]:
        try:
            ctx.attempt  # noqa: B018 - the property raises the error
        except ValueError as error:
            refused = str(error)
        rows = dict(enumerate(name))
        yield {row: {"name": rows[row], **seen(ctx.rows[row]), "refused": refused} for row in rows}
        while ctx.rows[0].attempt == 1:
            time.sleep(0.01)

    @server.endpoint
    async def seen_untyped(ctx: Context):
        yield Append("draft")
        if ctx.attempt == 1:
            await asyncio.sleep(60)
        yield Append(f" {ctx.attempt}")

    @server.endpoint(on_restart="continue", concurrency_limit=None)
    async def count(n: int, ctx: Context, pause: float = 0.001) -> AsyncIterator[Append[list[int]]]:
        for number in range(len(ctx.previous or ()), n):
            yield Append([number])
            await asyncio.sleep(pause)

    @server.endpoint(on_restart="continue", concurrency_limit=None)
    async def spell(text: str, stream: Stream[str], ctx: Context) -> None:
        assert stream.value == (ctx.previous or "")
        stream.stable(len(stream.value))
        for at in range(len(stream.value), len(text)):
            stream.append(text[at])
            stream.stable()
            await asyncio.sleep(0.001)

    @server.endpoint(on_restart="continue", batch=True, max_batch_size=4, batch_timeout=0.02)
    def count_together(n: list[int], ctx: Context) -> Iterator[dict[int, Append[list[int]] | Last]]:
        at = {row: len(ctx.rows[row].previous or ()) for row in range(len(n))}
        while at:
            yield {row: Append([number]) if number < n[row] else Last() for row, number in at.items()}
            at = {row: number + 1 for row, number in at.items() if number < n[row]}
            time.sleep(0.002)

    @server.endpoint(on_restart="continue")
    async def continuing_poison(ctx: Context) -> AsyncIterator[Append[list[int]]]:
        yield Append([ctx.attempt])
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
