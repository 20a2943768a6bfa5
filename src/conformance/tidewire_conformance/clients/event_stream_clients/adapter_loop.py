"""Loop of an adapter program in Python: read commands, report events, and report the end.

The page `spec/sse.md` defines the lines of JSON. An adapter passes a function that opens a URL and yields events.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Any

Opened = Iterator[dict[str, Any]]
"""Events as dictionaries with `data` and, if the client shows them, `type` and `last_event_id`."""


def library(name: str, package: str = "") -> ModuleType:
    """Import the library under test, or exit with a message that names the package to install.

    Args:
        name: Name of the module.
        package: Name of the distribution, if it differs from that of the module.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        sys.exit(f"this client needs the package {package or name}: pip install {package or name} ({error})")


def serve(package: str, can: Sequence[str], open_stream: Callable[[str, dict[str, Any]], Opened]) -> None:
    """Run commands until `bye`.

    Args:
        package: Name of the distribution under test. Its version is part of the introduction.
        can: Optional abilities of the client: some of `types`, `ids`, `retry` and `reconnect`.
        open_stream: Function that requests a URL and yields its events. It may add members of the last report, such as
            `retry_ms`, to its second argument.
    """
    _write(client=f"{package} {version(package)}", can=[*can])
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "bye":
            break
        name, at_end = command["id"], dict[str, Any]()
        try:
            for event in open_stream(command["url"], at_end):
                _write(id=name, saw="event", **event)
            _write(id=name, end="closed", **at_end)
        except Exception as error:  # noqa: BLE001 - any error of the library is its result
            _write(id=name, end="failed", detail=repr(error)[:500], **at_end)


def _write(**members: Any) -> None:
    sys.stdout.write(json.dumps(members) + "\n")
    sys.stdout.flush()
