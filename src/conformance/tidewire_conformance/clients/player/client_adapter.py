"""The seam behind which a client under test stands, and its one body: a program that speaks lines of JSON.

The program first writes its `introduction`, then reads commands on its standard input, one a line, and writes reports
on its standard output, one a line (`spec/schema/scenario.schema.json`, `$defs`: introduction, command, report). It
does one command at a time, and several programs are started where several scenarios are played at once; or as many
at a time as its introduction says (`at_once`).

what the program does                                | what comes of it
-----------------------------------------------------+---------------------------------------------------------
it cannot be started, or does not introduce itself   | `AdapterError`: nothing is known
it writes what is no report, or more than the bounds | `AdapterError`: nothing is known
it reports of what it was never asked for            | the same, for all that it is at
it ends while it has something to do                 | `AdapterDiedError`: its user would have nothing, either
it ends with several things to do                    | the same, `shared`; from then on it gets one at a time
it reports no end in time                            | `AdapterHungError`; it is stopped once it has no other work
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Final, Protocol, Self

from tidewire_conformance import specification

Tell = Callable[[Mapping[str, Any]], None]
"""Takes one report as soon as the client gives it."""

_STARTS_WITHIN = 20.0
"""Seconds until a program must have introduced itself."""
_ENDS_WITHIN = 2.0
"""Seconds that a program has after `bye`."""
MAX_LINE: Final = 128 * 2**20
"""Bytes of one line of a program."""
MAX_REPORTS: Final = 20_000
"""Reports of one command…"""
MAX_REPORTED: Final = 512 * 2**20
"""…and their bytes."""
MAX_AT_ONCE: Final = 64
"""Commands that one program is given at a time, whatever it says."""
_COMPLAINTS: Final = 4000
"""Bytes that are kept of what a program writes on its standard error, the last ones."""


class AdapterError(Exception):
    """The client under test, or what stands between, does not keep to the way of reporting."""


class AdapterHungError(AdapterError):
    """No end was reported in time."""


class AdapterDiedError(AdapterError):
    """The client ended while it had something to do.

    Attributes:
        shared: It had several things to do: which of them it died of cannot be told.
    """

    def __init__(self, message: str, *, shared: bool = False) -> None:
        super().__init__(message)
        self.shared = shared


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
            AdapterDiedError: The client ended.
            AdapterError: The client reported what is no report.
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
        self._programs = [first]
        introduction = first.introduction()
        self._name = str(introduction["client"])
        self._traits = frozenset(introduction["can"])
        self._at_once = min(introduction.get("at_once", 1), MAX_AT_ONCE)

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
            programs, self._programs = self._programs, []
        for program in programs:
            program.bye()
        for program in programs:
            program.stop()

    def run(self, command: Mapping[str, Any], tell: Tell, seconds: float) -> None:
        program, inbox = self._take(command["id"])
        try:
            program.write(command)
            until = time.monotonic() + seconds
            while "end" not in (report := inbox.take(until)):
                tell(report)
            tell(report)
        except AdapterDiedError as error:
            if error.shared:
                self._at_once = 1
            raise
        except BaseException:
            program.retired = True
            raise
        finally:
            self._give_back(program, command["id"])

    def _take(self, name: str) -> tuple["_Program", "_Inbox"]:
        with self._lock:
            for program in self._programs:
                if (inbox := program.take_on(name, self._at_once)) is not None:
                    return program, inbox
            if self._at_once > 1:
                return self._start(name)
        return self._start(name)

    def _start(self, name: str) -> tuple["_Program", "_Inbox"]:
        program = _Program(self._argv)
        program.introduction()
        inbox = program.take_on(name, 1)
        if inbox is None:
            raise AdapterDiedError(program.exit_summary())
        self._programs.append(program)
        return program, inbox

    def _give_back(self, program: "_Program", name: str) -> None:
        if program.let_go(name):
            with self._lock, contextlib.suppress(ValueError):
                self._programs.remove(program)
            program.kill()


class _Inbox:
    """Reports of one command, as they come; bounded by what a command may report."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[dict[str, Any] | AdapterError] = queue.SimpleQueue()
        self._reports = self._bytes = 0

    def put(self, report: dict[str, Any] | AdapterError, size: int = 0) -> None:
        self._reports += 1
        self._bytes += size
        if self._reports > MAX_REPORTS or self._bytes > MAX_REPORTED:
            report = AdapterError(
                f"more than {MAX_REPORTS} reports, or {MAX_REPORTED} bytes of them, on one command"
            )
        if self._reports <= MAX_REPORTS + 1:
            self._queue.put(report)

    def take(self, until: float) -> dict[str, Any]:
        left = until - time.monotonic()
        try:
            # A program that reports without end is out of time like one that reports nothing.
            report = self._queue.get(timeout=left) if left > 0 else None
        except queue.Empty:
            report = None
        if report is None:
            raise AdapterHungError("the program reported no end in time")
        if isinstance(report, AdapterError):
            raise report
        return report


class _Program:
    """One process, what it was told to do, and what it said."""

    def __init__(self, argv: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running what its user names is the purpose
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, IndexError) as error:
            raise AdapterError(f"cannot start {argv[0] if argv else 'nothing'}: {error}") from error
        self.retired = False
        """Whether it is to get no further commands."""
        self._lock = threading.Lock()
        self._greeting = _Inbox()
        self._inboxes: dict[str, _Inbox] | None = {"": self._greeting}
        """By the id of the command; None once nothing more can come."""
        self._asked: set[str] = set()
        """The ids of all commands so far: one that was given up may still be reported of."""
        self._commands: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._complaints = b""
        self._threads = [
            threading.Thread(target=target, args=[pipe], daemon=True, name="program")
            for target, pipe in (
                (self._listen_to_errors, self._process.stderr),
                (self._listen, self._process.stdout),
                (self._say, self._process.stdin),
            )
        ]
        for thread in self._threads:
            thread.start()

    def introduction(self) -> dict[str, Any]:
        try:
            told = self._greeting.take(time.monotonic() + _STARTS_WITHIN)
            for error in specification.validator("scenario", "introduction").iter_errors(told):
                raise AdapterError(f"{str(told)[:200]} is no introduction: {error.message[:200]}")
        except AdapterHungError:
            self.kill()
            raise AdapterError(
                f"the program did not introduce itself within {_STARTS_WITHIN:g} s: its first line is "
                '{"client": NAME, "can": […]}'
            ) from None
        except AdapterError:
            self.kill()
            raise
        with self._lock:
            if self._inboxes is not None:
                self._inboxes.pop("", None)
        return told

    def take_on(self, name: str, at_once: int) -> _Inbox | None:
        """Make ready for a command; None: it has enough to do, or nothing more is to be had of it."""
        with self._lock:
            if self.retired or self._inboxes is None or len(self._inboxes) >= at_once:
                return None
            self._asked.add(name)
            return self._inboxes.setdefault(name, _Inbox())

    def let_go(self, name: str) -> bool:
        """Whether it is of no more use, once this command is over."""
        with self._lock:
            if self._inboxes is None:
                return True
            self._inboxes.pop(name, None)
            return self.retired and not self._inboxes

    def write(self, command: Mapping[str, Any]) -> None:
        self._commands.put(json.dumps(command).encode() + b"\n")

    # ---- its pipes, each with a thread: none of them can hold up a run -------------------------------------------

    def _say(self, pipe: IO[bytes]) -> None:
        while (line := self._commands.get()) is not None:
            try:
                pipe.write(line)
                pipe.flush()
            except (OSError, ValueError):
                return  # it reads no more: its end is what the others hear of it

    def _listen_to_errors(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(pipe.fileno(), 65536):
                self._complaints = (self._complaints + data)[-_COMPLAINTS:]

    def _listen(self, pipe: IO[bytes]) -> None:
        fault: AdapterError | None = None
        with contextlib.suppress(OSError, ValueError):
            while line := pipe.readline(MAX_LINE):
                try:
                    self._hear(line)
                except AdapterError as error:
                    fault = error
                    break
        if fault is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDS_WITHIN)
        else:
            self._end()
        with self._lock:
            inboxes, self._inboxes = self._inboxes or {}, None
        for inbox in inboxes.values():
            inbox.put(fault or AdapterDiedError(self.exit_summary(), shared=len(inboxes) > 1))

    def _hear(self, line: bytes) -> None:
        try:
            report = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise AdapterError(f"a line that is no JSON: {line[:200]!r}") from error
        if not isinstance(report, dict):
            raise AdapterError(f"a line that is no object: {line[:200]!r}")
        name = str(report.get("id", ""))
        with self._lock:
            inboxes = self._inboxes or {}
            inbox = inboxes.get("") or inboxes.get(name)
            if inbox is None and len(inboxes) == 1:
                # Whoever reads it sees by its id that it is amiss.
                inbox = next(iter(inboxes.values()))
            if inbox is None and name not in self._asked:
                raise AdapterError(f"a report of {name!r}, which was never asked for: {line[:200]!r}")
        if inbox is not None:
            inbox.put(report, len(line))

    def exit_summary(self) -> str:
        self._threads[0].join(_ENDS_WITHIN)
        said = self._complaints.decode("utf-8", "replace").strip()
        return f"the program ended ({self._process.poll()}); it wrote: {said[-2000:] or 'nothing'}"

    # ---- its end -------------------------------------------------------------------------------------------------

    def bye(self) -> None:
        self.write({"op": "bye"})
        self._commands.put(None)

    def stop(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN)
        self.kill()

    def _end(self) -> None:
        # Its group as well: a shell leaves children behind that hold the pipes open.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    def kill(self) -> None:
        self._end()
        self._process.wait()
        self._commands.put(None)
        for thread in self._threads:
            thread.join(_ENDS_WITHIN)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()  # type: ignore[union-attr]
