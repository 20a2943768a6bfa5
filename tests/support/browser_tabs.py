"""Chromium with several tabs in one window, of which all but one are hidden, driven through its debugging pipe.

Playwright cannot do this: it makes each page believe that it is in front.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from support.chromium import CHROMIUM
from support.reference_server import eventually
from tidewire_conformance.clients.examples.chromium_client import FLAGS

OPEN_LIMIT = 30.0
"""Seconds in which a tab must have its document."""


class BrowserTabs:
    """The tabs of one window, by the id of their target."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._unread = b""
        self._last = 0
        self._sessions: dict[str, str] = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol, and return its result. Events are ignored."""
        answer = self._answer(method, session, parameters)
        assert "error" not in answer, answer
        return answer["result"]

    def _answer(self, method: str, session: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                return answer

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = os.read(self._reads, 1 << 16)
            assert part, "Chromium has ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, url: str) -> str:
        """Open a tab in front of the others, and wait until it has the document of the URL."""
        tab = str(self.call("Target.createTarget", url=url)["targetId"])
        session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        self._sessions[tab] = session
        there = {"expression": f"location.href === {json.dumps(url)}", "returnByValue": True}

        def is_there() -> bool:
            # Between two documents, a tab has no context for an expression, which is an error.
            answer = self._answer("Runtime.evaluate", session, there)
            return bool(answer.get("result", {}).get("result", {}).get("value"))

        eventually(is_there, OPEN_LIMIT)
        return tab

    def show(self, tab: str) -> None:
        """Bring a tab to the front, which hides the others."""
        self.call("Target.activateTarget", targetId=tab)

    def evaluate(self, tab: str, expression: str) -> Any:
        """Return the value of a JavaScript expression in a tab."""
        found = self.call("Runtime.evaluate", self._sessions[tab], expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")


@contextlib.contextmanager
def browser_tabs() -> Iterator[BrowserTabs]:
    """Run Chromium while the `with` block runs."""
    commands, results = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # The browser reads commands from descriptor 3, and writes results to descriptor 4.
        shell = f'exec "$0" "$@" 3<&{commands[0]} 4>&{results[1]}'
        command = [
            "bash",
            "-c",
            shell,
            str(CHROMIUM),
            *FLAGS,
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        process = subprocess.Popen(
            command,
            pass_fds=(commands[0], results[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands[0])
        os.close(results[1])
        try:
            yield BrowserTabs(results[0], commands[1])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(results[0])
            os.close(commands[1])
