"""Runs a kill matrix: judges the chosen subjects, merges earlier results, and writes the page of the documentation."""

import argparse
import json
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    return text.strip().replace("|", "\\|")


def run_matrix(
    kind: str,
    known: Collection[str],
    judge: Callable[[list[str], int], list[Any]],
    restore: Callable[[list[dict[str, Any]]], list[Any]],
    page: Callable[[list[Any]], str],
    options: argparse.Namespace,
) -> int:
    """Judge the chosen subjects and write the page.

    Args:
        kind: "servers" or "clients".
        known: Names of all subjects.
        judge: Function that judges the named subjects and returns a row for each. Its second argument is the maximum number
            of subjects to judge at the same time. A row is a dataclass with a name and a fault. The fault is empty if the
            proof holds.
        restore: Function that restores the rows of an earlier run, except the rows of subjects that no longer exist.
        page: Function that renders the page.
        options: Command line options. If the options name a few subjects, nothing is written. With `merge`, the rows of
            these subjects replace those of the last full run, which is kept in proof/results/. With `page`, nothing is
            judged.

    Returns:
        Exit code: 0 if the proof holds for all judged subjects, 1 if not, 2 for invalid arguments.
    """
    if options.list:
        print(*known, sep="\n")
        return 0
    if unknown := sorted({*options.names} - {*known}):
        print(f"unknown {kind}: {', '.join(unknown)}; --list prints all names")
        return 2
    results = ROOT / f"proof/results/faulty-{kind}.json"
    earlier = restore(json.loads(results.read_text(encoding="utf-8"))) if results.exists() else []
    if (options.merge or options.page) and not earlier:
        print(f"no results in {results.relative_to(ROOT)}; run `python -m proof {kind}` first")
        return 2
    began = time.monotonic()
    seconds = {row.name: getattr(row, "seconds", 0.0) for row in earlier}
    slowest_first = sorted(known, key=lambda name: -seconds.get(name, 0.0))
    rows = [] if options.page else judge(options.names or slowest_first, options.at_once)
    print(f"{len(rows)} {kind} in {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if options.merge or options.page:
        judged = {row.name for row in rows}
        rows += [row for row in earlier if row.name not in judged]
    if options.merge or options.page or not options.names:
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
        (ROOT / f"docs/proof/faulty-{kind}.md").write_text(page(rows), encoding="utf-8")
    failed = [row for row in rows if row.fault]
    print(*(f"{row.name}: {row.fault}" for row in failed), sep="\n")
    return int(bool(failed))
