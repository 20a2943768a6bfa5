"""Runners for the foreign servers and clients in tests/interop, which were written from the specification alone."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tidewire_conformance.wire.fault_proxy import Cut

INTEROP = Path(__file__).parents[1] / "interop"
NODE = shutil.which("node")

needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")

TEXT = "Nothing is lost, né 😀 and nothing comes twice 👩‍🚀 however often the line is cut: " * 4
"""More than 64 words, so that a check occurs within the text, with characters of one to four bytes."""

SERVERS = [pytest.param("javascript", marks=needs_node), "standard-library"]


@contextlib.contextmanager
def javascript_server(**options: int) -> Iterator[str]:
    command = [str(NODE), str(INTEROP / "javascript/server.mjs")]
    with running(
        [*command, *(f"{name}={value}" for name, value in ({"retry_ms": 20} | options).items())]
    ) as url:
        yield url


@contextlib.contextmanager
def standard_library_server(retry_ms: int = 20) -> Iterator[str]:
    with running([sys.executable, str(INTEROP / "stdlib_server.py"), str(retry_ms)]) as url:
        yield url


def server(name: str) -> contextlib.AbstractContextManager[str]:
    return javascript_server(max_body_bytes=65_536) if name == "javascript" else standard_library_server()


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[str]:
    """Run a server in a child process that prints its URL first; yield the URL."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), f"{command[1]} did not start"
            yield url
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def javascript(script: str, *arguments: str, **options: object) -> list[dict[str, Any]]:
    """Run a script of the JavaScript client to its end, and return its output, one JSON object per line."""
    pairs = [f"{name}={value}" for name, value in options.items()]
    run = subprocess.run(
        [str(NODE), str(INTEROP / "javascript" / script), *arguments, *pairs],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def cut_inside_events(count: int, how: Literal["fin", "rst", "stall"]) -> Callable[[int], Cut | None]:
    """Return a plan that breaks each of the first `count` connections inside its third logged event."""

    def plan(connection: int) -> Cut | None:
        return Cut(after=connection % 9, mark=b"id:1-", occurrence=3, how=how) if connection < count else None

    return plan
