"""How an endpoint's items are batched: the options, checked when they are given."""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

DEFAULT_BATCH_SIZE: Final = 16

MAX_BATCH_SIZE: Final = 65_536
"""The largest `max_batch_size`."""

MAX_BATCH_TIMEOUT: Final = 3600.0
"""The longest `batch_timeout`, in seconds."""


class BatchSlot(NamedTuple):
    """What forming a batch needs to know of one item."""

    key: Hashable = None
    """Only items of equal keys share a batch."""
    cost: float = 0.0
    """What the item takes of `max_cost`."""


@dataclass(frozen=True)
class Batching:
    """The options of a batched endpoint; see `Server.endpoint` for each."""

    max_size: int
    timeout: float
    sizes: tuple[int, ...]
    pad: Any
    cost: Callable[[Any], float] | None
    max_cost: float
    key: Callable[[Any], Hashable] | None
    bisect: bool

    @property
    def judges(self) -> bool:
        """Whether it looks into the inputs."""
        return self.key is not None or self.cost is not None

    @property
    def takes_sizes(self) -> bool:
        """Whether calls are of certain sizes only."""
        return bool(self.sizes)

    def padded(self, rows: int) -> int:
        """The size of the call for so many rows: the smallest of `sizes` that holds them."""
        return next((size for size in self.sizes if size >= rows), rows)

    def place(self, given: Any) -> BatchSlot:
        """The key and the cost of one input.

        Raises:
            ValueError: The cost is no finite number of 0 or more, or the key cannot be compared.
            Exception: Whatever the endpoint's own functions raise.
        """
        key = None if self.key is None else self.key(given)
        try:
            hash(key)
        except TypeError:
            raise ValueError(f"its key is no key of a dictionary: {type(key).__name__}") from None
        cost = 0.0 if self.cost is None else float(self.cost(given))
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"its cost is {cost}: a finite number, 0 at least")
        return BatchSlot(key, cost)


def read_batching(
    *,
    max_batch_size: int | None,
    batch_timeout: float | None,
    sizes: Iterable[int] | None,
    pad: Any,
    cost: Callable[[Any], float] | None,
    max_cost: float | None,
    key: Callable[[Any], Hashable] | None,
    bisect: bool,
) -> Batching:
    """Check the options against one another.

    Raises:
        TypeError: One is of another kind than it should be.
        ValueError: One is out of bounds, or asks for another that is not there.
    """
    allowed = () if sizes is None else tuple(sizes)
    if sizes is not None and (not allowed or any(type(size) is not int or size < 1 for size in allowed)):
        raise ValueError(f"sizes is {allowed!r}: whole numbers, 1 at least")
    if max_batch_size is None:
        max_batch_size = max(allowed, default=DEFAULT_BATCH_SIZE)
    batch_timeout = 0.0 if batch_timeout is None else batch_timeout
    if type(max_batch_size) is not int or not 1 <= max_batch_size <= MAX_BATCH_SIZE:
        raise ValueError(f"max_batch_size is {max_batch_size!r}: a whole number from 1 to {MAX_BATCH_SIZE}")
    if type(batch_timeout) not in {int, float} or not 0 <= batch_timeout <= MAX_BATCH_TIMEOUT:
        raise ValueError(f"batch_timeout is {batch_timeout!r}: seconds from 0 to {MAX_BATCH_TIMEOUT:g}")
    if allowed and max(allowed) != max_batch_size:
        raise ValueError(f"the largest of sizes={allowed} is not max_batch_size={max_batch_size}")
    if not allowed and pad is not None:
        raise ValueError("pad fills a batch up to one of sizes, and sizes is not given")
    for name, function in (("cost", cost), ("key", key)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} is a function of the input, not {function!r}")
    if (cost is None) != (max_cost is None):
        given, missing = ("cost", "max_cost") if max_cost is None else ("max_cost", "cost")
        raise ValueError(f"{given} needs {missing}: cost(input) of all items of a batch sum up to max_cost")
    if max_cost is not None and (type(max_cost) not in {int, float} or not 0 < max_cost < math.inf):
        raise ValueError(f"max_cost is {max_cost!r}: a finite number above 0")
    return Batching(
        max_size=max_batch_size,
        timeout=float(batch_timeout),
        sizes=tuple(sorted(set(allowed))),
        pad=pad,
        cost=cost,
        max_cost=math.inf if max_cost is None else float(max_cost),
        key=key,
        bisect=bisect,
    )
