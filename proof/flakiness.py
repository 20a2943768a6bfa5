"""Run the suite against the reference server many times, on an idle machine and on a busy one.

A check that could not judge counts as a failure here. The second half runs next to one endless loop for each core.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from proof.servers.judge_server import findings, run_checks
from proof.servers.server_process import ForkServer
from tidewire_conformance import registry
from tidewire_conformance.judging.verdict import SkipReason

TIMES = 20
BUSY = "while True: pass"


def main(times: int = TIMES) -> int:
    """Run both halves, so many times each; 1 if a run was not all green."""
    with ForkServer() as fork_server:
        idle = _half(fork_server, times, "on an idle machine")
        with _busy():
            return idle or _half(fork_server, times, "with every core busy")


def _half(fork_server: ForkServer, times: int, how: str) -> int:
    """Some runs; 1 where one was not all green."""
    seconds, bad = [], 0
    for number in range(1, times + 1):
        with fork_server.running() as url:
            began = time.monotonic()
            report = run_checks(url, registry.checks(), budget=300.0)
            seconds.append(time.monotonic() - began)
        lacking = [
            each.check
            for each in report.run.verdicts
            if each.why in {SkipReason.UNTESTED, SkipReason.BLOCKED}
        ]
        faults = [*findings(report), *(f"{name}: not tested" for name in lacking)]
        bad += bool(faults)
        print(f"{number:3} {seconds[-1]:5.1f} s  {report.headline}", *faults, sep="\n      ", flush=True)
    middle = statistics.median(seconds)
    print(
        f"{how}: {times - bad} of {times} all green, {middle:.1f} s in the middle, {max(seconds):.1f} s at most"
    )
    return int(bad > 0)


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
