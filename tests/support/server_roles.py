"""Servers and workers on one database, as processes of `tidewire serve` and `tidewire worker`."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from types import TracebackType
from typing import Self

from proof.forked_process import Forked
from support.reference_server import Peer, eventually

START_LIMIT = 60.0

APP = """
import asyncio
from pathlib import Path
from tidewire_server import Context, Server, Stream

HERE = Path(__file__).parent
server = Server(queue_interval=0.05, shutdown_timeout=5.0, cancel_timeout=2.0)


async def gate(name: str) -> None:
    while not (HERE / name).exists():
        await asyncio.sleep(0.01)


@server.endpoint(concurrency_limit=1)
async def story(gates: list[str], stream: Stream[str], ctx: Context) -> None:
    '''Write one word for each gate, when the gate is open.'''
    for number, name in enumerate(gates, 1):
        stream.progress(number, len(gates), unit="gate")
        stream.append(f"{name} ")
        try:
            await gate(name)
        except asyncio.CancelledError:
            (HERE / f"cancelled-{name}").touch()
            raise


@server.endpoint(concurrency_limit=4)
async def double(number: int) -> int:
    return 2 * number
"""


class RoleProcess:
    """A process of `tidewire serve` or `tidewire worker` within a `with` block."""

    def __init__(self, module: str, folder: Path, name: str, *arguments: str) -> None:
        self._module, self._folder, self._arguments = module, folder, arguments
        self._output, self._errors = folder / f"{name}.out", folder / f"{name}.err"
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()

    def start(self) -> None:
        """Start the process, and wait until it prints its banner."""
        streams = (
            os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWIRE_")}
        process = self._process = Forked(
            self._module, *self._arguments, cwd=self._folder, env=environment, streams=streams
        )
        eventually(lambda: "role " in self.output() or process.poll() is not None, within=START_LIMIT)
        assert process.poll() is None, self.errors()

    def output(self) -> str:
        return self._output.read_text()

    def errors(self) -> str:
        return self._errors.read_text()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._end(SIGKILL)

    def stop(self) -> int:
        """Stop the process with SIGTERM, and return its exit code."""
        return self._end(SIGTERM)

    def freeze(self) -> None:
        """Freeze the process with SIGSTOP."""
        self._signal(SIGSTOP)

    def thaw(self) -> None:
        """Continue the process after `freeze`."""
        self._signal(SIGCONT)

    def request_stop(self) -> None:
        """Send SIGTERM, and do not wait."""
        self._signal(SIGTERM)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        assert self._process is not None
        self._process.communicate()
        code, self._process = self._process.wait(), None
        return code

    def _end(self, signal: int) -> int:
        assert self._process is not None
        self._process.send_signal(signal)
        return self.wait()


class Fleet:
    """Servers and workers that run one file on one database."""

    def __init__(self, folder: Path, database: str, app: str = APP) -> None:
        self.folder = folder
        self._database = database
        self.write_app(app)
        self._started = 0

    def write_app(self, app: str) -> None:
        """Replace the file that later processes run."""
        (self.folder / "app.py").write_text(app)

    def open(self, gate: str) -> None:
        """Open a gate of the endpoint `story`."""
        (self.folder / gate).touch()

    def worker(self, *arguments: str) -> RoleProcess:
        """Return a worker that is not started yet."""
        self._started += 1
        return RoleProcess(
            "tidewire_server.commands.worker",
            self.folder,
            f"worker-{self._started}",
            *("app.py", "--log", self._database, *arguments),
        )

    @contextlib.contextmanager
    def server(self, *arguments: str) -> Iterator[tuple[RoleProcess, Peer]]:
        """Run a server until the end of the block."""
        self._started += 1
        port_file = self.folder / f"port-{self._started}"
        arguments = ("--port", "0", "--port-file", str(port_file), *arguments)
        process = RoleProcess(
            "tidewire_server",
            self.folder,
            f"server-{self._started}",
            *("app.py", "--log", self._database, *arguments),
        )
        with process, Peer(f"http://127.0.0.1:{int(port_file.read_text())}") as peer:
            yield process, peer

    def front(self, *arguments: str) -> contextlib.AbstractContextManager[tuple[RoleProcess, Peer]]:
        """Run a server without functions until the end of the block."""
        return self.server("--no-functions", *arguments)
