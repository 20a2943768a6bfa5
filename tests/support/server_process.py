"""Reference server in its own process, which tests can stop, kill and start again at the same address."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from tempfile import TemporaryDirectory
from typing import Any, Self

from proof.forked_process import IMPORTS, Forked
from support.free_port import free_port

START_LIMIT = 30.0
"""Time limit in seconds for the start of a server."""
TESTS = Path(__file__).parent.parent


class ServerProcess:
    """A server that runs in a forked process within a `with` block."""

    imports = IMPORTS
    """Modules that are imported before the server starts."""

    def __init__(self, folder: Path, function: str, **settings: Any) -> None:
        """Configure the server.

        Args:
            folder: Folder for the error output and other files of the server.
            function: Module and name of the function that returns the server, separated by a colon.
            settings: Arguments of the function. The argument `uvicorn` instead has options of uvicorn, which then serves.
        """
        self.folder = folder
        self.function = function
        self.settings = settings
        self.port: int = free_port()
        if function.startswith("support.campaign_server"):
            self.imports = (*IMPORTS, "support.campaign_server")  # It loads a model.
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    @property
    def pid(self) -> int:
        """Process id, or 0 if the server is not running."""
        return self._process.pid if self._process else 0

    def start(self, **settings: Any) -> None:
        """Start the server, and wait until it is ready."""
        process = self._spawn(settings)
        give_up = time.monotonic() + START_LIMIT
        while not self._port_file.exists():
            if process.poll() is not None:
                code = self._end(None)
                raise ChildProcessError(f"the server exited with code {code}: {self.errors()}")
            assert time.monotonic() < give_up, "the server did not start in time"
            time.sleep(0.005)

    @property
    def _port_file(self) -> Path:
        return self.folder / "port"

    def _spawn(self, settings: dict[str, Any]) -> Forked:
        self._port_file.unlink(missing_ok=True)
        errors = os.open(self.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._process = Forked(
            "support.serve_program",
            *(self.function, str(self.port), str(self._port_file), json.dumps(self.settings | settings)),
            cwd=TESTS,
            imports=self.imports,
            streams=(os.open(os.devnull, os.O_WRONLY), errors),
        )
        return self._process

    def start_and_kill_after(self, seconds: float) -> None:
        """Start the server and kill it after some time, possibly before it is ready."""
        self._spawn({})
        time.sleep(seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(SIGKILL)

    def died(self) -> None:
        """Wait until the server process exits without a signal from the test."""
        self._end(None)

    def stop(self) -> int:
        """Stop the server with SIGTERM, and return its exit code."""
        return self._end(SIGTERM)

    def _end(self, signal: Signals | None) -> int:
        assert self._process is not None, "the server is running"
        if signal is not None:
            self._process.send_signal(signal)
        self._process.communicate()
        code, self._process = self._process.wait(), None
        return code

    def again(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()


@contextmanager
def running(function: str, **settings: Any) -> Iterator[str]:
    """Run a server that does not wait for running jobs at its end, and yield its URL."""
    settings = {"shutdown_timeout": 0.1, "cancel_timeout": 0.1} | settings
    with TemporaryDirectory() as folder, ServerProcess(Path(folder), function, **settings) as server:
        yield server.url
