"""Saves measurements as JSON, with the machine and the package versions. Finds out which peers are installed."""

import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

HINT = "`pip install -e '.[peers]'` installs it"


@functools.cache
def installed(module: str) -> bool:
    """Return whether a peer can be imported. If not, print once that it is not measured."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a submodule is missing
        found = False
    if not found:
        # Some scripts print their results on the standard output, where another process reads them.
        print(f"{module} is not installed, so it is not measured; {HINT}", file=sys.stderr, flush=True)
    return found


def save(
    path: Path, results: Mapping[str, Any], *packages: str, also: Mapping[str, str] | None = None
) -> None:
    """Write measurements to a file and print its path.

    Args:
        path: The file; its folder is created if missing.
        results: The measurements.
        packages: Packages whose versions are recorded if installed.
        also: Versions of other software, which is not a Python package.
    """
    versions = dict(also or {})
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    environment = {"python": platform.python_version(), "cpus": os.cpu_count(), "versions": versions}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**results, **environment}, indent=1) + "\n", encoding="utf-8")
    named = "".join(f", {name} {version}" for name, version in versions.items())
    print(f"\nPython {environment['python']}, {environment['cpus']} cores{named}; written to {path}")
