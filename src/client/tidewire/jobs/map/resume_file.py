"""`ResumeFile`, the file in which a `map` records its jobs and outcomes, so that another run continues after a crash.

`resume_lines` describes its lines. The last line about an input decides what the next run does with the input (`Known`):

  last line | known as            | next run
  ----------+---------------------+----------------------------------------------------------------------------------
  none      | NEW                 | adds the input to a new job
  submit    | SUBMITTED           | repeats the request, with the other inputs of the line that have no outcome
  job       | IN_JOB              | reads the job; submits the input again if the server no longer has the job (404, 410)
  value     | SUCCEEDED           | yields the value, without a request
  failure   | FAILED              | yields the error, without a request
  failure   | REPEATED            | adds the input to a new job, because the failure is retryable or `retry_failed` is set

Lines are passed to the operating system before the client acts on them, so they survive the end of the process. The
client does not call `fsync`. If the machine crashes, the last lines can be lost, and their inputs are read or run again.
The kernel releases the lock when the process ends. A last line without a line break is the result of a kill or a full
disk, and is removed. The memory for a file is `BYTES_PER_INPUT` for each input, because only the positions of the lines
are kept.
"""

import os
import secrets
import sys
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from errno import EACCES, EAGAIN
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, Final, NamedTuple

import anyio.lowlevel
import msgspec

from tidewire.errors import (
    NOWHERE,
    ConcurrentReadError,
    ItemFailedError,
    ResumeFileError,
    Where,
)
from tidewire.jobs.map.resume_lines import (
    HEADER_START,
    VERSION,
    FailureLine,
    Header,
    JobLine,
    Line,
    SubmitLine,
    ValueLine,
    encode,
    error_members,
    indices_of,
    item_error,
    parse_header,
    ranges_of,
    read_line,
)
from tidewire.protocol.strict_json import JsonValue

BYTES_PER_INPUT: Final = 17
"""Memory for each input in the file: the last line's kind, its position, and the position of the last `submit` line."""
MAX_HEADER_BYTES: Final = 4096
"""Maximum size of the first line. If a file is not a resume file, the client reads no more bytes than this."""
MAX_GAP: Final = 2**20
"""Maximum distance of an index from the highest index in earlier lines. If it is larger, the line is damaged."""
LINES_PER_TURN: Final = 1000
"""Number of lines that are read at the start before other tasks of the event loop run."""

_LOCKED_BYTE: Final = 2**40
"""Position of the byte that is locked on Windows, where a locked byte cannot be read."""


class Known(IntEnum):
    """Status of an input, according to the last line about the input in the resume file."""

    NEW = 0
    SUBMITTED = 1
    IN_JOB = 2
    SUCCEEDED = 3
    FAILED = 4
    REPEATED = 5


class ReceivedValue(NamedTuple):
    """The value of an item as JSON, before it is validated, with its origin for error messages."""

    value: JsonValue
    where: Where = NOWHERE


@dataclass(slots=True, eq=False)
class Submission:
    """A submit of an earlier run, of which some inputs have no outcome yet.

    Attributes:
        number: Number of the submit.
        items: Indices of the inputs, in the order of the job's items.
        pending: Digests of the inputs without an outcome, by index.
        job: Id of the job; None if the file does not contain the server's response.
        is_gone: Whether the submission cannot be continued, so that its inputs without an outcome run in new jobs.
    """

    number: int
    items: list[int]
    pending: dict[int, str]
    job: str | None
    is_gone: bool = False


class ResumeFile:
    """The resume file of one `map`. Call `open` first and `close` last.

    The methods `known`, `digest`, `outcome` and `submission` return what earlier runs have written. The methods `add_…`
    append lines.

    Attributes:
        endpoint: Name of the endpoint in the first line. None if the file is new.
        key: Key from which the idempotency keys of all submits are derived.
        suspended: Whether no call of the map is running, for example because the caller's loop processes a value. Another
            map of the same thread then takes over the file, because the last traceback of a notebook keeps the map of a
            loop alive that was interrupted or has raised an error.
        thread: Identifier of the thread on which the caller's loop runs.
        coroutine: Coroutine of the task on which the caller's loop runs, if the map is an async iterator. Until it ends, a
            map in another task of the same event loop cannot take over the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, retry_failed: bool) -> None:
        """Set the path. `open` opens the file.

        Args:
            path: Path of the file.
            retry_failed: Whether to repeat all failures. If not, only retryable failures are repeated.
        """
        self.endpoint: str | None = None
        self.key: str = ""
        self.suspended: bool = False
        self.thread: int = 0
        self.coroutine: weakref.ref[Any] | None = None
        self._path = Path(path)
        self._retry_failed = retry_failed
        self._file: BinaryIO | None = None
        self._submissions: dict[int, Submission] = {}
        """Submissions by the position of their last line. Each earlier run has left at most `concurrency` of them."""
        self._next_number = 0
        self._kinds = bytearray()
        self._offsets = array("q")
        self._submits = array("q")

    # ---- opening and closing -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open, lock and read the file. A file that does not exist is created.

        Raises:
            ResumeFileError: The file cannot be opened or written, another map uses it, it is not a resume file, or one
                of its lines is damaged.
        """
        try:
            file = _open(self._path)
        except OSError as error:
            raise self._failed("open", error) from None
        self._file = file
        _open_files[id(self)] = self
        try:
            self._lock(file)
            for _ in self._read(file):
                await anyio.lowlevel.checkpoint()
        except OSError as error:
            self.close()
            raise self._failed("read", error) from None
        except BaseException:
            self.close()
            raise

    def begin(self, endpoint: str) -> None:
        """Write the first line of a new file."""
        self.endpoint, self.key = endpoint, secrets.token_urlsafe(16)
        self._append(Header(VERSION, self.key, endpoint))

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._file is not None:
            # After a failed write, `close` tries it again. The map has already reported the error.
            with suppress(OSError):
                self._file.close()
            self._file = None

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def _lock(self, file: BinaryIO) -> None:
        for other in _files_in_process():
            held = other._file
            if held is None or not other._is_left_to(self):
                continue
            if os.path.sameopenfile(held.fileno(), file.fileno()):
                other.close()
        try:
            _lock(file.fileno())
        except OSError as error:
            if error.errno not in {EACCES, EAGAIN}:
                raise self._failed("lock", error) from None
            what = f"the resume file {self._path} is in use by another map, in this process or in another one"
            raise ResumeFileError(
                what, advice="Wait until that map has ended, or pass another file."
            ) from None

    def _is_left_to(self, other: "ResumeFile") -> bool:
        """Whether another map may take over the file of this one, because the loop of this one cannot run meanwhile."""
        if not self.suspended or self.thread != other.thread:
            return False
        coroutine = self.coroutine and self.coroutine()
        # The frame of a coroutine that has ended is None.
        has_ended = getattr(coroutine, "cr_frame", None) is None
        return has_ended or (other.coroutine is not None and other.coroutine() is coroutine)

    def _read(self, file: BinaryIO) -> Iterator[None]:
        """Read all lines, and remove an incomplete last line. Yields from time to time."""
        first = file.readline(MAX_HEADER_BYTES)
        if not first:
            return
        if not first.endswith(b"\n") and len(first) < MAX_HEADER_BYTES and first.startswith(HEADER_START):
            file.truncate(0)
            return
        self._read_header(first)
        offset = len(first)
        for number, line in enumerate(iter(file.readline, b""), 2):
            if not line.endswith(b"\n"):
                file.truncate(offset)
                return
            try:
                self._note(read_line(line), offset)
            except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
                what = f"line {number} of the resume file {self._path} is damaged: {error}"
                advice = (
                    "Restore the file from a copy, or delete this line and all lines after it. "
                    "The inputs of the deleted lines then run again."
                )
                raise ResumeFileError(what, advice=advice) from None
            offset += len(line)
            if number % LINES_PER_TURN == 0:
                yield

    def _read_header(self, line: bytes) -> None:
        try:
            if not line.startswith(HEADER_START):
                raise ValueError("another start")
            header = parse_header(line)
        except (msgspec.DecodeError, ValueError):
            what = f"{self._path} exists, but it is not a resume file of a map"
            advice = "The client does not change other files. Pass the path of a new file."
            raise ResumeFileError(what, advice=advice) from None
        if header.tidewire_map != VERSION:
            what = f"the resume file {self._path} has format {header.tidewire_map}, and this client knows only {VERSION}"
            raise ResumeFileError(
                what, advice="Use the version of tidewire that wrote the file, or pass a new file."
            )
        self.endpoint, self.key = header.endpoint, header.key

    # ---- what earlier runs have written ------------------------------------------------------------------------

    def known(self, index: int) -> Known:
        """Return what the earlier runs have written about an input."""
        return Known(self._kinds[index]) if index < len(self._kinds) else Known.NEW

    def digest(self, index: int) -> str | None:
        """Return the digest of an input. None if the file does not contain the input."""
        match self.known(index):
            case Known.NEW:
                return None
            case Known.SUBMITTED | Known.IN_JOB:
                return self._submission(index).pending[index]
            case _:
                return self._outcome_line(index).sha256

    def outcome(self, index: int) -> ReceivedValue | ItemFailedError:
        """Return the outcome of an input."""
        line = self._outcome_line(index)
        if isinstance(line, ValueLine):
            return ReceivedValue(msgspec.json.decode(line.value))
        return item_error(index, line.error)

    def submission(self, index: int) -> Submission | None:
        """Return the submission that an input without an outcome belongs to. None if the input is in no submission, or
        if its submission cannot be continued.
        """
        if self.known(index) not in {Known.SUBMITTED, Known.IN_JOB}:
            return None
        found = self._submission(index)
        return None if found.is_gone else found

    def _submission(self, index: int) -> Submission:
        offset, kind = self._offsets[index], self._kinds[index]
        if offset not in self._submissions:
            line, submit = self._line(offset), self._line(self._submits[index])
            digests = dict(zip(indices_of(submit.inputs), submit.sha256, strict=True))
            items = [*indices_of(line.inputs)]
            pending = {
                item: digests[item]
                for item in items
                if self._offsets[item] == offset and self._kinds[item] == kind
            }
            job = line.id if isinstance(line, JobLine) else None
            self._submissions[offset] = Submission(submit.number, items, pending, job)
        return self._submissions[offset]

    def _outcome_line(self, index: int) -> ValueLine | FailureLine:
        line: ValueLine | FailureLine = self._line(self._offsets[index])
        return line

    def _line(self, offset: int) -> Any:
        file = self._opened()
        try:
            file.seek(offset)
            return read_line(file.readline())
        except OSError as error:
            raise self._failed("read", error) from None
        except msgspec.DecodeError:
            raise ResumeFileError(f"another program has changed the resume file {self._path}") from None

    def _note(self, line: Line, offset: int) -> None:
        """Record the position of a line of an earlier run.

        Raises:
            ValueError: The line contradicts the lines before it, or its error is not valid.
            TypeError: The error in the line has unknown members.
        """
        match line:
            case SubmitLine():
                # Count before any loop over the indices, because a damaged range may contain any number of them.
                if sum(max(0, last + 1 - first) for first, last in line.inputs) != len(line.sha256):
                    raise ValueError("the numbers of inputs and digests differ")
                self._next_number = max(self._next_number, line.number + 1)
                for index in indices_of(line.inputs):
                    self._mark(index, Known.SUBMITTED, offset)
                    self._submits[index] = offset
            case JobLine():
                submits = set()
                for index in indices_of(line.inputs):
                    if self.known(index) is not Known.SUBMITTED:
                        raise ValueError(f"input {index} was not submitted")
                    submits.add(self._submits[index])
                    self._mark(index, Known.IN_JOB, offset)
                if len(submits) > 1:
                    raise ValueError("its inputs belong to several submits")
            case ValueLine():
                self._mark(line.index, Known.SUCCEEDED, offset)
            case FailureLine():
                again = item_error(line.index, line.error).retryable or self._retry_failed
                self._mark(line.index, Known.REPEATED if again else Known.FAILED, offset)

    def _mark(self, index: int, kind: Known, offset: int) -> None:
        missing = index + 1 - len(self._kinds)
        if missing > MAX_GAP:
            # Without this check, a damaged index could take any amount of memory.
            raise ValueError(f"input {index} follows input {len(self._kinds) - 1}")
        if missing > 0:
            self._kinds.extend(bytes(missing))
            self._offsets.extend([-1] * missing)
            self._submits.extend([-1] * missing)
        self._kinds[index] = kind
        self._offsets[index] = offset

    # ---- appending lines ---------------------------------------------------------------------------------------

    def add_submit(self, digests: Mapping[int, str]) -> int:
        """Append a `submit` line, which precedes the request, and return the number of the submit.

        Args:
            digests: Digests of the job's inputs, by index.
        """
        number, self._next_number = self._next_number, self._next_number + 1
        self._append(SubmitLine(number, ranges_of(digests), [*digests.values()]))
        return number

    def add_job(self, job_id: str, items: Iterable[int]) -> None:
        """Append a `job` line, after the response to a submit.

        Args:
            job_id: Id of the job.
            items: Indices of the inputs, in the order of the job's items.
        """
        self._append(JobLine(job_id, ranges_of(items)))

    def add_outcome(self, index: int, digest: str, outcome: ReceivedValue | ItemFailedError) -> None:
        """Append the outcome of an input."""
        if isinstance(outcome, ReceivedValue):
            self._append(ValueLine(index, digest, msgspec.Raw(encode(outcome.value))))
        else:
            self._append(FailureLine(index, digest, error_members(outcome)))

    def _append(self, line: Header | Line) -> None:
        """Append a line, and pass it to the operating system."""
        file = self._opened()
        try:
            file.seek(0, os.SEEK_END)
            file.write(encode(line) + b"\n")
            file.flush()
        except OSError as error:
            raise self._failed("write", error) from None

    # ---- errors ------------------------------------------------------------------------------------------------

    def differs(self, index: int) -> ResumeFileError:
        """Create the error for an input that differs from the one in the file."""
        what = f"input {index} is not the input that the resume file {self._path} contains at this index"
        advice = (
            "Pass the same inputs and shared members as before, in the same order; more inputs may follow. "
            "For other inputs, pass a new file."
        )
        error = ResumeFileError(what, advice=advice)
        error.index = index
        return error

    def of_another_endpoint(self, name: str) -> ResumeFileError:
        """Create the error for a `map` of another endpoint."""
        what = f"the resume file {self._path} belongs to the endpoint {self.endpoint!r}, not to {name!r}"
        return ResumeFileError(what, advice="Pass a new file for each endpoint.")

    def _failed(self, action: str, error: OSError) -> ResumeFileError:
        advice = {
            "open": "Pass the path of a file that this program may create and write.",
            "lock": "Pass a file on a local disk.",
            "write": "Free space on the disk, and call map() again with the same file. No recorded result is lost.",
        }
        what = f"cannot {action} the resume file {self._path}: {error.strerror or error}"
        return ResumeFileError(what, advice=advice.get(action))

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ConcurrentReadError("this map was closed and cannot continue", advice="Call map() again.")
        return self._file


def resume_file_of(
    path: str | os.PathLike[str] | None, key: str | None, *, retry_failed: bool
) -> ResumeFile | None:
    """Check the arguments of `map` that concern the resume file."""
    if path is None:
        if retry_failed:
            raise ValueError("retry_failed needs a resume_file, which contains the failures of earlier runs")
        return None
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"resume_file must be a path, not {path!r:.80}")
    if key is not None:
        raise ValueError("pass either resume_file or idempotency_key: a resume file contains its own key")
    return ResumeFile(path, retry_failed=retry_failed)


# ---- the file in the operating system ------------------------------------------------------------------------------


def _open(path: Path) -> BinaryIO:
    """Open a file for reading and writing, or create it.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    if not S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "it is not a regular file")
    return os.fdopen(number, "r+b")


if sys.platform == "win32":
    import msvcrt

    def _lock(number: int) -> None:
        os.lseek(number, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        os.lseek(number, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


_open_files: Final = weakref.WeakValueDictionary[int, ResumeFile]()


def _files_in_process() -> list[ResumeFile]:
    """Return the resume files of this process. Some may be closed."""
    # Do not iterate over `_open_files` itself: the iteration would fail if another thread opens a file meanwhile.
    return [file for reference in _open_files.valuerefs() if (file := reference()) is not None]


def _close_in_child() -> None:
    """Close the files in a forked child. Otherwise a child that outlives a killed process would keep the lock."""
    for each in _files_in_process():
        if each._file is not None:
            # Keep the descriptor open on the null device, because the file object will close it later.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, each._file.fileno())
            os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
