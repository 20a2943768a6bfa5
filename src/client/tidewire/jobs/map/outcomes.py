"""`MapOutcomes`, which counts the outcomes of a `map` and stores them until they are delivered in order."""

from typing import Any, Final, NamedTuple

from tidewire.errors import InvalidValueError, ItemFailedError
from tidewire.jobs.map.resume_file import ReceivedValue, ResumeFile
from tidewire.result_type import ResultType

_IN_FILE: Final = object()
"""Placeholder for an outcome that is read from the resume file when it is delivered, so that memory does not grow."""


class _Fault(NamedTuple):
    """Error that `take` raises in place of a value, even with `return_exceptions`. It ends the map."""

    error: Exception


class MapProgress(NamedTuple):
    """Progress of a `map`, passed to its `progress` callback.

    Attributes:
        taken: Number of inputs consumed so far.
        ended: Number of inputs that have succeeded or failed.
        failed: Number of inputs that have failed.
        jobs: Number of running jobs.
        total: Number of inputs, or None if the iterable has no length.
        resumed: Number of inputs whose values or failures the resume file contained.

    Example:
        def show(progress):
            print(f"{progress.ended} of {progress.total}")

        values = list(client.map("generate", inputs, progress=show))
    """

    taken: int
    ended: int
    failed: int
    jobs: int
    total: int | None
    resumed: int = 0


class MapOutcomes:
    """Outcomes that were not delivered yet. An outcome is identified by the number of its input.

    Attributes:
        taken: Number of inputs consumed so far.
        delivered: Number of delivered values, which is also the number of the next input to deliver.
    """

    def __init__(self, shape: ResultType[Any], file: ResumeFile | None, *, return_exceptions: bool) -> None:
        """Create the outcomes of a `map` without inputs.

        Args:
            shape: Type of the values.
            file: The resume file, or None.
            return_exceptions: Whether to deliver failures as values.
        """
        self._shape = shape
        self._file = file
        self._return_exceptions = return_exceptions
        self.taken: int = 0
        self.delivered: int = 0
        self._ended = self._failed = self._resumed = 0
        self._outcomes: dict[int, Any] = {}
        """Input number → outcome. With a job of an earlier run, it can arrive before the input is consumed."""

    def __contains__(self, number: int) -> bool:
        return number in self._outcomes

    def add(self, number: int, outcome: ReceivedValue | ItemFailedError) -> None:
        """Add an outcome. If its input was not consumed yet, `count` must be called when it is."""
        self._outcomes[number] = outcome
        if number < self.taken:
            self.count(number)

    def add_from_file(self, number: int, *, failed: bool) -> None:
        """Add an outcome that the resume file contains."""
        self._outcomes[number] = _IN_FILE
        self._resumed += 1
        self._ended += 1
        self._failed += failed

    def add_fault(self, number: int, error: Exception) -> None:
        """Make `take` raise an error in place of the value of an input."""
        self._outcomes[number] = _Fault(error)

    def count(self, number: int) -> None:
        """Include the outcome of a consumed input in the progress."""
        self._ended += 1
        self._failed += isinstance(self._outcomes[number], ItemFailedError)

    @property
    def ready(self) -> bool:
        """Whether `take` can return the next value."""
        return self.delivered < self.taken and self.delivered in self._outcomes

    def take(self) -> Any:
        """Return the next value. See `MapWork.take`."""
        number, self.delivered = self.delivered, self.delivered + 1
        outcome = self._outcomes.pop(number)
        if outcome is _IN_FILE and self._file is not None:
            outcome = self._file.outcome(number)
        if isinstance(outcome, ReceivedValue):
            try:
                return self._shape.validate(outcome.value, where=outcome.where)
            except InvalidValueError as error:
                self._failed += 1
                outcome = _invalid(number, outcome.value, error)
        if isinstance(outcome, _Fault):
            raise outcome.error
        if self._return_exceptions:
            return outcome
        raise outcome.__cause__ or outcome

    def progress(self, jobs: int, total: int | None) -> MapProgress:
        """Return the progress. `jobs` is the number of running jobs, and `total` that of all inputs."""
        return MapProgress(self.taken, self._ended, self._failed, jobs, total, self._resumed)

    def clear(self) -> None:
        """Drop all outcomes that were not delivered."""
        self._outcomes.clear()


def _invalid(number: int, value: Any, error: InvalidValueError) -> ItemFailedError:
    """Create the error of an input whose value is not of the type that the caller expects."""
    error.what = f"input {number}: {error.what}"
    failed = ItemFailedError(error.what, where=error.where)
    failed.index, failed.value, failed.__cause__ = number, value, error
    return failed
