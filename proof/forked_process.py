"""Launcher for Python commands of the proof and the tests, which forks each command from a process with all imports done.

A new interpreter needs a second or more for its imports. This process, the fork server, imports the modules only once. A
command behaves as with `python -m MODULE`, with the same arguments, working folder, environment, streams, signals and exit
code. Do not use the fork server in tests of the start or the end of the interpreter.
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

ROOT = Path(__file__).parents[1]
MODULE_FOLDERS = [str(ROOT), str(ROOT / "tests")]
"""Folders of the modules `proof.…` and `support.…`."""
IMPORTS = (
    "anyio._backends._asyncio",
    "httpcore2",
    "tidewire.blocking.blocking_jobs",
    "tidewire.commands.cli",
    "tidewire.http.fast_body_reader",
    "tidewire.sync",
    "tidewire_conformance.cli",
    "tidewire_server.commands.configuration",
    "tidewire_server.commands.serve_command",
    "tidewire_server.script_endpoint",
    "tidewire_server.serving.serve",
    "uvicorn",
)
"""Modules that most commands import."""
ENGINE_IMPORTS = (*IMPORTS, "tidewire_server.generation.torch_engine", "transformers")
"""Modules of a command that serves a model. Their import takes six seconds of processor time."""
_MESSAGE = 200_000
"""Maximum size in bytes of a request to the fork server."""


KEPT_SOCKETS: set[str] = set()
"""Names, as in `/proc/self/fd`, of the sockets that this process keeps open to its fork servers."""


class Forked:
    """A running command, with an interface similar to `subprocess.Popen`."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        cwd: str | os.PathLike[str] = ".",
        env: Mapping[str, str] | None = None,
        imports: tuple[str, ...] = IMPORTS,
        streams: tuple[int, int] | None = None,
    ) -> None:
        """Start the command.

        Args:
            module: The module to run, as for `python -m`.
            arguments: Command-line arguments.
            cwd: Working folder of the command, which is also added to `sys.path`.
            env: The complete environment; default is the environment of this process.
            imports: Modules imported before the fork. Each distinct tuple has its own fork server.
            streams: Descriptors of the command's stdout and stderr, which this object then closes. Default: two pipes
                that end in `self.stdout` and `self.stderr`.
        """
        self._fork = _fork_server(os.getpid(), imports)
        reads, writes = zip(*(os.pipe() for _ in range(2)), strict=True)
        if streams is not None:
            for each in writes:
                os.close(each)
            writes = streams
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
        """Return the exit code, or None while the command runs."""
        if self.returncode is None:
            self.returncode = self._fork({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        """Wait until the command ends, and return its exit code."""
        give_up = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the command, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the command with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """Wait until the command ends, and return its remaining output to stdout and stderr."""
        output: dict[str, str] = {}

        def read(name: str, stream: IO[str]) -> None:
            output[name] = "" if stream.closed else stream.read()
            stream.close()

        streams = {"stdout": self.stdout, "stderr": self.stderr}
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in streams.items()]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return output["stdout"], output["stderr"]


@functools.cache
def _fork_server(_pid: int, modules: tuple[str, ...]) -> Any:
    """Start a fork server. The cache key contains the process id, so that a forked child does not share the server's socket."""
    our_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", __file__, str(child_socket.fileno()), *modules]
    process = subprocess.Popen(command, pass_fds=[child_socket.fileno()], stdout=subprocess.DEVNULL)
    child_socket.close()
    KEPT_SOCKETS.add(f"socket:[{os.fstat(our_socket.fileno()).st_ino}]")
    lock = threading.Lock()

    def end() -> None:
        our_socket.close()
        process.wait()

    def send_request(request: dict[str, Any], streams: tuple[int, ...] = ()) -> Any:
        with lock:
            socket.send_fds(our_socket, [json.dumps(request).encode()], streams)
            return json.loads(our_socket.recv(_MESSAGE))

    atexit.register(end)
    return send_request


def _run_command(command: dict[str, Any], streams: list[int]) -> None:
    """Run the command in this forked child. Does not return."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, *streams)):
        os.dup2(stream, number)
    os.closerange(3, max(nothing, *streams) + 1)
    # Create new stream objects: the buffers of the inherited ones may contain output of the parent.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, "wb"), "utf-8", errors, line_buffering=number == 2)
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    os.environ.clear()
    os.environ.update(command["env"])
    os.chdir(command["cwd"])
    sys.argv = [command["module"], *command["arguments"]]
    sys.path.insert(0, command["cwd"])
    code = _exit_code_of_module(command["module"])
    # Do what the interpreter does at exit, but do not free the imported modules, because that takes over a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # The interpreter reports the lost output.
    os._exit(code)


def _exit_code_of_module(module: str) -> int:
    """Run a module, and return its exit code. Any exception except `SystemExit` with a code ends the interpreter as usual."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0


def _serve(number: int, modules: list[str]) -> None:
    sys.path += MODULE_FOLDERS
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
                _run_command(request, streams)
            for stream in streams:
                os.close(stream)
        requests.send(json.dumps(answer).encode())


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2:])
