"""The option `workers=ray_workers(…)` and its limits."""

from typing import Any, Final

from tidewire_server.batching.ray_workers.actor_pool import RayWorkers

MAX_ACTORS: Final = 10_000
MAX_IN_FLIGHT: Final = 65_536
MAX_TIMEOUT: Final = 86_400.0
"""Upper bounds of the arguments of `ray_workers`."""

_RESERVED: Final = frozenset(
    {"concurrency_groups", "lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name"}
)
"""Options of Ray actors that users cannot set, because the pool itself replaces actors, and runs one call at a time on each."""


def ray_workers(
    count: int,
    /,
    *,
    address: str | None = None,
    max_in_flight: int = 64,
    start_timeout: float = 300.0,
    replace_timeout: float = 600.0,
    **actor_options: Any,
) -> RayWorkers:
    """Run a batched endpoint on Ray actors. Each actor processes one batch at a time.

    If the endpoint is a class, each actor creates an instance, which loads the model, and calls it for each batch. Every node
    of the cluster must be able to import `tidewire_server` and the module that defines the class or function.

    Args:
        count: Number of actors. It is the default of the endpoint's `concurrency_limit`.
        address: Address of the Ray cluster, such as `"auto"` or `"10.0.0.5:6379"`. Without it, the environment variable
            `RAY_ADDRESS` is used. If this is not set either, the server starts a local cluster on the loopback interface.
        max_in_flight: Maximum number of yielded values and reports of a call that the server has not received yet. At this
            number, the function waits.
        start_timeout: Number of seconds within which an actor must load the function. Otherwise another actor is started.
        replace_timeout: Number of seconds for which a batch waits for an actor, for example while a lost actor is replaced.
            After this time, its inputs fail with `unavailable`.
        **actor_options: Options of `ray.remote` for the actors, such as `num_gpus=1`, `num_cpus=2` or `runtime_env={…}`.

    Raises:
        ValueError: An argument is out of range, or an actor option is reserved.
    """
    for name, value, most in (("count", count, MAX_ACTORS), ("max_in_flight", max_in_flight, MAX_IN_FLIGHT)):
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError(f"ray_workers: {name} must be an integer from 1 to {most}, not {value!r}")
    for name, seconds in (("start_timeout", start_timeout), ("replace_timeout", replace_timeout)):
        if type(seconds) not in {int, float} or not 0 < seconds <= MAX_TIMEOUT:
            raise ValueError(
                f"ray_workers: {name} must be greater than 0 and at most {MAX_TIMEOUT:g} seconds, not {seconds!r}"
            )
    if reserved := sorted(_RESERVED & set(actor_options)):
        raise ValueError(f"ray_workers: these options of Ray actors cannot be set: {', '.join(reserved)}")
    return RayWorkers(count, address, max_in_flight, start_timeout, replace_timeout, actor_options)
