"""Writes docs/explanation/measurements.md from what bench/decoder.py and bench/wire.py have left in bench/results/."""

import json
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/explanation/measurements.md"
JUDGED = "tidewire, response"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def versions(found: dict) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def decoder() -> str:
    result = json.loads((HERE / "results/decoder.json").read_text())
    names = [name for name in result["workloads"][0]["ratio"] if "floor" not in name]
    head = ["times as fast as httpx-sse", *(workload["name"] for workload in result["workloads"])]
    rows = [[name, *(f"{workload['ratio'][name]:.1f}" for workload in result["workloads"])] for name in names]
    bars = [f"{workload['bar']:.1f}" if workload.get("bar") else "" for workload in result["workloads"]]
    rows.append(["*bar for “" + JUDGED + "”*", *bars])
    return (
        f"{table(head, rows)}\n\n"
        f"Medians of {result['repetitions']} repetitions in one process, Python {result['machine']['python']}, "
        f"{result['machine']['cpus']} cores; {versions(result['versions'])}.\n"
    )


def wire() -> str:
    result = json.loads((HERE / "results/wire.json").read_text())
    gradio = {row["n"]: row["stream"] for row in result["rows"] if row["server"] == "gradio"}
    rows = [
        [
            row["server"],
            f"{row['n']:,}",
            f"{row['floor']:,}",
            f"{row['stream']:,}",
            f"{row['stream'] / row['floor']:.2f}",
            f"{row['wire']:,}",
            f"{gradio[row['n']] / row['stream']:.1f}" if row["n"] in gradio else "not run",
        ]
        for row in result["rows"]
    ]
    head = ["server", "N", "text, bytes", "event stream, bytes", "× text", "with HTTP, bytes", "gradio / it"]
    return f"{table(head, rows)}\n\nPython {result['python']}; {versions(result['versions'])}.\n"


def batching() -> str:
    result = json.loads((HERE / "results/batching.json").read_text())
    head = [
        "server",
        "batch size",
        "of the ideal",
        "calls/s",
        "median, ms",
        "99 %, ms",
        "server CPU, ms a call",
    ]
    rows = [
        [
            row["server"],
            str(row["size"]),
            f"{row['share']:.0%}",
            f"{row['rate']:,.0f}",
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['server_cpu_ms']:.2f}",
        ]
        for row in result["rows"]
    ]
    return (
        f"{table(head, rows)}\n\n"
        f"Medians of {result['repetitions']} runs, {result['at_once']} calls at once, Python {result['python']}, "
        f"{result['cpus']} cores; {versions(result['versions'])}.\n"
    )


def stalled() -> str:
    result = json.loads((HERE / "results/readers.json").read_text())
    head = ["server", "its process, bytes a stream", "the kernel", "together"]
    rows = [
        [row["server"], *(f"{row[name]:,.0f}" for name in ("process", "kernel", "together"))]
        for row in result["rows"]
    ]
    idle = "; ".join(
        f"{share:.1%} with a ping every {float(beat):g} s" for beat, share in result["idle_share"].items()
    )
    return (
        f"{table(head, rows)}\n\n"
        f"{result['idle']:,} streams that have nothing to say take this part of one core: {idle}. "
        f"Python {result['python']}; {versions(result['versions'])}.\n"
    )


def busy_threads() -> str:
    result = json.loads((HERE / "results/busy_threads.json").read_text())
    head = ["five that", "switch interval, ms", "`/healthz`, ms", "at worst, ms", "values a second"]
    rows = [
        [
            row["functions"].removesuffix("s"),
            f"{1000 * row['interval']:g}",
            f"{row['median_ms']:.0f}",
            f"{row['worst_ms']:.0f}",
            f"{row['values_a_second']:,.0f}" if row["values_a_second"] else "",
        ]
        for row in result["rows"]
    ]
    return f"{table(head, rows)}\n\nPython {result['python']}.\n"


def main() -> None:
    PAGE.write_text(
        "# Measurements\n\n"
        "This page is written by `bench/page.py` from what the scripts measured last; run them to get your own.\n"
        "Machines are noisy: what counts are the ratios inside one run.\n\n"
        "## Bytes while a chat's last text grows\n\n"
        "The workload of Gradio's pull request 7102: an answer grows by one number at a time, N times, and each step\n"
        "yields the whole history. `python bench/wire.py`. The bars at N = 20,000 are 4.6 × the text and 1/13 of gradio\n"
        "for one event per step, 1.1 × when merged. The checks that each text owes every 64 events are part of the\n"
        "count, and are what takes one event per step above its bar.\n\n"
        f"{wire()}\n"
        "## Request batching\n\n"
        "A function that takes 20 ms whatever the number of its inputs, 50 callers at once, one call of it at a time; size 1\n"
        "is a function without `batch=True`. The ideal is what the function alone could do. `python bench/batching.py`;\n"
        "the bar is 90 % at each size.\n\n"
        f"{batching()}\n"
        "## Readers that do not read\n\n"
        "What each of 50 streams holds whose reader takes nothing, while a job goes on. `python bench/readers.py`; the bar\n"
        "is 150,000 bytes a stream, kernel included.\n\n"
        f"{stalled()}\n"
        "## Plain functions that compute\n\n"
        "How long others wait while five plain functions keep as many threads busy, by the time after which Python gives\n"
        "another thread its turn. Python's default is 5 ms, that of `tidewire serve` 0.5 ms.\n"
        "`python bench/busy_threads.py`.\n\n"
        f"{busy_threads()}\n"
        "## Decoding event streams\n\n"
        "`python bench/decoder.py`; higher is better.\n\n"
        f"{decoder()}"
    )


if __name__ == "__main__":
    main()
