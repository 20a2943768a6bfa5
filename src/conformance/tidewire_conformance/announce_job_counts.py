"""Messages that announce how many jobs a run will start on each endpoint. The user may want to know, because jobs may
use an expensive GPU.

There are two messages, one before the examples run and one before the checks run. The second one needs the results of the
examples, because the checks choose their endpoints by how the jobs of the examples behaved.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from tidewire_conformance import registry
from tidewire_conformance.judging.server_probe import (
    MAX_TESTED_CONCURRENCY,
    SCRIPT,
    SampleRequest,
    Server,
)
from tidewire_conformance.registry import Check

JOBS_OF_ALL_CHECKS: Final[tuple[tuple[Callable[[Server], SampleRequest | None], int], ...]] = (
    (Server.any_sample, 90),
    (lambda server: server.long_running_sample() or server.growing_sample(), 27),
    (Server.growing_sample, 13),
    (Server.failing_sample, 3),
)
"""Functions that choose an example, each with the approximate number of jobs that all checks together start with this
example. tests/suite/test_reference.py compares the numbers with a run."""
JOBS_OF_EACH_EXAMPLE: Final = 6
"""Approximate number of jobs that the checks start on each other endpoint if the server has the endpoint `SCRIPT`. Most
checks then use `SCRIPT`."""


def announce_examples(server: Server, own_examples: Sequence[tuple[str, Any]] = ()) -> str:
    """Return the message that the suite prints before the probe runs the examples.

    Args:
        server: The server, with its endpoints.
        own_examples: Pairs of endpoint name and input that were passed with `--example`.
    """
    counts = {
        name: len(endpoint.inputs_to_run([value for owner, value in own_examples if owner == name]))
        for name, endpoint in server.endpoints.items()
    }
    used = [f"{name} ({count})" for name, count in counts.items() if count]
    unused = [name for name, count in counts.items() if not count]
    first = f"Running each example once, to observe its job: {', '.join(used) or 'none'}."
    without = (
        f" Endpoints that are not used, because they have no example: {', '.join(unused)}." if unused else ""
    )
    return f"{first}{without} To use only some endpoints, pass --endpoint NAME."


def announce_checks(server: Server, checks: Sequence[Check], repeat: int) -> str:
    """Return the message that the suite prints before the checks, with the number of jobs on each endpoint.

    Args:
        server: The server, with the samples that the probe has run.
        checks: Checks that will run.
        repeat: Number of times that each check will run.
    """
    share = repeat * len(checks) / len(registry.checks())
    jobs: dict[str, float] = {}
    seconds: dict[str, float] = {}
    if server.has_script:
        jobs[SCRIPT] = sum(number for _, number in JOBS_OF_ALL_CHECKS)
    for sample in server.samples:
        jobs.setdefault(sample.endpoint, 0 if not server.has_script else JOBS_OF_EACH_EXAMPLE)
        seconds[sample.endpoint] = max(sample.seconds, seconds.get(sample.endpoint, 0.0))
    for choose, number in () if server.has_script else JOBS_OF_ALL_CHECKS:
        if (sample_ := choose(server)) is not None:
            jobs[sample_.endpoint] += number
    parts = [
        f"about {max(1, round(number * share))} on {name}"
        + (f" (up to {seconds[name]:.2g} s each)" if name in seconds else "")
        for name, number in jobs.items()
        if number
    ]
    many = "1 check" if len(checks) == 1 else f"{len(checks)} checks"
    times = "" if repeat == 1 else f", {repeat} times each"
    return f"Running {many}{times}. They start these jobs: {', '.join(parts) or 'none'}.{_jobs_at_the_limit(server, checks)}"


def _jobs_at_the_limit(server: Server, checks: Sequence[Check]) -> str:
    """Return a sentence about the check that submits jobs up to `max_jobs_per_principal`. These jobs are long, and may be expensive."""
    limit, sample = server.limits.get("max_jobs_per_principal", math.inf), server.long_running_sample()
    reached = any("TW-SEC-024" in check.requirements for check in checks) and limit <= MAX_TESTED_CONCURRENCY
    if sample is None or sample.endpoint == SCRIPT or not reached:
        return ""
    return f" To reach max_jobs_per_principal, they may start {limit + 2} more on {sample.endpoint}, and cancel them."
