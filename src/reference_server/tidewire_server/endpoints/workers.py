"""Workers that call the function of a batched endpoint outside of the server's process (`@server.endpoint(workers=…)`).

An endpoint calls the function of its `WorkerPool` in place of its own function. The function of the pool is asynchronous, takes
the same arguments and returns or yields the same values, so that a batched call does not depend on where the function runs.
"""

import types
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol


class SlotCounts(NamedTuple):
    """Numbers of an endpoint's workers, for the metrics."""

    total: int
    ready: int
    """Workers that have loaded the function, including the busy ones."""
    busy: int
    lost: int
    """Workers that have died or were replaced since the server started."""


class WorkerPool(Protocol):
    """The workers of one endpoint. All methods must be called on one event loop."""

    call: Callable[..., Any]
    """Coroutine function that calls the endpoint's function. It raises a `WorkerLostError` if the worker dies."""
    stream: Callable[..., Any]
    """Async generator function that calls the endpoint's function, if this is a generator. It raises the same error."""

    async def start(self, cancel_timeout: float) -> None:
        """Start the workers, and return before they are ready. If they were started, do nothing.

        Args:
            cancel_timeout: Time in seconds in which a function must return after `ctx.cancelled` was set. Afterwards, its
                worker is replaced.

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
    """The option `workers` of an endpoint."""

    @property
    def count(self) -> int:
        """Number of workers. Each of them runs one call at a time."""
        ...

    def pool(self, name: str, function: Callable[..., Any], *, late_joiners: bool) -> WorkerPool:
        """Create the workers of the endpoint with this name, without starting them.

        Args:
            name: Name of the endpoint.
            function: The endpoint's function, or a class whose instances are called.
            late_joiners: Whether the function is a generator that takes late joiners.
        """
        ...


def as_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that is called for a batch. If `function` is a class, this is its method `__call__`.

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
