"""A server process with the bundled model, a caller that sends expensive schemas, and another caller that counts its tokens.

`SchemaAttack` measures windows with and without the attack. In the windows without it, the attacker sends the same number of
concurrent requests with an ordinary schema, so that the difference is due to the schemas.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx2

from support.reference_server import eventually

ATTACKERS = 6
"""Number of concurrent requests of the attacker."""

TOKENS = 48
"""Number of tokens of each text."""

ORDINARY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}

PROGRAM = """
import sys
from tidewire_server import Server
from tidewire_server.generation import add_generate
server = Server(tokens=("ann:attacker-token", "bob:victim-token"))
add_generate(server, threads=1)
server.run(port=0, port_file=sys.argv[1])
"""


class Window(NamedTuple):
    """What happened in a part of the time."""

    seconds: float
    tokens: int
    """Number of tokens of the other caller."""
    engine_seconds: float
    """CPU time of the engine's thread."""
    outcomes: Counter[str]
    """Numbers of the attacker's requests, by status code or finish reason."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def engine_seconds_per_token(self) -> float:
        return self.engine_seconds / max(self.tokens, 1)


class SchemaAttack:
    """Context manager that runs the server."""

    def __init__(self, folder: Path) -> None:
        self._port_file = folder / "port"
        self._log = (folder / "log").open("wb")

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", PROGRAM, str(self._port_file)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        eventually(lambda: self._port_file.exists() or self.process.poll() is not None, within=120)
        assert self.process.poll() is None, "the server did not start"
        self.start_bytes = self.peak_bytes
        self._url = f"http://127.0.0.1:{self._port_file.read_text().strip()}/v1/"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()

    @property
    def peak_bytes(self) -> int:
        """Largest resident memory of the server so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def window(self, seconds: float, schemas: Iterator[dict[str, Any]] | None = None) -> Window:
        """Run both callers for some time. Without schemas, the attacker uses an ordinary schema."""
        stop, outcomes, lock = threading.Event(), Counter[str](), threading.Lock()

        def attack() -> None:
            with self._client("attacker-token") as client:
                while not stop.is_set():
                    with lock:
                        schema = ORDINARY if schemas is None else next(schemas)
                    outcome = self._generate(client, stop, json_schema=schema)
                    with lock:
                        outcomes[outcome] += 1

        attackers = [threading.Thread(target=attack) for _ in range(ATTACKERS)]
        for each in attackers:
            each.start()
        tokens, begun, before = 0, time.monotonic(), self._engine_seconds()
        try:
            with self._client("victim-token") as client:
                while (elapsed := time.monotonic() - begun) < seconds:
                    members = {"temperature": 0, "logit_bias": {"0": -100.0}}
                    outcome = self._generate(client, threading.Event(), **members)
                    assert outcome == "length", outcome
                    tokens += TOKENS
            return Window(elapsed, tokens, self._engine_seconds() - before, outcomes)
        finally:
            stop.set()
            for each in attackers:
                each.join()

    def ratios(
        self, seconds: float, window: float, schemas: Iterator[dict[str, Any]]
    ) -> Iterator[tuple[float, Window]]:
        """Attack in every second window for some time. Windows with and without the attack take turns, because the speed of
        a machine changes over the minutes.

        Yields:
            The tokens per second of the other caller, relative to the mean of the windows before and after, and the window.
        """
        self.window(5.0)
        end, ordinary = time.monotonic() + seconds, self.window(window)
        while time.monotonic() < end:
            attacked, before, ordinary = self.window(window, schemas), ordinary, self.window(window)
            yield (
                2 * attacked.tokens_per_second / (before.tokens_per_second + ordinary.tokens_per_second),
                attacked,
            )

    def _client(self, token: str) -> httpx2.Client:
        return httpx2.Client(
            base_url=self._url, headers={"authorization": f"Bearer {token}"}, timeout=60, verify=False
        )

    def _generate(self, client: httpx2.Client, stop: threading.Event, **members: Any) -> str:
        """Generate a text, and return its finish reason, its error code, or the status code of the refusal."""
        body = {"input": {"prompt": "data = ", "max_tokens": TOKENS, **members}}
        response = client.post("endpoints/generate/jobs", json=body)
        if response.status_code != 201:
            return str(response.status_code)
        job = response.headers["location"].removeprefix("/v1/")
        with client.stream("GET", f"{job}/events") as stream:
            for line in stream.iter_lines():
                if stop.is_set() or line.startswith("event: done"):
                    break
        if stop.is_set():
            client.delete(job)
            return "stopped"
        item = client.get(job).json()["state"]["items"][0]
        return str(item["error"]["code"] if item.get("error") else item["value"]["finish_reason"])

    def _engine_seconds(self) -> float:
        """Return the CPU time of the thread of the server that has used most of it, which is that of the engine."""
        ticks = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(OSError):  # The thread has ended.
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                ticks.append(int(fields[11]) + int(fields[12]))
        return max(ticks) / os.sysconf("SC_CLK_TCK")
