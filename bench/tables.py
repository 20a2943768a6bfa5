"""The tables of docs/explanation/measurements.md, each from what one script beside it has left in bench/results/."""

import json
from pathlib import Path

from start import base_of

HERE = Path(__file__).parent
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
        f"Medians of {result['repetitions']} repetitions in one process, Python {result['python']}, "
        f"{result['cpus']} cores; {versions(result['versions'])}.\n"
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
    source = ", ".join(f"{found:.2f} by {block}" for block, found in result["source_us"].items())
    return (
        f"{table(head, rows)}\n\nOf the server's CPU, the source takes µs a token: {source}. "
        f"Medians of {result['rounds']} rounds, Python {result['python']}, {result['cpus']} cores; "
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
    short = result["short_job_ms"]
    short_rows = [
        [
            kind,
            f"{found:.2f}",
            f"{found / short['httpx, blocking']:.2f}",
            f"{found / short['httpx, async']:.2f}",
        ]
        for kind, found in short.items()
    ]
    short_head = ["a short job", "ms of processor time", "× httpx.Client", "× httpx.AsyncClient"]
    return (
        f"{table(['client', 'µs of processor time an event', '× httpx-sse'], rows)}\n\n{table(short_head, short_rows)}\n\n"
        f"{memory}\n\n"
        f"{result['n']:,} events, medians of {result['repetitions']}; {result['short_jobs']:,} short jobs, medians of "
        f"{result['short_rounds']}. From a submit to its first value: {first}. "
        f"The last table is by how much the client's process grows at its peak. {result['crowd']['jobs']} jobs at once have "
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


def start() -> str:
    result = json.loads((HERE / "results/start.json").read_text())
    programs = result["cpu_seconds"]
    base = {name: programs[base_of(name)] for name in programs}
    head = [
        "a fresh process",
        "CPU to the first response, s",
        "of httpx",
        "CPU of the whole process, s",
        "of httpx",
    ]
    rows = [
        [
            f"`{name}`",
            f"{row['median']:.2f}",
            f"{row['median'] / base[name]['median']:.2f} ×",
            f"{row['whole_process']:.2f}",
            f"{row['whole_process'] / base[name]['whole_process']:.2f} ×",
        ]
        for name, row in programs.items()
    ]
    held = table(
        ["an `AsyncClient` holds the event loop at most", "ms of CPU", "ms by the clock"],
        [
            [name, f"{1000 * seconds['cpu']:.0f}", f"{1000 * seconds['wall']:.0f}"]
            for name, seconds in result["loop_held_seconds"].items()
        ],
    )
    return f"{table(head, rows)}\n\n{held}\n\nMedians of {result['runs']} runs. Python {result['python']}.\n"


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
        f"Python {result['python']}; {versions(result['versions'])}.\n"
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
