"""Update the values of a batch's rows with the mappings that a batched generator yields.

Each key of a mapping is a row number. The value of a key is a new value for the row, an `Append`, a `Last` or an
exception.
"""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from tidewire_server.batching.batch_row_types import BatchRow, Outcome
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.invocation import exit_replacement
from tidewire_server.endpoints.yieldables import UNSET, Last
from tidewire_server.errors import InvalidValueError, StreamClosedError


def take(
    yielded: Any, rows: Mapping[int, BatchRow], known: int, endpoint: Endpoint
) -> list[tuple[BatchRow, Outcome]]:
    """Update the values of the rows with a yielded mapping.

    Returns:
        The rows that end because of this mapping, each with its outcome.

    Raises:
        InvalidValueError: The yielded object is not a mapping, or one of its keys is not the number of an existing row.
    """
    steps = checked_rows(yielded)
    # Check all row numbers first. After a later error, rows that had already ended would be lost, and their items would never
    # end.
    for number in steps:
        if number not in rows and not (isinstance(number, Integral) and 0 <= number < known):
            raise InvalidValueError(
                f"the generator yielded row {number!r:.40}, but the rows are 0 to {max(rows)}"
            )
    ended: list[tuple[BatchRow, Outcome]] = []
    for number, step in steps.items():
        row = rows.get(number)
        if row is None or row.over:  # padding, or an item that has ended
            continue
        try:
            if _step(row, step):
                ended.append((row, final(row, endpoint)))
                row.over = True
        except StreamClosedError:
            row.over = True
        except Exception as error:  # noqa: BLE001 - fails only this row
            row.over = True
            ended.append((row, error))
    return ended


def checked_rows(yielded: Any) -> Mapping[int, Any]:
    """Check that a yielded object is a mapping, and return it. None becomes an empty mapping.

    Raises:
        InvalidValueError: The yielded object is not a mapping.
    """
    if yielded is None:
        return {}
    if not isinstance(yielded, Mapping):
        raise InvalidValueError(
            f"a batched generator must yield {{row: value}}, but this one yielded a {type(yielded).__name__}"
        )
    return yielded


def _step(row: BatchRow, step: Any) -> bool:
    """Update the value of one row with the object that was yielded for the row. Return whether the row ends."""
    if isinstance(step, BaseException):
        raise step if isinstance(step, Exception) else exit_replacement(step)
    if isinstance(step, Last):
        if step.value is not UNSET:
            _step(row, step.value)
        return True
    row.steps.take(step)
    return False


def final(row: BatchRow, endpoint: Endpoint) -> Outcome:
    """Validate the final value of a row, and return the row's outcome."""
    row.steps.end()
    try:
        endpoint.value.check(row.writer.value)
    except InvalidValueError as error:
        return error
    return UNSET
