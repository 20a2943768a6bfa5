"""Implementation of `map`, which submits inputs in batch jobs and collects the values in the order of the inputs.

Jobs run on the server even if no client reads them, so the client needs no background tasks while the caller processes
a value. Up to `concurrency` jobs run at the same time, and the client reads the job of the next value. This table shows
the client's action in each situation:

  situation                                   | action
  --------------------------------------------+----------------------------------------------------------------------
  fewer than `concurrency` jobs are running   | consume inputs until a job is full, and submit the job (the limit is
                                              |   `batch_size`, or the server's `max_inputs` or `max_body_bytes`)
  `concurrency` jobs are running              | read the job of the next value, and yield its values in order
  a submit has to wait, because the server    | read the running jobs meanwhile, and submit when the next attempt is due; an
  is busy, stops, or cannot be reached        |   outcome restarts the time after which the map gives up (`patience`)
  `POLL_INTERVAL` has passed                  | check the other jobs, and read those that have ended before the server
                                              |   deletes them (`running_jobs`)
  the server refuses an input (422, 424)      | record it as failed and submit the other inputs of its job
  a request is too large for the server or a  | submit its inputs in requests of at most half the size, and a single input
  gateway (413, `batch_too_large`)            |   as failed
  the values of a job are too large together  | submit the inputs without a value again, in jobs of at most half as many
  (`state_too_large`)                         |   inputs; a single input has failed
  the server no longer has a job (404, 410)   | submit its inputs without an outcome again, with another key, at most
                                              |   `MAX_LOSSES` times in a row
  a submit has the key of an expired job      | submit the inputs with another key, at most `MAX_EXPIRED_KEYS` times
  (410)                                       |
  the loop is left early                      | `aclose` of the map or of the client cancels the running jobs, unless
                                              |   the user passed an `idempotency_key` or a `resume_file`; another
                                              |   `map` with this key or file can reuse the jobs
  a connection breaks                         | send the request again with its idempotency key, so that no input runs
                                              |   twice; this key is derived from the body

A `Part` is a group of inputs that is submitted as one job. A `Submission` is a submit of an earlier run. With a resume
file, earlier runs may have submitted an input or received its outcome. The table in `resume_file` has the actions for
these inputs. The client sends no request until it needs something that the file does not contain. A job of an earlier
run counts as running while the client reads it.
"""

import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sized
from hashlib import sha256
from typing import Any, Final

import anyio

from tidewire.errors import (
    ConcurrentReadError,
    ItemFailedError,
    JobExpiredError,
    JobNotFoundError,
    RequestError,
    TidewireError,
    TotalTimeoutError,
    TransportError,
)
from tidewire.following.request_policy import RequestPolicy
from tidewire.hooks import Hook, log
from tidewire.http.api_session import RetryLaterError
from tidewire.inputs.submit_members import encoded, jsonable, options_on_the_wire
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.map.outcomes import MapOutcomes, MapProgress
from tidewire.jobs.map.parts import (
    NotValidated,
    Part,
    PartRequests,
    RunningPart,
    is_too_large,
    refused_input,
    refused_number,
    without_item_index,
)
from tidewire.jobs.map.resume_file import Known, Submission, resume_file_of
from tidewire.jobs.map.resume_lines import input_digest
from tidewire.jobs.map.running_jobs import RunningJobs
from tidewire.jobs.submit_and_attach import JobStarter
from tidewire.notebook.cell_output import kernel_shell, map_bar
from tidewire.options import check_key
from tidewire.result_type import ResultType

CONCURRENCY: Final = 4
"""Default of the maximum number of jobs that run at the same time."""
BATCH_SIZE: Final = 256
"""Default number of inputs in one job, if the server allows that many.

At most `concurrency` × `batch_size` inputs are consumed ahead of the yielded values."""
MAX_LOSSES: Final = 3
"""Maximum number of times that inputs are submitted again because the server no longer has their job. The count starts
again when one of these inputs has an outcome."""
MAX_EXPIRED_KEYS: Final = 100
"""Maximum number of idempotency keys that one submit skips, because their jobs have expired. A `map` with an
`idempotency_key` skips one more key after each run whose jobs have expired. The server deletes old keys, by default
after 24 hours."""

_WITH_OUTCOME: Final = frozenset({Known.SUCCEEDED, Known.FAILED})


class MapWork:
    """State of one `map`. The async and the blocking client share this class.

    The caller passes inputs to `feed` while `accepts_input` is true, calls `fill` to make progress, and gets the values
    from `take` while `ready()` is true. The caller also calls `listener` with each `new_progress()`. The module's
    docstring contains a table of the actions of `fill`.

    Attributes:
        finished: Whether all values were delivered or the map failed.
        closed: Whether the map was closed.
        listener: The user's `progress` callback. The blocking client calls it on the caller's thread.
    """

    def __init__(
        self,
        starter: JobStarter,
        endpoint: str | None,
        shape: ResultType[Any],
        shared: Mapping[str, Any],
        *,
        concurrency: int,
        batch_size: int,
        return_exceptions: bool,
        progress: Callable[[MapProgress], object] | None,
        key: str | None,
        resume_file: str | os.PathLike[str] | None,
        retry_failed: bool,
        total: int | None,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("batch_size", batch_size)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
        check_key(key)
        if starter.options.on_disconnect == "cancel":
            raise ValueError(
                "map does not accept on_disconnect='cancel', because the server would cancel the jobs that wait to be read; "
                "leaving the loop cancels them anyway. Use client.with_options(on_disconnect='continue').map(…)"
            )
        self.finished: bool = False
        self.closed: bool = False
        self._starter = starter
        self._endpoint = endpoint
        self._requests = PartRequests(shared, options_on_the_wire(starter.options), batch_size)
        self._concurrency = concurrency
        self._return_exceptions = return_exceptions
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be a function of a MapProgress, not {progress!r}")
        in_notebook = progress is None and kernel_shell() is not None
        self.listener: Hook[MapProgress] | None = map_bar() if in_notebook else progress
        self._total = total
        self._reported: MapProgress | None = None
        self._file = resume_file_of(resume_file, key, retry_failed=retry_failed)
        self._endpoint_name: str | None = None
        self._prepared = False
        """Whether the limits of the server and the endpoint's description are known."""
        self._leaves_running = key is not None or self._file is not None
        self._key = key or secrets.token_urlsafe(16)
        self._outcomes = MapOutcomes(shape, self._file, return_exceptions=return_exceptions)
        self._running = RunningJobs(starter)
        self._clock = starter.session.timing.clock
        self._attempts: RequestPolicy | None = None
        """Retry counters of the next submit. None before its first attempt and after each outcome."""
        self._submit_due = self._clock()
        """Time of the next attempt of the next submit."""
        self._exhausted = False
        self._new = Part()
        """New inputs that do not fill a job yet."""
        self._repeats: dict[Submission, Part] = {}
        """Submissions to repeat that do not have all of their inputs yet, with the inputs so far."""
        self._full: deque[Part] = deque()
        """Parts that are ready to be submitted."""
        self._attached: dict[Submission, Part] = {}
        """Jobs that earlier runs have started, each with its inputs."""

    # ---- inputs ------------------------------------------------------------------------------------------------

    @property
    def accepts_input(self) -> bool:
        """Whether the caller should call `feed` with the next input, or `end` if there are no more inputs."""
        return (
            self._endpoint_name is not None
            and not self._exhausted
            and not self._full
            and (self._prepared or not self._new.inputs)
            and not self.ready()
            and self._has_room()
        )

    def _has_room(self) -> bool:
        """Whether the next input stays within the limits for consumed inputs and running jobs."""
        number, file = self._outcomes.taken, self._file
        submission = None if file is None else file.submission(number)
        if number in self._outcomes or submission in self._attached:
            return True
        ahead = number - self._outcomes.delivered
        # To repeat a submission, all of its inputs are needed, even if an earlier run had a larger batch size.
        if ahead >= self._concurrency * self._requests.batch_size and not self._repeats:
            return False
        return (
            submission in self._repeats
            or len(self._running) < self._concurrency
            or (file is not None and file.known(number) in _WITH_OUTCOME)
        )

    def feed(self, value: Any) -> None:
        """Add one input. An input that cannot be sent as valid JSON is not sent, and counts as a failed item."""
        outcomes, file = self._outcomes, self._file
        number, outcomes.taken = outcomes.taken, outcomes.taken + 1
        try:
            plain = jsonable(value, f"/inputs/{number}")
            content = encoded(plain)
        except Exception as error:  # noqa: BLE001 - `take` raises it after the earlier values
            if file is not None and file.known(number) is not Known.NEW:
                self._fail_at(number, file.differs(number))
            else:
                outcomes.add(number, refused_input(number, error))
            return
        if file is None:
            self._add_new(number, content, "")
            return
        digest = input_digest(self._endpoint_name or "", self._requests.merged(plain))
        if file.digest(number) not in {None, digest}:
            self._fail_at(number, file.differs(number))
        elif (known := file.known(number)) in _WITH_OUTCOME:
            outcomes.add_from_file(number, failed=known is Known.FAILED)
        elif number in outcomes:
            outcomes.count(number)
        elif (submission := file.submission(number)) is None:
            self._add_new(number, content, digest)
        elif submission.job is None:
            self._repeat(submission, number, content, digest)
        else:
            self._attach(submission, submission.job).add(number, content, digest)

    def fail(self, error: Exception) -> None:
        """Record that the iterator of inputs raised an error. `take` raises it after the earlier values."""
        number, self._outcomes.taken = self._outcomes.taken, self._outcomes.taken + 1
        self._fail_at(number, error)

    def end(self) -> None:
        """Record that there are no more inputs."""
        self._exhausted = True
        for submission, part in self._repeats.items():
            submission.is_gone, part.submit = True, None
        self._full.extend(self._repeats.values())
        self._repeats.clear()
        self._close_full_parts()

    def _fail_at(self, number: int, error: Exception) -> None:
        """Make `take` raise an error in place of the value of an input, and consume no more inputs."""
        self._outcomes.add_fault(number, error)
        self.end()

    # ---- parts -------------------------------------------------------------------------------------------------

    def _add_new(self, number: int, content: bytes, digest: str) -> None:
        self._new.add(number, content, digest)
        self._close_full_parts()

    def _close_full_parts(self) -> None:
        """Move new inputs to `_full` when they fill a job. After the last input, move all of them."""
        while self._prepared and self._new.inputs and (self._exhausted or self._requests.is_full(self._new)):
            self._full.append(self._requests.cut(self._new))

    def _repeat(self, submission: Submission, number: int, content: bytes, digest: str) -> None:
        """Add an input to a submission that is repeated. With all its inputs, it is submitted next."""
        part = self._repeats.setdefault(submission, Part(submission, submit=submission.number))
        part.add(number, content, digest)
        if part.pending.keys() == submission.pending.keys():
            self._full.append(self._repeats.pop(submission))

    def _attach(self, submission: Submission, job_id: str) -> Part:
        """Return the part of a job that an earlier run started. The job is read when one of its values is needed."""
        part = self._attached.get(submission)
        if part is None:
            job = AsyncBatchJob(self._starter.attach_batch(job_id, None, NotValidated()))
            part = self._attached[submission] = Part(submission, {**submission.pending})
            self._running.add(RunningPart(part, job, submission.items, job.as_completed()))
        return part

    # ---- values ------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether `take` can return a value without waiting."""
        return self._outcomes.ready

    def new_progress(self) -> MapProgress | None:
        """Return the progress if it has changed since the last call of this method. None if there is no callback."""
        if self.listener is None:
            return None
        progress = self._outcomes.progress(len(self._running), self._total)
        if progress == self._reported:
            return None
        self._reported = progress
        return progress

    def take(self) -> Any:
        """Return the next value.

        Raises:
            ItemFailedError: The item failed and `return_exceptions` is False.
            InvalidInputError: The input was refused and `return_exceptions` is False.
            RequestError: A function of the endpoint failed for the input (424) and `return_exceptions` is False.
            InvalidValueError: The value does not match the `returns` type.
            ResumeFileError: The input differs from the one in the resume file, or the file cannot be read.
            Exception: The iterator of inputs raised this error, or the input cannot be converted to JSON.
        """
        try:
            return self._outcomes.take()
        except Exception:
            self.finished = True
            raise

    # ---- requests ----------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Make progress by one step: open the resume file, discover the endpoint, submit a job or read a running job.

        Afterwards check `accepts_input`, `ready()` and `finished`.

        Raises:
            ConcurrentReadError: The map was closed.
            ResumeFileError: The resume file cannot be used.
            TidewireError: The server refused to start a job, or the client could not read a job.
        """
        if self.closed:
            raise ConcurrentReadError("this map was closed and cannot continue", advice="Call map() again.")
        try:
            await self._step()
        except TidewireError as error:
            self.finished = True
            temporary = error.retryable or isinstance(error, TransportError | TotalTimeoutError)
            if self._file is not None and self._prepared and temporary:
                error.advice = (
                    "The jobs may continue on the server. To continue, call map() again with the same file."
                )
            raise

    async def _step(self) -> None:
        if self._endpoint_name is None:
            await self._begin()
        elif (
            self._exhausted
            and self._outcomes.delivered == self._outcomes.taken
            and not self._running.unread()
        ):
            self.finished = True
            self.close_file()
        elif not self._prepared:
            await self._prepare(self._endpoint_name)
        elif self._wants_submit() and (not self._running or self._clock() >= self._submit_due):
            await self._submit()
        elif (running := self._job_to_read()) is not None:
            await self._read(running)
        else:
            # The next value needs an input that is not submitted yet. Submit it, although it does not fill a job.
            self._full.append(self._requests.cut(self._new))

    def _wants_submit(self) -> bool:
        return bool(self._full) and len(self._running) < self._concurrency

    async def _begin(self) -> None:
        if self._file is not None:
            if not self._file.is_open:
                await self._file.open()
            if self._file.endpoint is not None:
                if self._endpoint not in {None, self._file.endpoint}:
                    raise self._file.of_another_endpoint(self._endpoint or "")
                self._endpoint_name = self._file.endpoint
                return
        name = await self._prepare(self._endpoint)
        if self._file is not None:
            self._file.begin(name)
        self._endpoint_name = name

    async def _prepare(self, endpoint: str | None) -> str:
        name, limits, description = await self._starter.target(endpoint)
        self._requests.limit(limits, description)
        self._running.limit_poll_interval(limits.state_ttl_s)
        self._prepared = True
        self._close_full_parts()
        return name

    async def _submit(self) -> None:
        part = self._full[0]
        while part.inputs:
            try:
                body = self._requests.body(part)
                if self._file is not None and part.submit is None:
                    part.submit = self._file.add_submit(part.pending)
                # If jobs are running, `start` does not wait for a retry, so that the client can read the jobs.
                self._attempts = (self._attempts or self._starter.policy()) if self._running else None
                job = await self._starter.start(
                    self._endpoint_name or "",
                    body,
                    self._key_of(part, body),
                    NotValidated(),
                    policy=self._attempts,
                )
            except RetryLaterError as later:
                self._submit_due = self._clock() + later.seconds
                return
            except (JobNotFoundError, JobExpiredError) as error:
                part.submit = None
                part.used_keys += 1
                if part.used_keys > MAX_EXPIRED_KEYS or not _is_lost(error):
                    raise
                continue
            except RequestError as error:
                if self._remove_refused(part, error):
                    continue
                if len(part.inputs) == 1 or not is_too_large(error):
                    raise
                self._requests.allow_half_of(part)
                self._full.popleft()
                self._cut_again(part)
                return
            self._attempts = None
            items = [*part.inputs]
            if self._file is not None:
                self._file.add_job(job.id, items)
            if not self._leaves_running:
                self._starter.running.add(job)
            self._running.add(RunningPart(part, job, items, job.as_completed()))
            break
        self._full.popleft()

    def _key_of(self, part: Part, body: bytes) -> str:
        """Return the idempotency key of a submit. Inputs that are submitted again have another key."""
        if self._file is not None:
            names = [self._file.key, f"submit {part.submit}"]
        else:
            names = [self._key, str(next(iter(part.inputs)))]
            names += [f"again {part.used_keys}"] if part.used_keys else []
        return sha256(b"\0".join([*map(str.encode, names), body])).hexdigest()

    def _remove_refused(self, part: Part, error: RequestError) -> bool:
        """If the server refused one input of a job, remove this input from the job.

        Returns False if the error does not name an input.
        """
        number = refused_number(part, error)
        if number is None:
            return False
        digest = part.remove(number)
        outcome = refused_input(number, error)
        self._outcomes.add(number, outcome)
        if self._file is not None:
            self._file.add_outcome(number, digest, outcome)
        if not self._return_exceptions:
            # The caller's loop will raise the error of this input, so the client need not submit the later inputs.
            self.end()
            for each in self._full:
                for later in [other for other in each.inputs if other > number]:
                    each.remove(later)
        return True

    def _job_to_read(self) -> RunningPart | None:
        """Return the running job to read: one of which only the end is missing, or else the job with the next value. If
        no job has this value, return the oldest job, so that another job can start when it ends.
        """
        unread = self._running.unread()
        if unread is not None:
            return unread
        number = self._outcomes.delivered
        if number in self._new.inputs and len(self._running) < self._concurrency:
            return None
        return self._running.with_input(number)

    async def _read(self, running: RunningPart) -> None:
        try:
            until = self._submit_due if self._wants_submit() else None
            await self._running.read(running, self._record, until)
        except (JobNotFoundError, JobExpiredError) as error:
            if not _is_lost(error):
                raise
            self._run_again(running, error)
        self._close_full_parts()  # `_record` may have added inputs

    def _record(self, running: RunningPart, number: int, outcome: Any) -> None:
        """Record the outcome of an input whose job is running."""
        part, self._attempts = running.part, None
        content = part.inputs.get(number)
        digest = part.remove(number)
        part.losses = 0
        is_failed = isinstance(outcome, ItemFailedError)
        if is_failed and outcome.code == "state_too_large" and len(running.items) > 1 and content is not None:
            # The size limit applies to all values of a job together. In a job with fewer inputs, this value may fit.
            half = len(running.items) // 2
            if self._requests.batch_size > half:
                self._requests.batch_size = half
                log.warning(
                    "the values of job %s are too large together; its inputs without a value run again in jobs of at most "
                    "%d inputs (batch_size)",
                    running.job.id,
                    half,
                )
            self._new.add(number, content, digest)
            return
        if is_failed:
            # Remove the index of the item, because it counts only the inputs of this job.
            reason = outcome.what.removeprefix(f"item {outcome.index}")
            if outcome.code == "worker_lost":
                # A server that was restarted with other code has refused the input.
                reason = without_item_index(reason)
            outcome.what, outcome.index = f"input {number}{reason}", number
        if self._file is not None:
            self._file.add_outcome(number, digest, outcome)
        self._outcomes.add(number, outcome)

    def _run_again(self, running: RunningPart, error: TidewireError) -> None:
        """Submit the inputs without an outcome again, because the server no longer has their job.

        Raises:
            TidewireError: The server has lost the inputs `MAX_LOSSES` times in a row. This is the passed error.
        """
        part = running.part
        if part.losses >= MAX_LOSSES:
            raise error
        log.warning(
            "%s%s; its %d inputs without an outcome run again",
            "" if running.job.id in error.what else f"job {running.job.id}: ",
            error.what,
            len(part.inputs),
        )
        self._running.remove(running)
        part.used_keys, part.losses = part.used_keys + 1, part.losses + 1
        self._cut_again(part)

    def _cut_again(self, part: Part) -> None:
        """Divide the inputs of a part into new jobs, which are submitted next."""
        if part.recorded is not None:
            part.recorded.is_gone = True
        again = []
        while part.inputs:
            again.append(self._requests.cut(part))
        self._full.extendleft(reversed(again))

    # ---- closing -----------------------------------------------------------------------------------------------

    @property
    def has_file(self) -> bool:
        """Whether the map has a resume file, which may contain values that need no waiting."""
        return self._file is not None

    def mark_suspended(self, *, suspended: bool) -> None:
        """Record whether no call of the map is running. Must be called on the thread of the caller's loop. While the map is
        suspended, another map of this thread may take over the resume file.
        """
        if self._file is not None:
            self._file.suspended, self._file.thread = suspended, threading.get_ident()

    def mark_task(self) -> None:
        """Record the current task. Until it ends, a map in another task cannot take over the resume file."""
        if self._file is not None:
            # Do not keep the coroutine alive. It would be in a reference cycle with its local variables.
            self._file.coroutine = weakref.ref(anyio.get_current_task().coro)

    @property
    def needs_closing(self) -> bool:
        """Whether there is a running job, or an open resume file."""
        return bool(self._running) or (self._file is not None and self._file.is_open)

    async def aclose(self) -> None:
        """Close the connections and the resume file, and cancel the running jobs."""
        self.closed = self.finished = True
        self._outcomes.clear()
        self.close_file()
        await self._running.aclose()

    def close_file(self) -> None:
        """Close the resume file, so that another map can use it."""
        if self._file is not None:
            self._file.close()


def _is_lost(error: TidewireError) -> bool:
    """Whether the server no longer has a job. Any other 404 comes from a proxy, or means that the URL is wrong."""
    return isinstance(error, JobExpiredError) or error.code == "job_not_found"


def total_of(inputs: Any) -> int | None:
    """Return the number of inputs, or None if the iterable has no length."""
    try:
        return len(inputs) if isinstance(inputs, Sized) else None
    except Exception:  # noqa: BLE001 - `tqdm(generator)` and many classes of datasets raise an error here
        return None
