"""Reference server in its own process that tests kill and restart on the same log file and port."""

import asyncio
import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from support.free_port import free_port
from tidewire_server import Append, Context, Last, Server, Stream
from tidewire_server.script_endpoint import add_script
from tidewire_server.serving.serve import serve

START_LIMIT = 30.0
TESTS = Path(__file__).parent.parent
Serve = Callable[[int, str, dict[str, Any]], None]
"""Function that serves until it is stopped.

Its arguments are the port, the path of a file that it writes when it is ready, and the settings of the server.
"""
WORDS = ("stream", "of", "results", "né", "😀", "from", "a", "GPU", "server", "that", "nothing", "can", "cut")


def talk_text(words: int) -> str:
    """Return the text that the endpoint `talk` produces."""
    return " ".join(WORDS[at % len(WORDS)] for at in range(words))


@functools.cache
def _fork_server(program: str) -> "subprocess.Popen[str]":
    fork_server = subprocess.Popen(
        [sys.executable, "-m", program], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(fork_server.communicate)
    return fork_server


class Killed:
    """A server that can be killed and restarted on the same port and log file.

    Each server is a child forked from a process that has done all imports, so it starts quickly.
    """

    def __init__(self, folder: Path, *, program: str = "support.killable_server", **settings: Any) -> None:
        """Configure the server.

        Args:
            folder: Folder for the log file, the port file and the error output.
            program: Module that calls `run_fork_server` when it is run.
            settings: Settings of the server. The program may accept additional settings.
        """
        self.program = program
        self.folder = folder
        self.log = folder / "log.db"
        self.settings = {"log": f"sqlite:///{self.log}", "max_attempts": 1000, "retry": 0.01} | settings
        self.port: int = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.pid = 0
        # Do not keep connections: they would break when the server is killed.
        self.http = httpx.Client(
            base_url=self.url, timeout=20, limits=httpx.Limits(max_keepalive_connections=0)
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            self.kill()
        self.http.close()

    def _request(self, *words: Any) -> Any:
        fork_server = _fork_server(self.program)
        assert fork_server.stdin is not None
        assert fork_server.stdout is not None
        fork_server.stdin.write(json.dumps(words) + "\n")
        fork_server.stdin.flush()
        return json.loads(fork_server.stdout.readline())

    def start(self, **settings: Any) -> None:
        """Start the server, and wait until it is ready."""
        ready = self._spawn(settings)
        give_up = time.monotonic() + START_LIMIT
        while not ready.exists():
            code = self._request("poll", self.pid)
            if code is not None:
                self.pid = 0
                raise ChildProcessError(f"the server exited with code {code}: {self.errors()}")
            assert time.monotonic() < give_up, "the server did not start in time"
            time.sleep(0.005)

    def _spawn(self, settings: dict[str, Any]) -> Path:
        ready = self.folder / "port"
        ready.unlink(missing_ok=True)
        self.pid = self._request("start", self.port, str(self.folder), self.settings | settings)
        return ready

    def start_and_kill_after(self, seconds: float) -> None:
        """Start the server and kill it after some time, possibly before it is ready."""
        self._spawn({})
        time.sleep(seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def died(self) -> None:
        """Wait until the server process exits without a signal from the test."""
        self._request("wait", self.pid)
        self.pid = 0

    def stop(self) -> int:
        """Stop the server with SIGTERM, and return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        os.kill(self.pid, how)
        code: int = self._request("wait", self.pid)
        self.pid = 0
        return code

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def again(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def submit(self, endpoint: str, key: str | None = None, **body: Any) -> httpx.Response:
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


@contextlib.contextmanager
def killed_server(**settings: Any) -> Iterator[Killed]:
    with tempfile.TemporaryDirectory() as folder, Killed(Path(folder), **settings) as server:
        yield server


def _serve(port: int, ready: str, settings: dict[str, Any]) -> None:
    hide, once = settings.pop("hide", ()), Path(settings.pop("once", os.devnull))
    server = Server(**settings)
    add_script(server)

    @server.endpoint(concurrency_limit=None)
    async def talk(words: int, stream: Stream[str], pause: float = 0.002) -> None:
        text = talk_text(words)
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
    serve(server.app, server.settings, port=port, port_file=ready)


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


def _fork(words: list[Any], serve: Serve) -> int | None:
    match words:
        case ["start", port, folder, settings]:
            pid = os.fork()
            if pid:
                return pid
            code = 1
            try:
                nothing = os.open(os.devnull, os.O_RDWR)
                errors = os.open(f"{folder}/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                for stream, instead in enumerate((nothing, nothing, errors)):
                    os.dup2(instead, stream)
                serve(port, f"{folder}/port", settings)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        case ["poll", pid]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if ended else None
        case ["wait", pid]:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    raise ValueError(words)


def run_fork_server(serve: Serve) -> None:
    """Execute the commands on standard input, one per line, until it ends. The command `start` forks a server."""
    for line in sys.stdin:
        print(json.dumps(_fork(json.loads(line), serve)), flush=True)


if __name__ == "__main__":
    run_fork_server(_serve)
