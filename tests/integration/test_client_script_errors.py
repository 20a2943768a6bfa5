"""Errors of scripts, as a user sees them on the terminal: run in a process of their own, with default logging."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.free_port import free_port

SCRIPTS = {
    "a call": """
from tidewire import Client
with Client(URL) as client:
    client.run("count", n=3)
""",
    "a loop": """
from tidewire import Client
with Client(URL) as client:
    for update in client.job("j1"):
        print(update.text)
""",
    "an async call": """
import asyncio
from tidewire import AsyncClient
async def main():
    async with AsyncClient(URL) as client:
        await client.run("count", n=3)
asyncio.run(main())
""",
}


def errors_of(folder, script, **variables):
    """Run a script that fails, and return the lines on standard error."""
    path = folder / "script.py"
    path.write_text("".join(f"{name} = {value!r}\n" for name, value in variables.items()) + script)
    found = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )
    assert found.returncode == 1
    return found.stderr.splitlines()


@pytest.mark.heavy
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_without_a_server_ends_with_one_traceback_and_no_log_line(tmp_path, name):
    port = free_port()
    lines = errors_of(tmp_path, SCRIPTS[name], URL=f"http://127.0.0.1:{port}")
    assert lines[-1].startswith(
        f"tidewire.errors.TransportError: no server is listening at 127.0.0.1:{port} "
    )
    assert [at for at, line in enumerate(lines) if line.startswith("Traceback ")] == [0]
    libraries = ("httpx2", "httpcore2", "anyio", "contextlib")
    assert [line for line in lines if any(f"{os.sep}{each}" in line for each in libraries)] == []
    if name != "an async call":
        own = [line for line in lines if line.startswith("  File ") and str(tmp_path) not in line]
        assert len(own) <= 3, "frames of the background thread"


def test_a_traceback_names_the_script_first(tmp_path):
    lines = errors_of(tmp_path, SCRIPTS["a call"], URL=f"http://127.0.0.1:{free_port()}")
    assert Path(lines[1].split('"')[1]) == tmp_path / "script.py"
