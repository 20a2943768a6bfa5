"""The seam behind which a client under test stands, and its one body: a program that speaks lines of JSON.

The program first writes its `introduction`, then reads commands on its standard input, one a line, and writes reports
on its standard output, one a line (`spec/schema/scenario.schema.json`, `$defs`: introduction, command, report). It
does one command at a time; several programs are started where several scenarios are played at once.
"""

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

Tell = Callable[[Mapping[str, Any]], None]
"""Takes one report as soon as the client gives it."""

_STARTS_WITHIN = 20.0
"""Seconds until a program must have introduced itself."""
_ENDS_WITHIN = 2.0
"""Seconds that a program has after `bye`."""


class AdapterError(Exception):
    """The client under test, or what stands between, does not keep to the way of reporting."""


class AdapterHungError(AdapterError):
    """No end was reported in time."""


class Adapter(Protocol):
    """A client under test. It may be used from several threads at once."""

    @property
    def name(self) -> str:
        """For reports."""

    @property
    def traits(self) -> frozenset[str]:
        """What it can do beside following a job: `traits` of the schema."""

    def run(self, command: Mapping[str, Any], tell: Tell, seconds: float) -> None:
        """Let the client do what a command says, and tell each report, the end as the last.

        Raises:
            AdapterHungError: There was no end after so many seconds; the client has been stopped.
            AdapterError: The client broke down, or reported what is no report.
        """


class ProgramAdapter:
    """Any program that speaks lines of JSON on its standard input and output."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start the program once, to be introduced.

        Raises:
            AdapterError: It cannot be started, or does not introduce itself.
        """
        self._argv = [*argv]
        self._lock = threading.Lock()
        first = _Program(self._argv)
        self._idle = [first]
        introduction = first.read(time.monotonic() + _STARTS_WITHIN)
        self._name = str(introduction.get("client") or self._argv[0])
        self._traits = frozenset(introduction.get("can", ()))

    @property
    def name(self) -> str:
        return self._name

    @property
    def traits(self) -> frozenset[str]:
        return self._traits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Tell all programs to end."""
        with self._lock:
            programs, self._idle = self._idle, []
        for program in programs:
            program.stop()

    def run(self, command: Mapping[str, Any], tell: Tell, seconds: float) -> None:
        program = self._take()
        try:
            program.write(command)
            until = time.monotonic() + seconds
            while True:
                report = program.read(until)
                tell(report)
                if "end" in report:
                    break
        except BaseException:
            program.kill()
            raise
        with self._lock:
            self._idle.append(program)

    def _take(self) -> "_Program":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        program = _Program(self._argv)
        program.read(time.monotonic() + _STARTS_WITHIN)
        return program


class _Program:
    """One process, and what it has written so far."""

    def __init__(self, argv: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running what its user names is the purpose
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise AdapterError(f"cannot start {argv[0]}: {error}") from error
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._complaints: deque[bytes] = deque(maxlen=20)
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._listen, self._listen_to_errors)
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for above
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it was asked for above
        self._complaints.extend(self._process.stderr)

    def write(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for above
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise AdapterError(self._broken_down()) from error

    def read(self, until: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise AdapterHungError("the program reported no end in time") from None
        if not line:
            raise AdapterError(self._broken_down())
        try:
            report = json.loads(line)
        except ValueError as error:
            raise AdapterError(f"a line that is no JSON: {line[:200]!r}") from error
        if not isinstance(report, dict):
            raise AdapterError(f"a line that is no object: {line[:200]!r}")
        return report

    def _broken_down(self) -> str:
        self.kill()
        said = b"".join(self._complaints).decode("utf-8", "replace").strip()
        return f"the program ended ({self._process.returncode}); it wrote: {said[-2000:] or 'nothing'}"

    def stop(self) -> None:
        with contextlib.suppress(AdapterError):
            self.write({"op": "bye"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN)
        self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join(_ENDS_WITHIN)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
