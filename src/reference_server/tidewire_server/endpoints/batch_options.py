"""Options of batched endpoints, their validation, and the interface of workers in other processes.

With the option `workers`, the endpoint's function runs in other processes. The server then calls `call` or `stream` of the
endpoint's `WorkerPool` instead. Both return or yield the same values as the function itself.
"""

import math
import types
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from tidewire_server.store.records import BatchBounds, BatchSlot

DEFAULT_BATCH_SIZE: Final = 16

MAX_BATCH_SIZE: Final = 65_536
"""Upper bound of the option `max_batch_size`."""

MAX_BATCH_TIMEOUT: Final = 3600.0
"""Upper bound of the option `batch_timeout`, in seconds."""


@dataclass(frozen=True)
class Batching:
    """The options of a batched endpoint after validation. `Server.endpoint` documents each option."""

    max_size: int
    timeout: float
    sizes: tuple[int, ...]
    pad: Any
    cost: Callable[[Any], float] | None
    max_cost: float
    key: Callable[[Any], Hashable] | None
    bisect: bool

    @property
    def bounds(self) -> BatchBounds:
        """Limits of each batch."""
        return BatchBounds(self.max_size, self.max_cost, self.timeout)

    def padded(self, rows: int) -> int:
        """Return the smallest of `sizes` to which a batch of `rows` inputs can be padded."""
        return next((size for size in self.sizes if size >= rows), rows)

    def place(self, value: Any) -> BatchSlot:
        """Compute the batch key and the cost of one input.

        Raises:
            ValueError: The cost is negative or not finite, or the key is not hashable.
            Exception: The endpoint's `key` or `cost` function raised an exception.
        """
        key = None if self.key is None else self.key(value)
        try:
            hash(key)
        except TypeError:
            raise ValueError(
                f"the endpoint's key function returned an unhashable {type(key).__name__}"
            ) from None
        cost = 0.0 if self.cost is None else float(self.cost(value))
        if not (math.isfinite(cost) and cost >= 0):
            raise ValueError(
                f"the endpoint's cost function returned {cost}, which is not a finite number ≥ 0"
            )
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
    """Validate batching options and fill in their defaults.

    Raises:
        TypeError: `cost` or `key` is not a function.
        ValueError: An option is out of range, or requires another option that was not passed.
    """
    allowed = () if sizes is None else tuple(sizes)
    if sizes is not None and (not allowed or any(type(size) is not int or size < 1 for size in allowed)):
        raise ValueError(f"sizes must be one or more integers ≥ 1, not {allowed!r}")
    if max_batch_size is None:
        max_batch_size = max(allowed, default=DEFAULT_BATCH_SIZE)
    batch_timeout = 0.0 if batch_timeout is None else batch_timeout
    if type(max_batch_size) is not int or not 1 <= max_batch_size <= MAX_BATCH_SIZE:
        raise ValueError(
            f"max_batch_size must be an integer from 1 to {MAX_BATCH_SIZE}, not {max_batch_size!r}"
        )
    if type(batch_timeout) not in {int, float} or not 0 <= batch_timeout <= MAX_BATCH_TIMEOUT:
        raise ValueError(
            f"batch_timeout must be from 0 to {MAX_BATCH_TIMEOUT:g} seconds, not {batch_timeout!r}"
        )
    if allowed and max(allowed) != max_batch_size:
        raise ValueError(f"the largest of sizes={allowed} must be max_batch_size={max_batch_size}")
    if not allowed and pad is not None:
        raise ValueError("pad requires sizes, because batches are padded to one of the sizes")
    for name, function in (("cost", cost), ("key", key)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function of the input, not {function!r}")
    if (cost is None) != (max_cost is None):
        passed, missing = ("cost", "max_cost") if max_cost is None else ("max_cost", "cost")
        raise ValueError(
            f"{passed} requires {missing}, because the sum of cost(input) over a batch is limited to max_cost"
        )
    if max_cost is not None and (type(max_cost) not in {int, float} or not 0 < max_cost < math.inf):
        raise ValueError(f"max_cost must be a finite number greater than 0, not {max_cost!r}")
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


class SlotCounts(NamedTuple):
    """Numbers of ready and of lost workers of an endpoint, for the metrics."""

    total: int
    ready: int
    """Workers that have loaded the function, including the busy ones."""
    busy: int
    lost: int
    """Workers that have died or were replaced since the server started."""


class WorkerPool(Protocol):
    """The workers of one endpoint. All methods must be called on one event loop."""

    call: Callable[..., Any]
    """Coroutine function that calls the endpoint's function. Its arguments are `inputs`, the validated inputs with padding, and
    `context`. It raises a `WorkerLostError` if the worker dies, or is replaced because an input was cancelled."""
    stream: Callable[..., Any]
    """Async generator function that calls the endpoint's function, if this is a generator. Its arguments and errors are those
    of `call`."""

    async def start(self, cancel_timeout: float) -> None:
        """Start the workers, and return before they are ready. If they are already started, do nothing.

        Args:
            cancel_timeout: Number of seconds after a cancellation within which the function must end the cancelled row or
                return. Otherwise, its worker is replaced.

        Raises:
            WorkersUnavailableError: The workers cannot be started.
        """
        ...

    async def close(self) -> None:
        """Stop all workers. `start` starts them again."""
        ...

    def counts(self) -> SlotCounts:
        """Return the current numbers of workers."""
        ...


class Workers(Protocol):
    """Interface for values of the option `workers`. Such a value creates the workers of an endpoint."""

    @property
    def count(self) -> int:
        """Number of workers. Each of them runs one call at a time."""
        ...

    def pool(self, name: str, function: Callable[..., Any]) -> WorkerPool:
        """Create the workers of the endpoint with this name, without starting them.

        Args:
            name: Name of the endpoint.
            function: The endpoint's function, or a class whose instances are called. It must not be asynchronous, and must not
                accept further inputs while it runs.
        """
        ...


def as_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that the server calls for each batch. If `function` is a class, this is its method `__call__`.

    The class is not instantiated, because this would load its model.

    Raises:
        TypeError: The class has no method `__call__`.
    """
    if not isinstance(function, type):
        return function
    called = getattr(function, "__call__")  # noqa: B004, B009 - the method of the instances, not of the class
    if not isinstance(called, types.FunctionType):
        raise TypeError(
            f"the class {function.__name__} cannot serve an endpoint, because it has no method __call__(self, …); "
            "its method __init__ loads the model, and __call__ processes a batch"
        )
    return types.MethodType(called, function)
