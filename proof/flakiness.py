"""Runs the suite repeatedly against the reference server, first on an idle machine, then on a busy machine.

A check without a verdict counts as a failure. To make the machine busy, one endless loop per CPU core runs during the
second half.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from proof.servers.judge_server import findings, run_checks
from proof.servers.server_process import running_server
from tidewire_conformance import registry
from tidewire_conformance.judging.verdict import SkipReason

TIMES = 20
BUSY_LOOP = "while True: pass"


def main(times: int = TIMES) -> int:
    """Run the suite `times` times on the idle machine and `times` times on the busy machine.

    Returns 1 if any run had a failure.
    """
    idle = _half(times, "on an idle machine")
    with busy_machine():
        return idle or _half(times, "with every core busy")


def _half(times: int, conditions: str) -> int:
    """Run the suite several times under the same conditions. Returns 1 if any run had a failure."""
    seconds, bad = [], 0
    for number in range(1, times + 1):
        with running_server() as url:
            began = time.monotonic()
            report = run_checks(url, registry.checks(), budget=300.0)
            seconds.append(time.monotonic() - began)
        untested = [
            each.check
            for each in report.run.verdicts
            if each.why in {SkipReason.UNTESTED, SkipReason.BLOCKED}
        ]
        faults = [*findings(report), *(f"{name}: not tested" for name in untested)]
        bad += bool(faults)
        print(f"{number:3} {seconds[-1]:5.1f} s  {report.headline}", *faults, sep="\n      ", flush=True)
    median = statistics.median(seconds)
    print(
        f"{conditions}: {times - bad} of {times} runs passed, median {median:.1f} s, maximum {max(seconds):.1f} s"
    )
    return int(bad > 0)


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Run an endless loop per CPU core during the `with` block."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
