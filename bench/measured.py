"""What a script has measured: one file of JSON, with the machine and the versions that it is true of."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def save(path: Path, found: Mapping[str, Any], *packages: str, also: Mapping[str, str] | None = None) -> None:
    """Write what was found, and say where.

    Args:
        path: The file; its folder is made.
        found: What was measured.
        packages: Whose versions count, as far as they are installed.
        also: Versions of what is no package.
    """
    versions = dict(also or {})
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    around = {"python": platform.python_version(), "cpus": os.cpu_count(), "versions": versions}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**found, **around}, indent=1) + "\n", encoding="utf-8")
    named = "".join(f", {name} {version}" for name, version in versions.items())
    print(f"\nPython {around['python']}, {around['cpus']} cores{named}; written to {path}")
