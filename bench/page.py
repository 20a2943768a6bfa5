"""Writes docs/explanation/measurements.md from what the scripts beside it have left in bench/results/."""

import json
import re
from collections.abc import Callable
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


VALUES = {"grow": "a chat", "deep": "any JSON"}


def wire() -> str:
    result = json.loads((HERE / "results/wire.json").read_text())
    gradio = {(row["value"], row["n"]): row["stream"] for row in result["rows"] if row["server"] == "gradio"}
    rows = []
    for row in result["rows"]:
        known = gradio.get((row["value"], row["n"]))
        rows.append(
            [
                row["server"],
                VALUES[row["value"]],
                f"{row['n']:,}",
                f"{row['floor']:,}",
                f"{row['stream']:,}",
                f"{row['stream'] / row['floor']:.2f}",
                f"{row['wire']:,}",
                f"{known / row['stream']:.1f}" if known else "not run",
            ]
        )
    head = [
        "server",
        "value",
        "N",
        "text, bytes",
        "event stream, bytes",
        "× text",
        "with HTTP, bytes",
        "gradio / it",
    ]
    return f"{table(head, rows)}\n\n{_where_bytes_go(result['rows'])}\n\nPython {result['python']}; {versions(result['versions'])}.\n"


def _where_bytes_go(rows: list[dict]) -> str:
    """Why one event per step costs what it does, and why no spelling of the checks would bring it under 4.6."""
    row = next(
        r
        for r in rows
        if r["server"] == "ours, one event per step" and r["value"] == "grow" and r["n"] == 20_000
    )
    n, floor = row["n"], row["floor"]
    seqs = sum(len(str(seq)) for seq in range(3, n + 3))
    # `id:1-<seq>`, `data:"<text>"` and the empty line, beside the seq and the text
    frame = len('id:1-\ndata:""\n\n')
    bare, checks = frame * n + seqs + floor, n // 64
    left = 4.6 * floor - (row["stream"] - row["checks"])
    return (
        f"Of the {row['stream']:,} bytes of one event per step, {floor:,} are the text, {seqs:,} the digits of the ids, "
        f"{frame} × {n:,} the rest of two short lines: {bare / floor:.2f} × the text. "
        f"The check that a text owes every 64 changes comes {checks} times, and the event that carries one is "
        f"{row['checks'] / checks:.0f} bytes longer "
        f"({row['checks'] / floor:.2f} × the text); what is left under 4.6 is {left / checks:.0f} bytes for each, "
        f"less than a CRC in digits. So this protocol costs {row['stream'] / floor:.2f}, and merging, which is how a server "
        f"runs unless told otherwise, makes the question small."
    )


def finding() -> str:
    result = json.loads((HERE / "results/finding.json").read_text())
    parts = []
    for title, table_of in result["tables"].items():
        sizes = sorted({int(size) for row in table_of["microseconds"].values() for size in row})
        head = [f"{title}, µs a step, by {table_of['unit']}", *(f"{size:,}" for size in sizes)]
        rows = [
            [name, *(f"{row[str(size)]:,.2f}" if str(size) in row else "not run" for size in sizes)]
            for name, row in table_of["microseconds"].items()
        ]
        parts.append(table(head, rows))
    exact = ", ".join(f"{name} {right}" for name, right in result["exact"].items())
    return (
        "\n\n".join(parts)
        + f"\n\nOf {result['edits']} small changes, types included, found exactly: {exact}.\n\n"
        f"Medians of {result['repetitions']} repetitions, CPU time, Python {result['python']}, {result['cpus']} cores; "
        f"{versions(result['versions'])}.\n"
    )


def streams() -> str:
    result = json.loads((HERE / "results/streams.json").read_text())
    steady = table(
        [
            "server",
            "streams of 50 tokens/s",
            "within",
            "share",
            "median, ms",
            "99 %, ms",
            "of a core",
            "lost",
        ],
        [
            [
                row["server"],
                str(row["streams"]),
                f"{row['within_ms']:.0f} ms",
                f"{row['within']:.1%}",
                f"{row['p50_ms']:.1f}",
                f"{row['p99_ms']:.1f}",
                f"{row['core']:.0%}",
                str(row["lost"]),
            ]
            for row in result["steady"]
        ],
    )
    peer = {row["streams"]: row["us"] for row in result["per-event"] if row["server"] == "sse-starlette"}
    each = table(
        ["server, as fast as it goes", "streams", "µs of CPU an event", "sends an event", "× sse-starlette"],
        [
            [
                row["server"],
                str(row["streams"]),
                f"{row['us']:.1f}",
                f"{row['sends']:.2f}",
                f"{row['us'] / peer[row['streams']]:.2f}" if row["streams"] in peer else "not run",
            ]
            for row in result["per-event"]
        ],
    )
    seconds = {row["n"]: row["seconds"] for row in result["history"] if row["server"] == "gradio"}
    stack = table(
        ["the whole stack", "N", "seconds", "gradio / it", "server CPU, s", "client, MiB beyond idle"],
        [
            [
                row["server"],
                f"{row['n']:,}",
                f"{row['seconds']:.2f}",
                f"{seconds[row['n']] / row['seconds']:.0f}" if row["n"] in seconds else "not run",
                f"{row['server_cpu']:.2f}",
                f"{(row['peak_kib'] - row['idle_kib']) / 1024:.1f}",
            ]
            for row in result["history"]
        ],
    )
    first = result["first"][0]
    return (
        f"{steady}\n\n{each}\n\n{stack}\n\n"
        f"From a submit to the first event on the wire: {first['p50_ms']:.1f} ms (median), {first['p99_ms']:.1f} ms (99 %).\n"
        f"Python {result['python']}, {result['cpus']} cores; {versions(result['versions'])}.\n"
    )


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
    plain = result.get("plain")
    pays = (
        ""
        if plain is None
        else (
            f"\nA call of an endpoint without `batch=True` takes {plain['alone_ms']:.2f} ms of server CPU on a server of its own, "
            f"and {plain['pays']:+.1%} beside a batched endpoint (the median of pairs; the bar is 2 %).\n"
        )
    )
    return (
        f"{table(head, rows)}\n\n"
        f"Medians of {result['repetitions']} runs, {result['at_once']} calls at once, Python {result['python']}, "
        f"{result['cpus']} cores; {versions(result['versions'])}.\n{pays}"
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


def end_to_end() -> str:
    result = json.loads((HERE / "results/end_to_end.json").read_text())
    head = ["server and client", "streams", "tokens of each", "at a time", "tokens/s", "ours / it"]
    head += ["server CPU, µs a token", "client CPU, µs", "both / ours", "pieces a token"]
    rows = [
        [
            row["server"],
            str(row["streams"]),
            f"{row['tokens']:,}",
            str(row["block"]),
            f"{row['tokens_per_second']:,.0f}",
            f"{row['times']:.1f}",
            f"{row['server_us']:.2f}",
            f"{row['client_us']:.2f}",
            f"{row['cpu_times']:.1f}",
            f"{row['pieces']:.3f}",
        ]
        for row in result["rows"]
    ]
    return (
        f"{table(head, rows)}\n\nMedians of {result['rounds']} rounds, Python {result['python']}, {result['cpus']} cores; "
        f"{versions(result['versions'])}.\n"
    )


def client() -> str:
    result = json.loads((HERE / "results/client.json").read_text())
    costs = result["us_per_event"]
    base = costs["httpx-sse + json"]
    rows = [[kind, f"{cost:.1f}", f"{cost / base:.2f}"] for kind, cost in costs.items()]
    first = ", ".join(f"{name} {found:.1f} ms" for name, found in result["first_value_ms"].items())
    ways = {"value": "that comes as one value", "appends": "that grows by appends"}
    held = {(one.get("way", "value"), one["document"]): one["grown"] for one in result["memory"]}
    sizes = sorted({document for _, document in held})
    memory = table(
        ["a document", *(f"{size:,} bytes" for size in sizes)],
        [
            [
                name,
                *(f"{held[way, size] / size:.2f} ×" if (way, size) in held else "not run" for size in sizes),
            ]
            for way, name in ways.items()
        ],
    )
    return (
        f"{table(['client', 'µs of processor time an event', '× httpx-sse'], rows)}\n\n{memory}\n\n"
        f"{result['n']:,} events, medians of {result['repetitions']}. From a submit to its first value: {first}. "
        f"The second table is by how much the client's process grows at its peak. {result['crowd']['jobs']} jobs at once have "
        f"{result['crowd']['client_threads']} thread of the client's. "
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


def log() -> str:
    result = json.loads((HERE / "results/log.json").read_text())
    head = ["log", "events in a block", "logs at once", "append, µs", "replay, µs", "append, wall µs"]
    rows = [
        [
            row["log"],
            str(row["block"]),
            str(row["logs"]),
            f"{row['append']:.2f}",
            f"{row['replay']:.3f}",
            f"{row['append_wall']:.2f}",
        ]
        for row in result["rows"]
    ]
    killed = result["kill"]
    return (
        f"{table(head, rows)}\n\n"
        f"From the kill of a server to the first event of the new attempt: {killed['resumed_ms']:.0f} ms, of which the\n"
        f"start of a Python process takes {killed['process_start_ms']:.0f} ms; medians of {killed['kills']} kills.\n\n"
        f"Medians of {result['repetitions']} repetitions, Python {result['python']}, {result['cpus']} cores; "
        f"{versions(result['versions'])}.\n"
    )


def jobs() -> str:
    result = json.loads((HERE / "results/jobs.json").read_text())
    head = ["jobs", "a second", "memory, MiB"]
    rows = [
        [f"{row['jobs']:,}", f"{row['per_second']:,.0f}", f"{row['rss_kib'] / 1024:.1f}"]
        for row in result["rows"]
    ]
    kept = f"{result['retained']:,}"
    return (
        f"{table(head, rows)}\n\nLog: {result['log']}; {kept} ended jobs kept. Python {result['python']}.\n"
    )


def section(title: str, about: str, make: Callable[[], str]) -> str:
    """One question: what is asked, and what was measured; where that was not run here, what the page says now."""
    try:
        return f"## {title}\n\n{about}\n\n{make()}"
    except FileNotFoundError as error:
        print(f"{error.filename} is not there: the page keeps what it says under {title!r}")
        found = re.search(
            rf"^## {re.escape(title)}\n.*?(?=\n## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE
        )
        return found[0] if found else f"## {title}\n\n{about}\n\nNot run.\n"


def applying() -> str:
    result = json.loads((HERE / "results/apply.json").read_text())
    tables = []
    for title, of in result["tables"].items():
        sizes = list(of["microseconds"])
        names = list(dict.fromkeys(name for row in of["microseconds"].values() for name in row))
        tables.append(
            table(
                [f"{title}, µs, by {of['unit']}", *(f"{int(size):,}" for size in sizes)],
                [
                    [
                        name,
                        *(
                            f"{of['microseconds'][size][name]:,.2f}"
                            if name in of["microseconds"][size]
                            else "not run"
                            for size in sizes
                        ),
                    ]
                    for name in names
                ],
            )
        )
    return (
        "\n\n".join(tables) + f"\n\nMedians of {result['repetitions']} repetitions, CPU time, "
        f"Python {result['machine']['python']}; {versions(result['versions'])}.\n"
    )


def short_runs() -> str:
    result = json.loads((HERE / "results/short_runs.json").read_text())
    rows = {}
    for row in result["rows"]:
        rows.setdefault((row["n"], row["rate"]), {})[row["server"]] = row
    whole = "tidewire, whole states"
    lines = [
        [
            server,
            f"{n}",
            f"{rate}",
            f"{row['seconds']:.3f}",
            f"{row['seconds'] / at[whole]['seconds']:.2f}",
            f"{row['bytes']:,}",
            f"{row['bytes'] / at[whole]['bytes']:.2f}",
        ]
        for (n, rate), at in rows.items()
        for server, row in at.items()
    ]
    head = ["server", "N", "steps a second", "seconds", "× whole states", "bytes", "× whole states"]
    return (
        f"{table(head, lines)}\n\nMedians of {result['repetitions']} runs, Python {result['python']}; "
        f"{versions(result['versions'])}.\n"
    )


def main() -> None:
    sections = [
        section(
            "Bytes while a chat's last text grows",
            "The workload of Gradio's pull request 7102: an answer grows by one number at a time, N times, and each step\n"
            "yields the whole history. `python bench/wire.py`. The bars at N = 20,000 are 4.6 × the text and 1/13 of gradio\n"
            "for one event per step, 1.1 × when merged. The same is asked of a value that is no chat (a text deep inside), and of\n"
            "a stream that is read from the log with GET when all is over.",
            wire,
        ),
        section(
            "Short runs over a slow link",
            "Whether diffs are ever slower than whole values: a chat of a hundred messages whose last text grows N times, read\n"
            "through a link of 30 Mbit/s and 40 ms. `python bench/short_runs.py`; the bar is that diffs never take more than 1.02\n"
            "of the time of whole states, which this server sends with `?diffs=0`.",
            short_runs,
        ),
        section(
            "Finding what changed",
            "What a step of a function costs the server, until it is an event: an explicit append, and a whole value that was\n"
            "changed in place and is yielded again. Of the peers it is the diff alone, without the copy that each needs.\n"
            "`python bench/finding.py`. The bars are 0.5 µs for an append at any size, 10 µs for a yield at 10,000 rows.",
            finding,
        ),
        section(
            "Applying what changed",
            "What a client pays for a diff, and whether it grows with what is there: a bare string and a row are applied to the\n"
            "document that a stream is folded into, the pure `apply` makes a new value. `python bench/apply.py`; the bar is 0.2 µs\n"
            "for an append to a text of any size.",
            applying,
        ),
        section(
            "Streams",
            "How late tokens are that are due at fixed moments; what one event costs where each is a send of its own; and the\n"
            "workload of pull request 7102 through both stacks, each with its own client. `python bench/streams.py --full`. The\n"
            "bars: 99 % within 20 ms at under half a core, 99 % within 25 ms, 0.45 × sse-starlette, 1/40 of gradio's seconds,\n"
            "3 ms to the first event. A lone event costs this server more than its bar, which is about what uvicorn itself takes\n"
            "(`raw ASGI`), because it is folded and logged before it is sent, so that a cut loses nothing. 600 streams of lone\n"
            "events take most of a core: the last hundredth of their tokens keeps its bar only while the machine does nothing\n"
            "else. Tokens that come in quicker succession than one in 5 ms are merged, and where the server is behind, those of\n"
            "up to 50 ms.",
            streams,
        ),
        section(
            "From a function to an application",
            "Tokens that a function makes one by one or sixteen at a time, through a server and a client of one process each, to\n"
            "an application that takes each piece as it comes: ours, which merges what comes faster than one event in 5 ms;\n"
            "sse-starlette with httpx-sse and a pydantic model for each event; gradio with gradio_client.\n"
            "`python bench/end_to_end.py`. The bars, of streams of 20,000 tokens, are 10 × the tokens a second of the first and\n"
            "30 × those of the second; of tokens one by one the first is met in CPU and missed in tokens a second, where making\n"
            "a token is most of what is left. What a job costs beside its tokens is most of a short stream.",
            end_to_end,
        ),
        section(
            "What a client costs",
            "One event per chunk, as fast as it is read, from a server that does nothing else; peers read the same events,\n"
            "openai its own shape of the same tokens. `python bench/client.py`. The bars: 0.9 × httpx-sse with `json.loads`,\n"
            "async and blocking; a first value 2 ms after the raw one, wall time, which a busy machine spoils; memory at most 3 ×\n"
            "the document.",
            client,
        ),
        section(
            "Request batching",
            "A function that takes 20 ms whatever the number of its inputs, 50 callers at once, one call of it at a time; size 1\n"
            "is a function without `batch=True`. The ideal is what the function alone could do. `python bench/batching.py`;\n"
            "the bar is 90 % at each size.",
            batching,
        ),
        section(
            "Readers that do not read",
            "What each of 50 streams holds whose reader takes nothing, while a job goes on. `python bench/readers.py`; the bar\n"
            "is 150,000 bytes a stream, kernel included.",
            stalled,
        ),
        section(
            "Plain functions that compute",
            "How long others wait while five plain functions keep as many threads busy, by the time after which Python gives\n"
            "another thread its turn. Python's default is 5 ms, that of `tidewire serve` 0.5 ms.\n"
            "`python bench/busy_threads.py`.",
            busy_threads,
        ),
        section(
            "The log",
            "CPU time of all threads for each event, through the interface that the server uses; plain SQLite is one table and\n"
            "one commit for each block, without our thread, fence and states. `python bench/log.py`; the bars, in blocks of\n"
            "100, are 0.1 µs in memory and 0.5 µs in a file that 20 jobs write to.",
            log,
        ),
        section(
            "Many short jobs",
            "One server, 100 jobs under way at once, through everything but sockets: what it holds does not grow with the\n"
            "jobs that it has done. `python bench/jobs.py`.",
            jobs,
        ),
        section(
            "Decoding event streams",
            "`python bench/decoder.py`; higher is better.",
            decoder,
        ),
    ]
    PAGE.write_text(
        "# Measurements\n\n"
        "This page is written by `bench/page.py` from what the scripts measured last; run them to get your own.\n"
        "Machines are noisy: what counts are the ratios inside one run.\n\n" + "\n".join(sections)
    )


if __name__ == "__main__":
    main()
