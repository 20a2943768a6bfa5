"""Interface for a client under test, and an adapter for client programs that exchange lines of JSON.

The program first writes its introduction to its standard output. Then it reads commands from its standard input and
writes reports to its standard output, each on one line. `spec/schema/scenario.schema.json` defines the introduction,
commands and reports under `$defs`. By default, a program runs one command at a time, and the adapter starts several
processes to play several scenarios concurrently. A program that can run several commands concurrently states the
maximum number as `at_once` in its introduction.

behavior of the program                               | result
------------------------------------------------------+--------------------------------------------------------
cannot be started, or writes no introduction          | `AdapterError`, no verdict
writes an invalid report, or exceeds a limit          | `AdapterError`, no verdict
writes a report for an unknown command                | `AdapterError` for all of its running commands
exits while it runs one command                       | `AdapterDiedError`, so the scenario fails
exits while it runs several commands                  | `AdapterDiedError` with `shared`, so each command is repeated
does not report the end of a command in time          | `AdapterHungError`, and the process is stopped when it is idle
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

ReportCallback = Callable[[Mapping[str, Any]], None]
"""Callback for reports. It is called with each report as soon as the client has written it."""

_INTRODUCTION_TIMEOUT = 20.0
"""Time, in seconds, that a program may take to write its introduction."""
_EXIT_TIMEOUT = 2.0
"""Time, in seconds, that a program may take to exit after the command `bye`."""
MAX_LINE: Final = 128 * 2**20
"""Maximum length, in bytes, of a line that a program writes."""
MAX_REPORTS: Final = 20_000
"""Maximum number of reports that a program may write for one command."""
MAX_REPORTED: Final = 512 * 2**20
"""Maximum total size, in bytes, of the reports for one command."""
MAX_CONCURRENT_COMMANDS: Final = 64
"""Maximum number of concurrent commands for one process, even if the client declares a higher number."""
_MAX_STDERR: Final = 4000
"""Number of bytes that are kept from the end of a program's standard error."""


class AdapterError(Exception):
    """Raised if the client under test, or the program that drives it, violates the report format."""


class AdapterHungError(AdapterError):
    """Raised if the client did not report the end of a command in time."""


class AdapterDiedError(AdapterError):
    """Raised if the client exited while it was running a command.

    Attributes:
        shared: Whether the client was running several commands. It is then unknown which command caused the exit.
    """

    def __init__(self, message: str, *, shared: bool = False) -> None:
        super().__init__(message)
        self.shared = shared


class Adapter(Protocol):
    """Client under test. Implementations must be thread-safe."""

    @property
    def name(self) -> str:
        """Name of the client, as reports show it."""

    @property
    def traits(self) -> frozenset[str]:
        """Optional abilities of the client. The member `traits` of the schema lists them."""

    def run(self, command: Mapping[str, Any], on_report: ReportCallback, seconds: float) -> None:
        """Run a command and pass each report of the client to the callback. The last report says how the command ended.

        Args:
            command: Command for the client.
            on_report: Callback that is called with each report.
            seconds: Time limit for the command, in seconds.

        Raises:
            AdapterHungError: The client did not report the end of the command within the time limit.
            AdapterDiedError: The client exited before it reported the end of the command.
            AdapterError: The client sent an invalid report.
        """


class ProgramAdapter:
    """Adapter for a client program that exchanges lines of JSON over its standard input and output."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start one process of the program and read its introduction.

        Raises:
            AdapterError: The program cannot be started, or does not write an introduction.
        """
        self._argv = [*argv]
        self._lock = threading.Lock()
        first = _Program(self._argv)
        self._programs = [first]
        introduction = first.introduction()
        self.name = str(introduction["client"])
        self.traits = frozenset(introduction["can"])
        self._at_once = min(introduction.get("at_once", 1), MAX_CONCURRENT_COMMANDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send the command `bye` to all processes, then stop them."""
        with self._lock:
            programs, self._programs = self._programs, []
        for program in programs:
            program.bye()
        for program in programs:
            program.stop()

    def run(self, command: Mapping[str, Any], on_report: ReportCallback, seconds: float) -> None:
        program, inbox = self._acquire(command["id"])
        try:
            program.write(command)
            until = time.monotonic() + seconds
            while "end" not in (report := inbox.get(until)):
                on_report(report)
            on_report(report)
        except AdapterDiedError as error:
            if error.shared:
                self._at_once = 1
            raise
        except BaseException:
            program.retired = True
            raise
        finally:
            self._release(program, command["id"])

    def _acquire(self, name: str) -> tuple["_Program", "_Inbox"]:
        with self._lock:
            for program in self._programs:
                if (inbox := program.accept_command(name, self._at_once)) is not None:
                    return program, inbox
            if self._at_once > 1:
                return self._start(name)
        return self._start(name)

    def _start(self, name: str) -> tuple["_Program", "_Inbox"]:
        program = _Program(self._argv)
        program.introduction()
        inbox = program.accept_command(name, 1)
        if inbox is None:
            raise AdapterDiedError(program.exit_summary())
        self._programs.append(program)
        return program, inbox

    def _release(self, program: "_Program", name: str) -> None:
        if program.release(name):
            with self._lock, contextlib.suppress(ValueError):
                self._programs.remove(program)
            program.kill()


class _Inbox:
    """Queue for the reports on one command, with limits for their number and total size."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[dict[str, Any] | AdapterError] = queue.SimpleQueue()
        self._reports = self._bytes = 0

    def put(self, report: dict[str, Any] | AdapterError, size: int = 0) -> None:
        self._reports += 1
        self._bytes += size
        if self._reports > MAX_REPORTS or self._bytes > MAX_REPORTED:
            report = AdapterError(
                f"the program wrote more than {MAX_REPORTS} reports or {MAX_REPORTED} bytes of reports for one command"
            )
        if self._reports <= MAX_REPORTS + 1:
            self._queue.put(report)

    def get(self, until: float) -> dict[str, Any]:
        left = until - time.monotonic()
        try:
            # Check the time even if reports are queued, because a program could write reports forever.
            report = self._queue.get(timeout=left) if left > 0 else None
        except queue.Empty:
            report = None
        if report is None:
            raise AdapterHungError("the program did not report an end in time")
        if isinstance(report, AdapterError):
            raise report
        return report


class _Program:
    """Running process of a client program, with its pipes and its current commands."""

    def __init__(self, argv: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user chose the command
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, IndexError) as error:
            raise AdapterError(f"cannot start {argv[0] if argv else 'an empty command'}: {error}") from error
        self.retired = False
        """True if the process must not get further commands."""
        self._lock = threading.Lock()
        self._introduction_inbox = _Inbox()
        self._inboxes: dict[str, _Inbox] | None = {"": self._introduction_inbox}
        """Inboxes by command id, or None once the process can no longer send reports."""
        self._command_ids: set[str] = set()
        """Ids of all commands sent so far. Late reports may arrive for a command that timed out."""
        self._commands: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stderr = b""
        self._threads = [
            threading.Thread(target=target, args=[pipe], daemon=True, name="program")
            for target, pipe in (
                (self._read_stderr, self._process.stderr),
                (self._read_reports, self._process.stdout),
                (self._write_commands, self._process.stdin),
            )
        ]
        for thread in self._threads:
            thread.start()

    def introduction(self) -> dict[str, Any]:
        try:
            introduction = self._introduction_inbox.get(time.monotonic() + _INTRODUCTION_TIMEOUT)
            for error in specification.validator("scenario", "introduction").iter_errors(introduction):
                raise AdapterError(f"{str(introduction)[:200]} is not an introduction: {error.message[:200]}")
        except AdapterHungError:
            self.kill()
            raise AdapterError(
                f'the program did not write the line {{"client": NAME, "can": […]}} within {_INTRODUCTION_TIMEOUT:g} s'
            ) from None
        except AdapterError:
            self.kill()
            raise
        with self._lock:
            if self._inboxes is not None:
                self._inboxes.pop("", None)
        return introduction

    def accept_command(self, name: str, at_once: int) -> _Inbox | None:
        """Create the inbox for a command.

        Returns None if the process is busy, has exited, or must not run another command.
        """
        with self._lock:
            if self.retired or self._inboxes is None or len(self._inboxes) >= at_once:
                return None
            self._command_ids.add(name)
            return self._inboxes.setdefault(name, _Inbox())

    def release(self, name: str) -> bool:
        """Remove an ended command. Returns True if the process has exited, or is idle and must not get new commands."""
        with self._lock:
            if self._inboxes is None:
                return True
            self._inboxes.pop(name, None)
            return self.retired and not self._inboxes

    def write(self, command: Mapping[str, Any]) -> None:
        self._commands.put(json.dumps(command).encode() + b"\n")

    # ---- pipes; each pipe has a thread, so that a full pipe cannot block a run --------------------------------------

    def _write_commands(self, pipe: IO[bytes]) -> None:
        while (line := self._commands.get()) is not None:
            try:
                pipe.write(line)
                pipe.flush()
            except (OSError, ValueError):
                return  # The process closed its input. The thread that reads its output will report the exit.

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(pipe.fileno(), 65536):
                self._stderr = (self._stderr + data)[-_MAX_STDERR:]

    def _read_reports(self, pipe: IO[bytes]) -> None:
        fault: AdapterError | None = None
        with contextlib.suppress(OSError, ValueError):
            while line := pipe.readline(MAX_LINE):
                try:
                    self._dispatch(line)
                except AdapterError as error:
                    fault = error
                    break
        if fault is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT)
        else:
            self._kill_process_group()
        with self._lock:
            inboxes, self._inboxes = self._inboxes or {}, None
        for inbox in inboxes.values():
            inbox.put(fault or AdapterDiedError(self.exit_summary(), shared=len(inboxes) > 1))

    def _dispatch(self, line: bytes) -> None:
        try:
            report = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise AdapterError(f"the program wrote a line that is not JSON: {line[:200]!r}") from error
        if not isinstance(report, dict):
            raise AdapterError(f"the program wrote a line that is not a JSON object: {line[:200]!r}")
        name = str(report.get("id", ""))
        with self._lock:
            inboxes = self._inboxes or {}
            inbox = inboxes.get("") or inboxes.get(name)
            if inbox is None and len(inboxes) == 1:
                # Only one command is running, so deliver the report to it. The reader of the command then raises an
                # error about the unknown id.
                inbox = next(iter(inboxes.values()))
            if inbox is None and name not in self._command_ids:
                raise AdapterError(
                    f"the program wrote a report for {name!r}, but no command has this id: {line[:200]!r}"
                )
        if inbox is not None:
            inbox.put(report, len(line))

    def exit_summary(self) -> str:
        self._threads[0].join(_EXIT_TIMEOUT)
        output = self._stderr.decode("utf-8", "replace").strip()
        return f"the program exited with {self._process.poll()}; standard error: {output[-2000:] or 'empty'}"

    # ---- shutdown ------------------------------------------------------------------------------------------------

    def bye(self) -> None:
        self.write({"op": "bye"})
        self._commands.put(None)

    def stop(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT)
        self.kill()

    def _kill_process_group(self) -> None:
        # Kill the whole process group. Otherwise, the children of a shell could keep the pipes open.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    def kill(self) -> None:
        self._kill_process_group()
        self._process.wait()
        self._commands.put(None)
        for thread in self._threads:
            thread.join(_EXIT_TIMEOUT)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()  # type: ignore[union-attr]
