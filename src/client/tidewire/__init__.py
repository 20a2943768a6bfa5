"""Client for resumable streams of results from GPU servers.

    from tidewire import Client

    with Client("http://127.0.0.1:8000") as client:
        job = client.submit("generate", prompt="def fib(", max_tokens=64)
        for update in job:
            print(update.text, end="", flush=True)

The package imports its members lazily, on first access, so that `tidewire.protocol` works without an HTTP library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidewire import errors as errors
    from tidewire.blocking.blocking_jobs import BatchJob, Job
    from tidewire.checkpoint import Checkpoint
    from tidewire.client import AsyncClient
    from tidewire.errors import TidewireError
    from tidewire.following.retry_policy import RetryPolicy
    from tidewire.hooks import Hooks
    from tidewire.jobs.batch_job import AsyncBatchJob
    from tidewire.jobs.generated_tokens import Token
    from tidewire.jobs.job import AsyncJob
    from tidewire.jobs.logprob_arrays import Logprobs
    from tidewire.jobs.map.map_iterator import AsyncMap
    from tidewire.jobs.map.outcomes import MapProgress
    from tidewire.protocol.jsonable import Binary
    from tidewire.sync import Client
    from tidewire.updates import ItemUpdate, TextDelta, Update

    __version__: str

__all__ = [
    "AsyncBatchJob",
    "AsyncClient",
    "AsyncJob",
    "AsyncMap",
    "BatchJob",
    "Binary",
    "Checkpoint",
    "Client",
    "Hooks",
    "ItemUpdate",
    "Job",
    "Logprobs",
    "MapProgress",
    "RetryPolicy",
    "TextDelta",
    "TidewireError",
    "Token",
    "Update",
]

_HOMES = {
    "AsyncBatchJob": "tidewire.jobs.batch_job",
    "AsyncClient": "tidewire.client",
    "AsyncJob": "tidewire.jobs.job",
    "AsyncMap": "tidewire.jobs.map.map_iterator",
    "BatchJob": "tidewire.blocking.blocking_jobs",
    "Binary": "tidewire.protocol.jsonable",
    "Checkpoint": "tidewire.checkpoint",
    "Client": "tidewire.sync",
    "Hooks": "tidewire.hooks",
    "ItemUpdate": "tidewire.updates",
    "Job": "tidewire.blocking.blocking_jobs",
    "Logprobs": "tidewire.jobs.logprob_arrays",
    "MapProgress": "tidewire.jobs.map.outcomes",
    "RetryPolicy": "tidewire.following.retry_policy",
    "TextDelta": "tidewire.updates",
    "TidewireError": "tidewire.errors",
    "Token": "tidewire.jobs.generated_tokens",
    "Update": "tidewire.updates",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    value: Any
    if name == "errors":
        value = import_module("tidewire.errors")
    elif name == "__version__":
        value = _version()
    elif home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def _version() -> str:
    from importlib import metadata  # noqa: PLC0415 - slow to import and rarely needed

    try:
        return metadata.version("tidewire")
    except metadata.PackageNotFoundError:
        # The package runs from a source checkout and is not installed.
        return "0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__", "errors"})
