"""The reference server of the Tidewire protocol: functions become endpoints with resumable streams of results."""

import sys

try:
    from tidewire_server.batching.steps import Append, Last
    from tidewire_server.context import Context
    from tidewire_server.errors import ItemError
    from tidewire_server.server import Server
    from tidewire_server.stream import Stream
except ModuleNotFoundError as error:
    if (error.name or "").startswith("tidewire"):
        raise
    # `python -m tidewire_server` imports this package before its `__main__`, which so cannot report the error itself.
    if sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv:
        print(
            f"tidewire: `python -m tidewire_server` needs {error.name or error}: pip install 'tidewire[server]'",
            file=sys.stderr,
        )
        sys.exit(2)
    raise ModuleNotFoundError(
        f"{error.name or error} is not installed: pip install 'tidewire[server]'", name=error.name
    ) from None

__all__ = ["Append", "Context", "ItemError", "Last", "Server", "Stream"]
