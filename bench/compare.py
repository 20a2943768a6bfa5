"""Compares the speed of two revisions with the same measurements in alternating runs.

    python bench/compare.py main .             the working tree against main
    python bench/compare.py v0.1 v0.2          two tags, commits or branches
    python bench/compare.py HEAD~1 HEAD --runs 11 --json compared.json

OLD and NEW are git revisions; `.` is the working tree with its uncommitted changes. Each revision is checked out as a
worktree in a temporary folder, which is removed at the end, also after Ctrl-C. Both revisions use the dependencies of
the current environment.

Every run is a separate process that measures everything once (compare_workloads.py, a few seconds) and reports medians
of repeated loops. A round consists of OLD, NEW and OLD again, in rotating order, so a machine that becomes slower or
faster affects all of them. "OLD again" is the control: it shows how much two measurements of the same code differ.

The verdict compares the medians of all runs:

    within 5 %          NEW is at most 5 % slower or faster than OLD
    within the spread   more than 5 %, but within the range of the runs of OLD: the difference may be noise
    slower, faster      more than 5 %, and outside the range of the runs of OLD

If a verdict matters, use an idle machine and more runs. Exit codes: 0 success, 1 a run failed, or a metric is slower with
--fail, 2 usage error, 130 interrupted.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from compare_workloads import METRICS
from measured import save

WORKLOADS = Path(__file__).with_name("compare_workloads.py")
REPOSITORY = Path(__file__).resolve().parents[1]
RUNS = 7
TOLERANCE = 0.05
"""Maximum relative difference at which two numbers are considered equal."""
RUN_LIMIT = 120.0
OLD, NEW, CONTROL = "old", "new", "old again"


class RunError(Exception):
    """A run failed or timed out."""


def git(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), *arguments], check=False, capture_output=True, text=True
    )
    if check and done.returncode:
        raise RunError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def commit_of(revision: str) -> str:
    """Resolve a revision to a commit; `.` is returned unchanged."""
    if revision == ".":
        return revision
    try:
        return git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except RunError:
        print(
            f"compare: {revision!r} is not a revision of {REPOSITORY}; pass a commit, tag, branch or `.`",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


@contextlib.contextmanager
def trees(*commits: str) -> Iterator[dict[str, Path]]:
    """Provide a folder for each commit: a temporary worktree, or the working tree for `.`."""
    found: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="tidewire-compare-") as folder:
        try:
            for number, commit in enumerate(dict.fromkeys(commits)):
                if commit == ".":
                    found[commit] = REPOSITORY
                    continue
                found[commit] = Path(folder).resolve() / str(number)
                git("worktree", "add", "--quiet", "--detach", str(found[commit]), commit)
            yield found
        finally:
            # Ignore Ctrl-C here: an interrupted removal would leave a worktree registered in the repository. The second
            # `--force` removes a worktree whose creation was interrupted, which git has locked.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            for path in found.values():
                if path != REPOSITORY:
                    git("worktree", "remove", "--force", "--force", str(path), check=False)
            signal.signal(signal.SIGINT, before)


def run(root: Path, seed: int, *, quick: bool) -> dict[str, float]:
    """Measure one revision once, in a separate process.

    Raises:
        RunError: The process failed or timed out.
    """
    sources = [str(path) for path in sorted((root / "src").iterdir()) if path.is_dir()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWIRE_")}
    # Hash randomization changes some timings by a percent, so all runs of a round use the same seed.
    environment |= {"PYTHONPATH": os.pathsep.join(sources), "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-P", str(WORKLOADS), "measure", str(root), *["--quick"] * quick]
    # Start a new process group, so that killing the run also kills its server.
    with (
        # A killed run cannot remove its temporary files, so give it a folder that is removed here.
        tempfile.TemporaryDirectory(prefix="tidewire-compare-run-") as scratch,
        subprocess.Popen(
            command,
            env=environment | {"TMPDIR": scratch},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            out, errors = process.communicate(timeout=RUN_LIMIT)
        except subprocess.TimeoutExpired:
            raise RunError(f"a run of {root} timed out after {RUN_LIMIT:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RunError(f"a run of {root} failed:\n{errors.strip() or out.strip()}")
    measured: dict[str, float] = json.loads(out.splitlines()[-1])
    return measured


def lines_of(root: Path) -> int:
    """Number of lines of the Python files in the folder `src` of a revision."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in root.glob("src/**/*.py"))


def verdict(metric: str, old: list[float], new: list[float]) -> str:
    """Verdict on a metric from two sets of runs. `old` includes the control runs."""
    ratio = statistics.median(new) / statistics.median(old)
    if abs(ratio - 1) <= TOLERANCE:
        return "within 5 %"
    if min(old) <= statistics.median(new) <= max(old):
        return "within the spread"
    return "slower" if (ratio > 1) != METRICS[metric].higher_is_better else "faster"


def compared(found: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Build a row for each metric, with medians, ranges, ratios and the verdict."""
    rows = []
    for name, metric in METRICS.items():
        old, new, again = ([one[name] for one in found[side]] for side in (OLD, NEW, CONTROL))
        every = old + again
        base = statistics.median(every)
        rows.append(
            {
                "metric": name,
                "unit": metric.unit,
                "what": metric.what,
                "higher_is_better": metric.higher_is_better,
                "old": base,
                "new": statistics.median(new),
                "ratio": statistics.median(new) / base,
                "old_against_old": statistics.median(again) / statistics.median(old),
                "old_spread": [min(every) / base, max(every) / base],
                "new_spread": [min(new) / base, max(new) / base],
                "verdict": verdict(name, every, new),
                "runs": {OLD: old, NEW: new, CONTROL: again},
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    head = ("", "old", "new", "", "new/old", "old/old", "runs of old", "runs of new", "verdict")
    lines = [head]
    for row in rows:
        digits = ",.0f" if row["old"] >= 1000 else ",.3f"
        spreads = (f"{row[name][0]:.2f} … {row[name][1]:.2f}" for name in ("old_spread", "new_spread"))
        lines.append(
            (
                row["metric"],
                format(row["old"], digits),
                format(row["new"], digits),
                row["unit"],
                f"{row['ratio']:.3f}",
                f"{row['old_against_old']:.3f}",
                *spreads,
                row["verdict"],
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    print()
    for line in lines:
        cells = [
            cell.ljust(width) if column in {0, 3, 8} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    print(
        "\nold, new: medians of all runs; runs of old, runs of new: minimum and maximum relative to the median of old."
    )
    for name, metric in METRICS.items():
        better = "; higher is better" if metric.higher_is_better else ""
        print(f"  {name:18}{metric.what}{better}")


def compare(old: Path, new: Path, runs: int, *, quick: bool) -> dict[str, list[dict[str, float]]]:
    """Measure both revisions in alternating runs. Returns the measurements of each side."""
    sides = {OLD: old, NEW: new, CONTROL: old}
    order = list(sides)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    if not quick:
        for name, root in (
            (OLD, old),
            (NEW, new),
        ):  # compiles the modules, and fails early if a revision cannot run
            print(f"warming up: {name}", flush=True)
            run(root, 0, quick=True)
    began, made, total = time.monotonic(), 0, runs * len(order)
    for turn in range(runs):
        for side in order[turn % len(order) :] + order[: turn % len(order)]:
            measured = run(sides[side], turn, quick=quick)
            found[side].append(measured)
            made += 1
            left = (time.monotonic() - began) / made * (total - made)
            shown = ", ".join(f"{name} {measured[name]:.3g}" for name in ("decoder", "append", "first value"))
            print(f"run {made:2} of {total}: {side:10} {shown}   ({left:3.0f} s left)", flush=True)
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD", help="a git revision, or `.` for the working tree")
    parser.add_argument("new", metavar="NEW", help="the revision to compare with OLD, in the same form")
    parser.add_argument(
        "--runs", type=int, default=RUNS, metavar="N", help=f"rounds of three runs (default: {RUNS})"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="minimal work, to test that everything runs; the timings are meaningless",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    parser.add_argument("--fail", action="store_true", help="exit with 1 if any metric is slower")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs: at least 1")
    return options


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, _terminated)
    old, new = commit_of(options.old), commit_of(options.new)
    try:
        with trees(old, new) as roots:
            for name, revision, commit in ((OLD, options.old, old), (NEW, options.new, new)):
                what = "the working tree" if commit == "." else f"{revision} ({commit[:10]})"
                print(f"{name}: {what}")
            lines = {side: lines_of(roots[commit]) for side, commit in ((OLD, old), (NEW, new))}
            print("lines of Python in src:", ", ".join(f"{side} {count:,}" for side, count in lines.items()))
            found = compare(roots[old], roots[new], options.runs, quick=options.quick)
    except RunError as error:
        print(f"compare: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("\ncompare: interrupted; the temporary worktrees were removed", file=sys.stderr)
        raise SystemExit(130) from None
    rows = compared(found)
    print_table(rows)
    if options.json is not None:
        revisions = {"old": {"revision": options.old, "commit": old}} | {
            "new": {"revision": options.new, "commit": new}
        }
        packages = ("httpx2", "pydantic", "uvicorn", "starlette", "orjson")
        save(
            options.json,
            {**revisions, "rounds": options.runs, "quick": options.quick, "lines": lines, "rows": rows},
            *packages,
        )
    if options.fail and any(row["verdict"] == "slower" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
