"""Replace this process with the minimal example client `shell.sh`.

Usage: `tidewire conformance --client 'python -m tidewire_conformance.clients.examples.shell_client'`.
"""

import os
from pathlib import Path

if __name__ == "__main__":
    os.execvp("sh", ["sh", str(Path(__file__).with_name("shell.sh"))])  # noqa: S606, S607 - any sh in PATH is fine
