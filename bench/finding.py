"""Server cost of one step of a function: an explicit append, or yielding a value that was changed in place.

Append: a step calls `stream.append` on a text of 1k … 1M characters, or `stream.row` with three or five columns (token,
id, log-probability, and ids and log-probabilities of the five most likely tokens).

Yield: in a step, the last text of a chat history of 1 … 10,000 rows grows by a word, and the function yields the same
list again. A second table does the same with a single row whose text has 1k … 1M characters. The grown texts are made
before the measurement. The first tidewire result includes everything until the event is written to the log, including
merging. The second one is the diff alone, with the copy of what has changed, which the next step needs. The results of
gradio's `utils.diff`, jsonpatch, jsondiff and deepdiff include only the diff between two separate values. They exclude the
copy that these libraries need if a value is changed in place; "gradio and its copy" includes `copy.deepcopy`.

Exactness: the number of changes, out of 1000 small random changes, that each library reproduces exactly, including
types (`1`, `1.0` and `true` differ).

Results are microseconds of CPU time per step, medians over repetitions. A library that needs more than half a second is
not run at larger sizes. After each repetition, the reader's value is compared with the function's value.

Targets: at most 1.5 µs for an append and 4 µs for a row of three columns at any size; the diff of a yield in at most half of
the time of gradio and its copy at any number of rows, and with the write to the log at 1,000 and 10,000 rows.
"""

import argparse
import asyncio
import copy
import importlib
import importlib.metadata
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from measured import save

from tidewire.protocol.diff import apply
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.endpoints.stream import Stream, writer_of
from tidewire_server.job_log.commit_schedule import GroupCommit
from tidewire_server.job_log.log_writer import LogWriter
from tidewire_server.job_log.snapshot_events import first_block
from tidewire_server.job_log.value_differ import ShadowCopy
from tidewire_server.settings import Settings
from tidewire_server.store.memory.memory_store import MemoryLog

ROWS = (1, 1_000, 10_000, 100_000)
SIZES = (1_000, 10_000, 100_000, 1_000_000)
MAX_SECONDS = 0.5
EDITS = 1000


def job(value: Any, columns: tuple[str, ...]) -> tuple[LogWriter, Stream[Any]]:
    """Create the stream of one item with a log in memory, as the server does."""
    settings = Settings(max_state_bytes=2**30)
    state: Any = {
        "status": "running",
        "items": [{"status": "running", "value": value}],
        "usage": {},
        "notes": [],
    }
    block, document, size = first_block(state, [f"/items/0/value{column}" for column in columns])
    log = MemoryLog(block, settings.max_log_bytes)
    log_writer = LogWriter(
        log,
        document,
        settings,
        state_bytes=size,
        reserve=0,
        commits=GroupCommit(lambda _e, _b: None, settings.merge_window),
    )
    writer = ItemWriter(
        log_writer.pending, 0, columns=columns, rollback=True, report=lambda _k, _m: None, to_json=lambda v: v
    )
    return log_writer, Stream(writer)


def per_step(step: Callable[[], object], steps: int) -> float:
    began = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - began) / steps * 1e6


def per_growth(value: list[dict[str, str]], step: Callable[[Any], object], steps: int) -> float:
    """Return the time of one step, before which the last text of the value grows by a word.

    The grown texts are made before the measurement, because a `+=` takes as long as the diff of a short history.
    """
    began = value[-1]["content"]
    texts = iter([began + " word" * number for number in range(1, steps + 1)])

    def grow_and_step() -> None:
        value[-1]["content"] = next(texts)
        step(value)

    return per_step(grow_and_step, steps)


async def appends(repetitions: int, steps: int) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for size in SIZES:
        text = {"t": "x" * size, "i": [], "p": [], "ti": [], "tp": []}
        five = ([1, 2, 3, 4, 5], [-0.25, -1.5, -2.75, -4.125, -5.0])
        rows: dict[str, tuple[Any, tuple[str, ...], tuple[Any, ...]]] = {
            "append": ("x" * size, ("",), (" word",)),
            "row of three columns": (text, ("/t", "/i", "/p"), (" word", 1917, -0.25)),
            "row of five columns": (text, ("/t", "/i", "/p", "/ti", "/tp"), (" word", 1917, -0.25, *five)),
        }
        for name, (value, columns, members) in rows.items():
            log_writer, stream = job(value, columns)
            write = stream.append if len(columns) == 1 else stream.row
            durations = []
            for _ in range(repetitions):
                durations.append(per_step(lambda write=write, members=members: write(*members), steps))
                await log_writer.commit()
            grown = stream.value if len(columns) == 1 else stream.value["t"]
            if grown != "x" * size + " word" * (repetitions * steps):
                sys.exit(f"{name} at size {size}: the value is wrong, so the measurement is invalid")
            found.setdefault(name, {})[size] = statistics.median(durations)
    return found


def history(rows: int, size: int = 0) -> list[dict[str, str]]:
    made = [{"role": "user", "content": f"message number {n}"} for n in range(rows)]
    made[-1]["content"] += "x" * size
    return made


async def yields(values: dict[int, Any], repetitions: int, steps: int) -> dict[str, dict[int, float]]:
    """Measure, for each value, the cost of detecting that its last text has grown by a word."""
    found: dict[str, dict[int, float]] = {"tidewire, yielded in place": {}, "tidewire, only the diff": {}}
    for size, value in values.items():
        step_count = max(20, steps // max(1, len(value[-1]["content"]) // 20_000))
        log_writer, stream = job(value, ())
        write = writer_of(stream).replace
        write(value)
        shadow = ShadowCopy(value)
        text, ours, compared = value[-1]["content"], [], []
        for _ in range(repetitions):
            value[-1]["content"] = text
            write(value)
            ours.append(per_growth(value, write, step_count))
            await log_writer.commit()
            value[-1]["content"] = text
            shadow.step(value)
            compared.append(per_growth(value, shadow.step, step_count))
        write(value)
        if stream.value != value:
            sys.exit(f"yield at size {size}: the value is wrong, so the measurement is invalid")
        found["tidewire, yielded in place"][size] = statistics.median(ours)
        found["tidewire, only the diff"][size] = statistics.median(compared)
        for name, diff in peers().items():
            known = found.setdefault(name, {})
            if known and max(known.values()) > MAX_SECONDS * 1e6:
                continue
            old = copy.deepcopy(value)
            value[-1]["content"] += " word"
            once = per_step(lambda diff=diff, old=old, value=value: diff(old, value), 1)
            times = 1 if once > 1e4 else 10
            again = (
                []
                if once > MAX_SECONDS * 1e6
                else [
                    per_step(lambda diff=diff, old=old, value=value: diff(old, value), times)
                    for _ in range(repetitions)
                ]
            )
            known[size] = statistics.median(again or [once])
    return found


def peers() -> dict[str, Callable[[Any, Any], object]]:
    """Diff functions of the installed libraries."""
    found: dict[str, Callable[[Any, Any], object]] = {}
    for name, module, make in (
        ("gradio", "gradio.utils", lambda m: m.diff),
        ("jsonpatch", "jsonpatch", lambda m: m.make_patch),
        ("jsondiff", "jsondiff", lambda m: m.diff),
        ("deepdiff", "deepdiff", lambda m: m.DeepDiff),
    ):
        try:
            found[name] = make(importlib.import_module(module))
        except ImportError:
            print(f"{name} is not installed, so it is not measured")
    if "gradio" in found:
        found["gradio and its copy"] = partial(_diff_and_copy, found["gradio"])
    return found


def _diff_and_copy(diff: Callable[[Any, Any], object], old: Any, new: Any) -> None:
    diff(old, new)
    copy.deepcopy(new)


# --- exactness


def edits() -> list[tuple[Any, Any]]:
    """Pairs of small values that differ in one leaf, which was changed, added or removed; often only its type differs."""
    draw = random.Random(11)
    leaves = ["", "a", "ab", 0, 1, 1.0, True, False, None, 2.5]
    made = []
    while len(made) < EDITS:
        rows = [
            [draw.choice(leaves) for _ in range(draw.randrange(1, 5))] for _ in range(draw.randrange(1, 5))
        ]
        old: Any = {"rows": rows, "state": draw.choice(leaves)}
        new = copy.deepcopy(old)
        row = draw.choice(new["rows"])
        match draw.randrange(4):
            case 0:
                row.append(draw.choice(leaves))
            case 1:
                row.pop(draw.randrange(len(row)))
            case _:
                row[draw.randrange(len(row))] = draw.choice(leaves)
        if json.dumps(old) != json.dumps(new):
            made.append((old, new))
    return made


def exact() -> dict[str, int | None]:
    """Count, for each library, the edits that its diff and its own apply function reproduce exactly."""

    def ours(old: Any, new: Any) -> Any:
        return apply(old, ShadowCopy(old).step(new))

    ways: dict[str, Callable[[Any, Any], Any]] = {"tidewire, yielded in place": ours}
    known = peers()
    if "gradio" in known:
        from gradio_client.utils import apply_diff

        ways["gradio"] = lambda old, new: apply_diff(copy.deepcopy(old), known["gradio"](old, new))
    if "jsonpatch" in known:
        ways["jsonpatch"] = lambda old, new: known["jsonpatch"](old, new).apply(old)  # type: ignore[attr-defined]
    if "jsondiff" in known:
        from jsondiff import patch

        ways["jsondiff"] = lambda old, new: patch(old, known["jsondiff"](old, new))
    if "deepdiff" in known:
        from deepdiff import Delta

        ways["deepdiff"] = lambda old, new: old + Delta(known["deepdiff"](old, new), mutate=False)
    found: dict[str, int | None] = {}
    for name, way in ways.items():
        right = 0
        for old, new in edits():
            try:
                right += json.dumps(way(copy.deepcopy(old), new)) == json.dumps(new)
            except Exception:
                continue
        found[name] = right
    return found


def show(title: str, unit: str, table: dict[str, dict[int, float]]) -> None:
    sizes = sorted({size for row in table.values() for size in row})
    print(
        f"\n{title}: microseconds per step, by {unit}\n  {'':28}" + " ".join(f"{size:>12,}" for size in sizes)
    )
    for name, row in table.items():
        cells = (f"{row[size]:12.2f}" if size in row else f"{'not run':>12}" for size in sizes)
        print(f"  {name:28}" + " ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "finding.json")
    options = parser.parse_args()
    if options.repetitions < 5:
        parser.error("--repetitions must be at least 5: the median of fewer repetitions is too noisy")

    async def measured() -> dict[str, tuple[str, dict[str, dict[int, float]]]]:
        rows = {n: history(n) for n in ROWS}
        texts = {size: history(1, size) for size in SIZES}
        return {
            "explicit append": ("characters", await appends(options.repetitions, options.steps)),
            "history yielded again": (
                "rows",
                await yields(rows, options.repetitions, options.steps),
            ),
            "one row yielded again": (
                "characters",
                await yields(texts, options.repetitions, options.steps),
            ),
        }

    tables = asyncio.run(measured())
    for title, (unit, table) in tables.items():
        show(title, unit, table)
    right = exact()
    print(
        f"\nexactly reproduced, of {EDITS} small changes: " + ", ".join(f"{n} {r}" for n, r in right.items())
    )

    packages = ("tidewire", "gradio", "jsonpatch", "jsondiff", "deepdiff")
    report = {
        "repetitions": options.repetitions,
        "edits": EDITS,
        "exact": right,
        "tables": {title: {"unit": unit, "microseconds": table} for title, (unit, table) in tables.items()},
    }
    save(options.out, report, *packages)


if __name__ == "__main__":
    main()
