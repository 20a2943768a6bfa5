"""`tidewire serve --reload`: serve in a child process, and restart it when a Python file changes. For development only."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import watchfiles

from tidewire_server.commands.flags import flag_of, variable_of


def serve_with_reload(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Each signal also ends the child process.

    If the changed code cannot be imported, the child process reports the error and ends, and the next change starts it
    again.

    Args:
        arguments: Arguments of the command, with the option `--reload`.
        folder: Folder in which Python files are watched, including all of its subfolders.
        environment: Environment variables that are added to this process's variables for the child process.

    Returns:
        The exit code of the last child process.
    """
    words = list(arguments[1:] if arguments[:1] == ["serve"] else arguments)
    # Pass -P. Otherwise a file such as `json.py` in the working directory would replace a module of the standard library.
    command = [sys.executable, "-P", "-m", "tidewire_server", *(w for w in words if w != flag_of("reload"))]
    variables = os.environ | environment | {variable_of("reload"): "false"}
    stopped = threading.Event()
    children: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        # Use a separate process group. Otherwise the child would receive a Ctrl-C of the terminal twice.
        group: dict[str, Any] = {"process_group": 0} if hasattr(os, "setpgid") else {}
        children[:] = [subprocess.Popen(command, env=variables, **group)]  # noqa: S603 - the command is this one
        return children[0]

    hangup = getattr(signal, "SIGHUP", None)  # not on Windows

    def forward(signum: int, _frame: object) -> None:
        stopped.set()
        for each in children:
            if each.poll() is None:
                # Send SIGTERM instead of SIGHUP. The child ignores SIGHUP, and would keep the port after the terminal is closed.
                each.send_signal(signal.SIGTERM if signum == hangup else signum)

    ends = [signal.SIGINT, signal.SIGTERM]
    if hangup and signal.getsignal(hangup) is signal.SIG_DFL:  # `nohup` has set SIG_IGN.
        ends.append(hangup)
    before = [(each, signal.signal(each, forward)) for each in ends]
    try:
        child = start()
        for changes in watchfiles.watch(
            folder, watch_filter=watchfiles.PythonFilter(), stop_event=stopped, raise_interrupt=False
        ):
            names = ", ".join(sorted({_name(path, folder) for _, path in changes}))
            print(f"tidewire serve: {names} changed; restarting", file=sys.stderr, flush=True)
            child.terminate()
            child.wait()
            if stopped.is_set():
                break
            child = start()
            if stopped.is_set():  # the signal arrived before the new child was started
                child.terminate()
        return child.wait()
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def _name(path: str, folder: Path) -> str:
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path
