"""The command `tidewire serve` as a process, on a free port."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proof.forked_process import ENGINE_IMPORTS, IMPORTS, Forked
from support.reference_server import Peer, eventually


def run(folder: Path, *arguments: str, model: bool = False, **environment: str) -> Forked:
    """Start the command in a folder. With `model`, the modules of the engine are imported before the fork."""
    return Forked(
        "tidewire_server",
        *arguments,
        cwd=folder,
        env=os.environ | environment,
        imports=ENGINE_IMPORTS if model else IMPORTS,
    )


@contextmanager
def served(
    folder: Path, *arguments: str, port: int = 0, model: bool = False, **environment: str
) -> Iterator[tuple[Forked, Peer]]:
    """Run the command until the end of the block. It is ready when the block begins."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    process = run(
        folder, *arguments, "--port", str(port), "--port-file", str(port_file), model=model, **environment
    )
    try:
        eventually(lambda: port_file.exists() or process.poll() is not None, within=60)
        assert process.poll() is None, process.communicate()
        with Peer(f"http://127.0.0.1:{int(port_file.read_text())}") as peer:
            yield process, peer
    finally:
        process.kill()
        process.communicate()
