"""Growth of the cost with the size of the input, for the operations of the client and the server.

Each case runs at sizes n, 2n, 4n and 8n. The smallest size is the first of 250, 500, 1,000, … 64,000 at which one run
takes at least 15 ms. The results are times and an exponent. A time is the CPU time of the process: the minimum of
several runs with the garbage collector off. The exponent is the slope of the logarithm of the time over the logarithm
of the size, by least squares over the three largest sizes. Linear time has the exponent 1, and n log n about 1.1.

The target is an exponent of at most 1.3 in every case, which is n log n with room for noise. A case that exceeds it is
measured again, up to twice, and its lowest exponent counts. If the largest run of a case has the size 512,000 and takes
less than 15 ms, the case does not count as above the target. No quadratic operation is so fast. Such a case consists of
a few copies of memory, and its exponent depends on the caches of the processor.

    python bench/growth.py                   all cases
    python bench/growth.py --only 'apply'    cases whose group or name contains this text
"""

import argparse
import gc
import math
import sys
import time
from pathlib import Path

from growth_client_cases import Case, client_cases
from growth_server_cases import server_cases
from measured import save

TARGET = 1.3
STEPS = (1, 2, 4, 8)
LEAST = 0.015
SMALLEST = 250
LARGEST = 64_000
LONG, LONGEST = 0.3, 3.0


def seconds(case: Case, size: int, runs: int) -> float:
    """Return the shortest CPU time of several runs, in seconds. Runs longer than `LONG` seconds are not repeated."""
    call = case(size)
    found, times = math.inf, 1
    for _ in range(runs + 1):
        gc.collect()
        gc.disable()
        began = time.process_time()
        for _ in range(times):
            call()
        found = min(found, (time.process_time() - began) / times)
        gc.enable()
        if found > LONG:
            break
        times = max(1, round(LEAST / 5 / max(found, 1e-6)))
    return found


def smallest(case: Case) -> int:
    """Return the smallest size whose run takes at least `LEAST` seconds."""
    size = SMALLEST
    while seconds(case, size, 0) < LEAST and size < LARGEST:
        size *= 2
    return size


def exponent(times: dict[int, float]) -> float:
    """Return the slope of log(time) over log(size), by least squares over the three largest sizes."""
    largest = [*times.items()][-3:]
    xs, ys = [math.log(size) for size, _ in largest], [math.log(taken) for _, taken in largest]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def measure(case: Case, runs: int) -> tuple[dict[int, float], float]:
    base = smallest(case)
    best: tuple[dict[int, float], float] = ({}, math.inf)
    for _ in range(3):
        times: dict[int, float] = {}
        for step in STEPS:
            times[base * step] = seconds(case, base * step, runs)
            if times[base * step] > LONGEST:
                break
        found = exponent(times) if len(times) > 1 else math.inf
        if found < best[1]:
            best = (times, found)
        if best[1] <= TARGET:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="text that the group or the name of a case must contain")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "growth.json")
    options = parser.parse_args()

    found, above = [], 0
    for group, members in (client_cases() | server_cases()).items():
        chosen = {name: case for name, case in members.items() if options.only in f"{group}, {name}"}
        if chosen:
            print(f"\n{group}")
        for name, case in chosen.items():
            times, slope = measure(case, options.runs)
            is_above = slope > TARGET and max(times.values()) >= LEAST
            above += is_above
            cells = " ".join(f"{taken * 1e3:9.1f}" for taken in times.values())
            print(
                f"  {name:42} n = {min(times):>8,} {cells} ms   {slope:.2f}{'  ABOVE' * is_above}",
                flush=True,
            )
            row = {"group": group, "case": name, "exponent": slope, "above": is_above}
            found.append(row | {"seconds": {str(size): taken for size, taken in times.items()}})
    if not found:
        sys.exit(f"no case contains {options.only!r}")
    print(f"\n{len(found)} cases, {above} above an exponent of {TARGET}")
    save(options.out, {"target": TARGET, "runs": options.runs, "cases": found}, "tidewire")


if __name__ == "__main__":
    main()
