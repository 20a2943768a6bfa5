"""What a batched generator yields, `{row: value or step}`, as values and ends of its rows."""

from collections.abc import Mapping
from typing import Any

from tidewire_server.batching.batch_row_types import BatchRow, Outcome
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.invocation import held_back, take_whole
from tidewire_server.endpoints.yieldables import UNSET, Append, Last
from tidewire_server.errors import InvalidValueError, StreamClosedError


def take(
    yielded: Any, rows: Mapping[int, BatchRow], known: int, endpoint: Endpoint
) -> list[tuple[BatchRow, Outcome]]:
    """Bring what was yielded into the rows' values; those that end by it, and how.

    Raises:
        InvalidValueError: It is no mapping from row to value.
    """
    if yielded is None:
        return []
    if not isinstance(yielded, Mapping):
        raise InvalidValueError(
            f"a batched generator yields {{row: value}}, and this one yielded {type(yielded).__name__}"
        )
    ended: list[tuple[BatchRow, Outcome]] = []
    for number, step in yielded.items():
        row = rows.get(number)
        if row is None:
            if isinstance(number, int) and 0 <= number < known:
                continue  # padding
            raise InvalidValueError(f"it yielded row {number!r:.40}, and the rows are 0 to {max(rows)}")
        if row.over:
            continue
        try:
            ends = _step(row, step, endpoint)
        except StreamClosedError:
            row.over = True
        except Exception as error:  # noqa: BLE001 - of this row alone
            row.over = True
            ended.append((row, error))
        else:
            if ends:
                row.over = True
                ended.append((row, final(row, endpoint)))
    return ended


def _step(row: BatchRow, step: Any, endpoint: Endpoint) -> bool:
    """Take one row's step; whether it is its last."""
    if isinstance(step, BaseException):
        raise step if isinstance(step, Exception) else held_back(step)
    if isinstance(step, Last):
        if step.value is not UNSET:
            _step(row, step.value, endpoint)
        return True
    if isinstance(step, Append):
        row.writer.append(step.x, step.at)
    else:
        take_whole(step, endpoint, row.writer, first=row.first)
    row.first = False
    return False


def final(row: BatchRow, endpoint: Endpoint) -> Outcome:
    """How a row ends with the value that it has."""
    try:
        endpoint.value.check(row.writer.value)
    except InvalidValueError as error:
        return error
    return UNSET
