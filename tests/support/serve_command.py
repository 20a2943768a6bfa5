"""The command `tidewire serve` as a process, on a free port."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proof.forked_process import Forked
from support.reference_server import Peer, eventually


def run(folder: Path, *arguments: str, **environment: str) -> Forked:
    """Start the command in a folder."""
    return Forked(
        "tidewire_server",
        *arguments,
        cwd=folder,
        env=os.environ | environment,
    )


@contextmanager
def served(folder: Path, *arguments: str, port: int = 0, **environment: str) -> Iterator[tuple[Forked, Peer]]:
    """Run the command until the end of the block. It is ready when the block begins."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    process = run(folder, *arguments, "--port", str(port), "--port-file", str(port_file), **environment)
    try:
        eventually(lambda: port_file.exists() or process.poll() is not None, within=60)
        assert process.poll() is None, process.communicate()
        with Peer(f"http://127.0.0.1:{int(port_file.read_text())}") as peer:
            yield process, peer
    finally:
        process.kill()
        process.communicate()
