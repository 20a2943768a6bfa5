"""Assign the results of a batched call to the inputs of the call."""

from typing import Any

from tidewire_server.errors import InvalidValueError


def by_row(returned: Any, rows: int, padding: int, columns: int | None) -> list[Any]:
    """Split the return value of a batched call into one result per row. Results for padding inputs are dropped.

    Args:
        returned: Return value of the function. It is a list of values or, if `columns` is not None, one list per output.
        rows: Number of inputs, without padding.
        padding: Number of padding inputs at the end of the batch.
        columns: Number of outputs if the function returns one list per output, or None if it returns a single list of
            values.

    Returns:
        The result of each row: a value, or an exception if the function returned an exception for this row.

    Raises:
        InvalidValueError: The return value is not a list, or the number of results differs from the number of inputs.
    """
    if columns is None:
        return _sized(returned, rows, padding, "values")[:rows]
    outputs = _listed(returned)
    if len(outputs) != columns:
        raise InvalidValueError(
            f"the function returned {len(outputs)} lists, but its annotation declares {columns}"
        )
    names = [f"values in list {number} of {columns}" for number in range(1, columns + 1)]
    lists = [_sized(output, rows, padding, name) for output, name in zip(outputs, names, strict=True)]
    return [_joined(row) for row in zip(*lists, strict=True)][:rows]


def _joined(row: tuple[Any, ...]) -> Any:
    failed = next((value for value in row if isinstance(value, BaseException)), None)
    if failed is not None:
        return failed
    return row[0] if len(row) == 1 else row


def _sized(returned: Any, rows: int, padding: int, what: str) -> list[Any]:
    results = _listed(returned)
    if len(results) != rows + padding:
        padded = f" ({padding} of them padding)" if padding else ""
        raise InvalidValueError(
            f"the function returned {len(results)} {what} for {rows + padding} inputs{padded}"
        )
    return results


def _listed(returned: Any) -> list[Any]:
    # Reject strings and mappings, although they are iterable. If the length of such a value matched, `list` would split
    # it into items.
    if isinstance(returned, str | bytes | dict | set | frozenset) or not hasattr(returned, "__len__"):
        raise InvalidValueError(f"a batched function must return a list, not {type(returned).__name__}")
    return list(returned)
