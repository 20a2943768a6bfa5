"""Fork server for commands: each runs in its own process, forked from one that has imported what it needs.

What a fresh interpreter would spend on imports, a second or more for each command, is spent once. All else is as if
`python -m MODULE` had been started: arguments, folder, environment, streams, signals, exit code. Not for tests of the
start itself.
"""

import atexit
import functools
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

_MESSAGE = 200_000
"""Bytes of one request to the process that forks, at most."""


class Forked:
    """A command that runs; as of `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        cwd: str | os.PathLike[str] = ".",
        env: Mapping[str, str] | None = None,
        imports: tuple[str, ...] = (),
    ) -> None:
        """Begin.

        Args:
            module: What `python -m` would run.
            arguments: Of the command.
            cwd: Its folder, where it looks for modules as well.
            env: Its whole environment; that of this process by default.
            imports: Modules that are imported before the fork; one process for each such list.
        """
        self._fork = _forks(imports)
        reads, writes = zip(*(os.pipe() for _ in range(2)), strict=True)
        command = {
            "module": module,
            "arguments": arguments,
            "cwd": str(Path(cwd).resolve()),
            "env": dict(os.environ if env is None else env),
        }
        self.pid: int = self._fork(command, writes)
        for each in writes:
            os.close(each)
        self.stdout: IO[str] = os.fdopen(reads[0])
        self.stderr: IO[str] = os.fdopen(reads[1])
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._fork({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        give_up = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, whatever it does."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """All that it still writes, once it has ended."""
        said: dict[str, str] = {}

        def read(name: str, stream: IO[str]) -> None:
            said[name] = "" if stream.closed else stream.read()
            stream.close()

        streams = {"stdout": self.stdout, "stderr": self.stderr}
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in streams.items()]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said["stdout"], said["stderr"]


@functools.cache
def _forks(modules: tuple[str, ...]) -> Any:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", __file__, str(theirs.fileno()), *modules]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL)
    theirs.close()
    asking = threading.Lock()

    def end() -> None:
        ours.close()
        process.wait()

    def ask(request: dict[str, Any], streams: tuple[int, ...] = ()) -> Any:
        with asking:
            socket.send_fds(ours, [json.dumps(request).encode()], streams)
            return json.loads(ours.recv(_MESSAGE))

    atexit.register(end)
    return ask


def _begin(command: dict[str, Any], streams: list[int]) -> None:
    """Become the command; does not return."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, *streams)):
        os.dup2(stream, number)
    os.closerange(3, max(nothing, *streams) + 1)
    # Not what this process has of them: their buffers would be those of no pipe.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, "wb"), "utf-8", errors, line_buffering=number == 2)
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    os.environ.clear()
    os.environ.update(command["env"])
    os.chdir(command["cwd"])
    sys.argv = [command["module"], *command["arguments"]]
    sys.path.insert(0, command["cwd"])
    runpy.run_module(command["module"], run_name="__main__", alter_sys=True)
    sys.exit()


def _serve(number: int, modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    requests = socket.socket(fileno=number)
    while True:
        words, streams, _, _ = socket.recv_fds(requests, _MESSAGE, 4)
        if not words:
            return
        request = json.loads(words)
        if "poll" in request:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.fork()
            if not answer:
                requests.close()
                _begin(request, streams)
            for stream in streams:
                os.close(stream)
        requests.send(json.dumps(answer).encode())


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2:])
