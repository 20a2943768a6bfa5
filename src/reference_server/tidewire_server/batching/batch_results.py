"""Which result belongs to which input of a batched call."""

from typing import Any

from tidewire_server.errors import InvalidValueError


def by_row(returned: Any, rows: int, padding: int, columns: int | None) -> list[Any]:
    """The result of each row; those of padding are dropped.

    Args:
        returned: What the function returned: a value per input; or, with `columns`, one list per output.
        rows: Inputs of callers in the call.
        padding: Inputs after them that fill the batch up.
        columns: How many outputs each have a list of their own; None for one list of whole values.

    Returns:
        A value per row, or an exception where the function put one in the row's place.

    Raises:
        InvalidValueError: There are not as many results as inputs; names both numbers.
    """
    if columns is None:
        return _sized(returned, rows, padding, "values")[:rows]
    outputs = _listed(returned)
    if len(outputs) != columns:
        raise InvalidValueError(
            f"the function returned {len(outputs)} lists, and its annotation says {columns}"
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
    # A text and a mapping can be iterated over, and would pass for results if their length happened to be right.
    if isinstance(returned, str | bytes | dict | set | frozenset) or not hasattr(returned, "__len__"):
        raise InvalidValueError(f"a batched function returns a list, not {type(returned).__name__}")
    return list(returned)
