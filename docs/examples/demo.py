"""Demonstration: generate text with log-probabilities although the connection to the server breaks three times.

The program starts the reference server with the default model. A proxy between the server and the client cuts three
connections, each in the middle of an event. At the end, the program compares the received text with the text that the
server stores. It also reads the server's counters to verify that the text was generated only once and that the client
resumed from a cursor.
"""

import contextlib
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from rich.console import Console
from rich.text import Text

from tidewire import Client
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

PROMPT = "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, "
CUTS = 3
MAX_TOKENS = 96
START_LIMIT = 120.0
"""Time limit in seconds for the start of the server. The first start is slow, because Python compiles files and loads PyTorch."""

console = Console(highlight=False, soft_wrap=True)


@contextlib.contextmanager
def reference_server() -> Iterator[str]:
    """Run `tidewire serve` on a free port, yield its URL, and stop the server with SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        port_file, log = Path(folder, "port"), Path(folder, "log")
        command = [sys.executable, "-m", "tidewire", "serve", "--port", "0", "--port-file", str(port_file)]
        with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
            try:
                yield f"http://127.0.0.1:{wait_for_port(server, port_file, log)}"
            finally:
                server.terminate()
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()


def wait_for_port(server: "subprocess.Popen[bytes]", port_file: Path, log: Path) -> int:
    """Wait until the server listens on its port, and return the port."""
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"the server ended with code {server.returncode}:\n{log.read_text()}")
        if port_file.exists() and (text := port_file.read_text().strip()):
            return int(text)
        time.sleep(0.05)
    sys.exit(f"the server did not start within {START_LIMIT:.0f} s:\n{log.read_text()}")


def cut_inside_events(connection: int) -> Cut | None:
    """Cut each of the first `CUTS` connections inside its fifth event, after nine bytes of the event's data."""
    return Cut(mark=b"\ndata:", occurrence=5, after=9) if connection < CUTS else None


class Display:
    """Prints one line per token, with the probability and text of the token and its most likely alternatives."""

    def __init__(self) -> None:
        self.tokens = 0

    def show(self, value: dict[str, Any]) -> None:
        """Print the tokens that have arrived since the last call."""
        while self.tokens < len(value["token_ids"]):
            at, self.tokens = self.tokens, self.tokens + 1
            probability = math.exp(value["logprobs"][at])
            line = Text(f"  {probability:7.2%}  ")
            line.append(f"{value['token_text'][at]!r:<16}", style=color(probability))
            for text, logprob in zip(value["top_text"][at], value["top_logprobs"][at], strict=True):
                share = 0.0 if logprob is None else math.exp(logprob)
                line.append(f"  {text!r} {share:.0%}", style="dim")
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def color(probability: float) -> str:
    """Map a probability to a color between green (likely) and red (unlikely)."""
    for bound, style in ((0.9, "bold green"), (0.5, "green"), (0.2, "yellow"), (0.05, "dark_orange")):
        if probability >= bound:
            return style
    return "red"


def counter(metrics: str, name: str, **labels: str) -> int:
    """Return the sum of all values in `/metrics` of a counter with these labels, or 0 if there is no such value."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    rows = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", metrics, re.MULTILINE)
    return int(sum(float(number) for found, number in rows if all(label in found for label in wanted)))


def main(*, hints: bool = True) -> None:
    """Run the demonstration. Exit with code 1 if data was lost or duplicated, or if the text was generated twice."""
    console.print("[bold]Starting the reference server with the default model …[/bold]")
    with reference_server() as url:
        address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        with FaultProxy(address, cut_inside_events) as proxy, Client(proxy.url) as client:
            faults = stream(client, proxy, url)
    console.print()
    if faults:
        sys.exit("\n".join(f"FAILED: {fault}" for fault in faults))
    if not hints:
        return
    console.print(
        "[bold]What to try next[/bold]\n"
        f"  {f'source {activate_script()}':64} # in each terminal; then:\n"
        "  tidewire serve                                                   # and, in another terminal:\n"
        "  tidewire describe http://127.0.0.1:8000 generate\n"
        "  tidewire call http://127.0.0.1:8000 generate prompt='import ' max_tokens=200\n"
        "  curl -N http://127.0.0.1:8000/v1/endpoints/generate/jobs -H 'Accept: text/event-stream' \\\n"
        "       -H 'Content-Type: application/json' -d '{\"input\": {\"max_tokens\": 20}}'\n"
        "  docs/tutorial/first-stream.md                                    # your own endpoint in ten minutes"
    )


def activate_script() -> str:
    """Return the path of the script that activates this environment, relative to the working directory if possible."""
    script = Path(sys.prefix, "bin", "activate")
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)


def stream(client: Client, proxy: FaultProxy, url: str) -> list[str]:
    """Generate text through the proxy, and return a list of the faults that were found. The list is empty on success."""
    console.print(f"[bold]Generating through a proxy that cuts {CUTS} connections inside an event[/bold]\n")
    job = client.submit(
        "generate",
        prompt=PROMPT,
        max_tokens=MAX_TOKENS,
        temperature=0.7,
        seed=11,
        top_logprobs=5,
        token_text=True,
    )
    display, received, cuts = Display(), "", 0
    for update in job:
        while cuts < len(proxy.cuts):
            tail = proxy.cuts[cuts][-28:]
            console.print(f"  ── cut here, after {tail!r}; reconnecting ──", style="bold red")
            cuts += 1
        received += update.text
        display.show(update.value)

    console.print("\n[bold]The text that arrived[/bold]")
    console.print(Text(PROMPT, style="dim") + Text(received), soft_wrap=True)

    held = httpx2.get(f"{url}/v1/jobs/{job.id}").json()["state"]["items"][0]["value"]
    metrics = httpx2.get(f"{url}/metrics").text
    started = counter(metrics, "tidewire_jobs_started_total", endpoint="generate")
    resumed = counter(metrics, "tidewire_stream_requests_total", cursor="yes")
    console.print(
        f"\n[bold]Result[/bold]\n"
        f"  connections cut inside an event   {len(proxy.cuts)}\n"
        f"  generations started (server)      {started}\n"
        f"  GETs with a cursor (server)       {resumed}\n"
        f"  characters received / on server   {len(received)} / {len(held['text'])}"
    )
    checks = {
        f"expected at least 2 cuts of the connection, but the proxy cut it {len(proxy.cuts)} times": len(
            proxy.cuts
        )
        >= 2,
        "a connection was cut between two events and not inside an event": all(
            inside(tail) for tail in proxy.cuts
        ),
        f"the server should generate the text once, but it started to do so {started} times": started == 1,
        f"expected at least 2 GETs with a cursor, but the server received {resumed}": resumed >= 2,
        "the received text differs from the text on the server": received == held["text"],
        "the received value differs from the value on the server": job.result() == held,
    }
    faults = [fault for fault, holds in checks.items() if not holds]
    if not faults:
        console.print("  [bold green]nothing was lost, nothing arrived twice[/bold green]")
    return faults


def inside(tail: bytes) -> bool:
    """Return whether the last bytes of a connection show that it was cut inside an event."""
    return not tail.endswith(b"\n\n")


if __name__ == "__main__":
    main()
