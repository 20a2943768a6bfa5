"""Cost of applying and computing diffs, by the size of the existing value.

Append: a call appends to a text of 1k … 1M characters, or to the last text of a chat history of 1 … 10,000 rows. The
diff is a bare string, a bare string followed by a read of an immutable view of the state, or a row of five columns
(token, id, log-probability, and the ids and log-probabilities of the five most likely tokens).

Diff: a call computes the diff of two chat histories. Only their last texts differ: the new one is longer. The other
rows are either shared objects or copies.

For comparison, the script also measures gradio, jsonpatch and deepdiff if they are installed.

Results are microseconds of CPU time per call: medians over repetitions in which the candidates alternate.

    python bench/apply.py            a few seconds; with the other libraries, up to a minute
    python bench/apply.py --quick    fewer calls, noisier results
"""

import argparse
import importlib
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured import installed, save

from tidewire.protocol.diff import apply, diff
from tidewire.protocol.document import Document

Call = Callable[[], object]
TEXT = "/items/0/value/text"
COLUMNS = [f"/items/0/value/{name}" for name in ("text", "ids", "logprobs", "top_ids", "top_logprobs")]
ROW = [["r", " word", 1917, -0.25, [1, 2, 3, 4, 5], [-0.25, -1.5, -2.75, -4.125, -5.0]]]


def text_state(size: int) -> Any:
    columns = {"ids": [0] * size, "logprobs": [-0.5] * size, "top_ids": [], "top_logprobs": []}
    return {"items": [{"value": {"text": "x" * size, **columns}}]}


def history(rows: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"message number {n}"} for n in range(rows)]


def peer(module: str) -> Any:
    return importlib.import_module(module) if installed(module) else None


# --- workloads


def appends_to_a_text(size: int) -> dict[str, tuple[Call, int]]:
    bare, viewed = (Document(text_state(size), [TEXT]) for _ in range(2))
    rows = Document(text_state(size), COLUMNS)
    value = {"text": "x" * size}

    def and_view() -> object:
        viewed.apply(" word")
        return viewed.view()

    calls: dict[str, tuple[Call, int]] = {
        "tidewire, bare string": (lambda: bare.apply(" word"), 20_000),
        "tidewire, bare string and a view": (and_view, 10_000),
        "tidewire, row of five columns": (lambda: rows.apply(ROW), 2_000),
        "tidewire, pure apply": (lambda: apply(value, [["a", "/text", " word"]]), 50),
    }
    gradio = peer("gradio_client.utils")
    if gradio is not None:
        calls["gradio"] = (lambda: gradio.apply_diff(value, [["append", ["text"], " word"]]), 50)
    return calls


def appends_to_a_history(rows: int) -> dict[str, tuple[Call, int]]:
    value = history(rows)
    document = Document({"items": [{"value": value}]}, [f"/items/0/value/{rows - 1}/content"])
    calls: dict[str, tuple[Call, int]] = {
        "tidewire, bare string": (lambda: document.apply(" word"), 20_000),
        "tidewire, pure apply": (lambda: apply(value, [["a", f"/{rows - 1}/content", " word"]]), 50),
    }
    gradio = peer("gradio_client.utils")
    if gradio is not None:
        calls["gradio"] = (lambda: gradio.apply_diff(value, [["append", [rows - 1, "content"], " word"]]), 3)
    return calls


def diffs_of_histories(rows: int) -> dict[str, tuple[Call, int]]:
    old = history(rows)
    new = [*old[:-1], {**old[-1], "content": old[-1]["content"] + " more"}]
    # Convert through JSON, because a deep copy would share the strings.
    copied = json.loads(json.dumps(new))
    calls: dict[str, tuple[Call, int]] = {
        "tidewire, rows shared": (lambda: diff(old, new), 20),
        "tidewire, all copied": (lambda: diff(old, copied), 5),
    }
    gradio, patch, deep = peer("gradio.utils"), peer("jsonpatch"), peer("deepdiff")
    if gradio is not None:
        calls["gradio, all copied"] = (lambda: gradio.diff(old, copied), 3)
    if patch is not None:
        calls["jsonpatch, all copied"] = (lambda: patch.make_patch(old, copied), 1)
    if deep is not None and rows <= 1000:
        calls["deepdiff, all copied"] = (lambda: deep.DeepDiff(old, copied), 1)
    return calls


# --- measurement


def measure(calls: dict[str, tuple[Call, int]], repetitions: int, scale: int) -> dict[str, float]:
    durations: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, (call, calls_per_run) in calls.items():
            count = max(1, calls_per_run // scale)
            start = time.process_time()
            for _ in range(count):
                call()
            durations[name].append((time.process_time() - start) / count * 1e6)
    return {name: statistics.median(values) for name, values in durations.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="make fewer calls; the results are noisier")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "apply.json")
    options = parser.parse_args()
    if options.repetitions < 5:
        parser.error("--repetitions must be at least 5: the median of fewer repetitions is too noisy")

    scale = 10 if options.quick else 1
    tables = {}
    for title, unit, sizes, calls in (
        ("append to a text", "characters", (1_000, 10_000, 100_000, 1_000_000), appends_to_a_text),
        ("append to the last text of a history", "rows", (1, 1_000, 10_000), appends_to_a_history),
        ("diff of two histories", "rows", (1, 1_000, 10_000), diffs_of_histories),
    ):
        rows = {size: measure(calls(size), options.repetitions, scale) for size in sizes}
        tables[title] = {"unit": unit, "microseconds": rows}
        print(f"\n{title}: microseconds per call, by {unit}")
        for name in rows[sizes[0]]:
            cells = " ".join(
                f"{rows[size][name]:12.2f}" if name in rows[size] else " " * 12 for size in sizes
            )
            print(f"  {name:28}{cells}")
        print(f"  {'':28}" + " ".join(f"{size:12,}" for size in sizes))

    packages = ("tidewire", "gradio", "gradio-client", "jsonpatch", "deepdiff")
    report = {
        "question": "What do applying and computing a diff cost, and does the cost grow with the size of the value?",
        "quick": options.quick,
        "repetitions": options.repetitions,
        "tables": tables,
    }
    save(options.out, report, *packages)


if __name__ == "__main__":
    main()
