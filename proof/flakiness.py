"""The suite against the reference server, again and again: while the machine has time, and while it has none.

python steadiness.py          twenty times each; 1 where a run was not all green
python steadiness.py TIMES    so many times each

What could not be judged is not green. The second half runs beside one endless loop for each core.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from conformance.suite.killing import red, report_of
from conformance.suite.stage import Nursery
from tidewire_conformance import registry
from tidewire_conformance.verdict import Why

TIMES = 20
BUSY = "while True: pass"


def main() -> int:
    """Run both halves."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    with Nursery() as nursery:
        idle = _half(nursery, times, "with time to spare")
        with _busy():
            return idle or _half(nursery, times, "with every core busy")


def _half(nursery: Nursery, times: int, how: str) -> int:
    """Some runs; 1 where one was not all green."""
    seconds, bad = [], 0
    for number in range(1, times + 1):
        with nursery.staged() as url:
            began = time.monotonic()
            report = report_of(url, registry.checks(), budget=300.0)
            seconds.append(time.monotonic() - began)
        lacking = [each.check for each in report.run.verdicts if each.why in {Why.UNTESTED, Why.BLOCKED}]
        faults = [*red(report), *(f"{name}: not tested" for name in lacking)]
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


if __name__ == "__main__":
    sys.exit(main())
