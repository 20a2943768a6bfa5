"""Tables of docs/explanation/measurements.md, each rendered from the results of one script in bench/results/."""

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
    head = ["speed relative to httpx-sse", *(workload["name"] for workload in result["workloads"])]
    rows = [[name, *(f"{workload['ratio'][name]:.1f}" for workload in result["workloads"])] for name in names]
    bars = [f"{workload['bar']:.1f}" if workload.get("bar") else "" for workload in result["workloads"]]
    rows.append(["*target for “" + JUDGED + "”*", *bars])
    return (
        f"{table(head, rows)}\n\n"
        f"The numbers are medians of {result['repetitions']} repetitions in one process, measured with Python {result['python']} "
        f"on {result['cpus']} cores, using {versions(result['versions'])}.\n"
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
        "gradio / this row",
    ]
    return f"{table(head, rows)}\n\n{_where_bytes_go(result['rows'])}\n\nThe numbers were measured with Python {result['python']}, using {versions(result['versions'])}.\n"


def _where_bytes_go(rows: list[dict]) -> str:
    """Explain the size of one event per step."""
    row = next(
        r
        for r in rows
        if r["server"] == "tidewire, one event per step" and r["value"] == "grow" and r["n"] == 20_000
    )
    n, floor = row["n"], row["floor"]
    seqs = sum(len(str(seq)) for seq in range(3, n + 3))
    # overhead of `id:1-<seq>`, `data:"<text>"` and the blank line, without the seq and the text
    frame = len('id:1-\ndata:""\n\n')
    bare, checks = frame * n + seqs + floor, n // 64
    return (
        f"With one event per step, the stream has {row['stream']:,} bytes. Of these, {floor:,} bytes are the text, {seqs:,} bytes "
        f'are sequence numbers, and {frame} × {n:,} bytes are the characters that every event has (`id:1-`, `data:""` and line '
        f"ends). Together, without checks, this is {bare / floor:.2f} × the size of the text. A text needs a check every 64 changes, so {checks} events contain a check. "
        f"A check makes an event {row['checks'] / checks:.0f} bytes longer, and all checks together are "
        f"{row['checks'] / floor:.2f} × the size of the text. This overhead is insignificant by default, because servers merge events."
    )


def finding() -> str:
    result = json.loads((HERE / "results/finding.json").read_text())
    parts = []
    for title, table_of in result["tables"].items():
        sizes = sorted({int(size) for row in table_of["microseconds"].values() for size in row})
        head = [f"{title}, µs per step, by {table_of['unit']}", *(f"{size:,}" for size in sizes)]
        rows = [
            [name, *(f"{row[str(size)]:,.2f}" if str(size) in row else "not run" for size in sizes)]
            for name, row in table_of["microseconds"].items()
        ]
        parts.append(table(head, rows))
    exact = "; ".join(f"{name}: {right}" for name, right in result["exact"].items())
    return (
        "\n\n".join(parts)
        + f"\n\nTo compare correctness, each library computed and applied a diff for each of {result['edits']} small changes, "
        f"some of which replace a value by a value of another type. Number of changes reproduced exactly: {exact}.\n\n"
        f"The numbers are median CPU times of {result['repetitions']} repetitions, measured with Python {result['python']} on "
        f"{result['cpus']} cores, using "
        f"{versions(result['versions'])}.\n"
    )


def simplified() -> str:
    result = json.loads((HERE / "results/compare.json").read_text())
    rows = [
        [
            row["what"],
            f"{row['old']:,.2f} {row['unit']}",
            f"{row['new']:,.2f} {row['unit']}",
            f"{row['ratio']:.2f}",
            row["verdict"],
        ]
        for row in result["rows"]
    ]
    lines, commits = result["lines"], [result[side]["commit"][:10] for side in ("old", "new")]
    return (
        f"{table(['measurement', 'before', 'after', 'after / before', 'verdict'], rows)}\n\n"
        f"`src` has {lines['old']:,} lines of Python before and {lines['new']:,} after. The revisions are {commits[0]} and "
        f"{commits[1]}. The numbers are medians of {result['rounds']} rounds in which the revisions alternate, measured with "
        f"Python {result['python']} on {result['cpus']} cores. *within the spread* means that two runs of the same revision differ "
        f"as much.\n"
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
            "99th percentile, ms",
            "share of a core",
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
    peer = next((row["us"] for row in result["isolated"] if row["server"] == "sse-starlette"), None)
    each = table(
        ["server, 300 streams of 50 tokens/s", "CPU, µs per event", "sends per event", "× sse-starlette"],
        [
            [
                row["server"],
                f"{row['us']:.1f}",
                f"{row['sends']:.2f}",
                f"{row['us'] / peer:.2f}" if peer else "not run",
            ]
            for row in result["isolated"]
        ],
    )
    seconds = {row["n"]: row["seconds"] for row in result["history"] if row["server"] == "gradio"}
    stack = table(
        [
            "server and client",
            "N",
            "seconds",
            "gradio / this row",
            "server CPU, s",
            "client memory growth, MiB",
        ],
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
        f"The time from the submission of a job to the first event on the wire is {first['p50_ms']:.1f} ms (median) or {first['p99_ms']:.1f} ms (99th percentile).\n"
        f"All numbers were measured with Python {result['python']} on {result['cpus']} cores, using {versions(result['versions'])}.\n"
    )


def batching() -> str:
    result = json.loads((HERE / "results/batching.json").read_text())
    head = [
        "server",
        "batch size",
        "share of the ideal",
        "calls/s",
        "median, ms",
        "99th percentile, ms",
        "server CPU, ms per call",
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
            f"\nA call of an endpoint without `batch=True` takes {plain['alone_ms']:.2f} ms of server CPU time. If the same server also "
            f"has a batched endpoint, the call takes {abs(plain['pays']):.1%} {'less' if plain['pays'] < 0 else 'more'} time (median of paired runs). "
            f"The target is at most 2 % more time.\n"
        )
    )
    return (
        f"{table(head, rows)}\n\n"
        f"The numbers are medians of {result['repetitions']} runs with {result['at_once']} concurrent calls, measured with Python "
        f"{result['python']} on {result['cpus']} cores, using {versions(result['versions'])}.\n{pays}"
    )


def stalled() -> str:
    result = json.loads((HERE / "results/readers.json").read_text())
    head = ["server", "process, bytes per stream", "kernel", "total"]
    rows = [
        [row["server"], *(f"{row[name]:,.0f}" for name in ("process", "kernel", "together"))]
        for row in result["rows"]
    ]
    idle = " and ".join(
        f"{share:.1%} with a ping every {float(beat):g} s" for beat, share in result["idle_share"].items()
    )
    return (
        f"{table(head, rows)}\n\n"
        f"Together, {result['idle']:,} idle streams take this share of one core: {idle}. "
        f"All numbers were measured with Python {result['python']}, using {versions(result['versions'])}.\n"
    )


def end_to_end() -> str:
    result = json.loads((HERE / "results/end_to_end.json").read_text())
    head = [
        "server and client",
        "streams",
        "tokens per stream",
        "tokens per step",
        "tokens/s",
        "tidewire / this row",
    ]
    head += ["server CPU, µs per token", "client CPU, µs per token", "CPU / tidewire", "pieces per token"]
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
    source = ", ".join(f"{found:.2f} in blocks of {block}" for block, found in result["source_us"].items())
    return (
        f"{table(head, rows)}\n\nProducing one token takes this CPU time on the server, in µs: {source}. The numbers are medians of "
        f"{result['rounds']} rounds, measured with Python {result['python']} on {result['cpus']} cores, using "
        f"{versions(result['versions'])}.\n"
    )


def client() -> str:
    result = json.loads((HERE / "results/client.json").read_text())
    costs = result["us_per_event"]
    base = costs["httpx-sse + json"]
    paced = result["us_per_paced_event"]
    rows = [
        [
            kind,
            f"{cost:.1f}",
            f"{cost / base:.2f}",
            f"{paced[kind]:.0f}",
            f"{paced[kind] / paced['httpx-sse + json']:.2f}",
        ]
        for kind, cost in costs.items()
    ]
    head = [
        "client",
        "burst: CPU, µs per event",
        "× httpx-sse",
        "one per packet: CPU, µs per event",
        "× httpx-sse",
    ]
    first = ", ".join(f"{found:.1f} ms ({name})" for name, found in result["first_value_ms"].items())
    ways = {"value": "received as one value", "appends": "growing by appends"}
    held = {(one.get("way", "value"), one["document"]): one["grown"] for one in result["memory"]}
    sizes = sorted({document for _, document in held})
    memory = table(
        ["document", *(f"{size:,} bytes" for size in sizes)],
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
    short_head = ["short job", "CPU, ms", "× httpx.Client", "× httpx.AsyncClient"]
    crowds = {(row["client"], row["jobs"]): row["ms"] for row in result["crowd"]}
    numbers = sorted({jobs for _, jobs in crowds})
    crowd = table(
        ["short jobs that start at once, CPU per job, ms", *(f"{jobs:,} jobs" for jobs in numbers)],
        [
            [client, *(f"{crowds[client, jobs]:.2f}" for jobs in numbers)]
            for client in dict.fromkeys(client for client, _ in crowds)
        ],
    )
    return (
        f"{table(head, rows)}\n\n{table(short_head, short_rows)}\n\n{crowd}\n\n{memory}\n\n"
        f"The numbers are medians of {result['repetitions']} repetitions with {result['n']:,} events, and of {result['short_rounds']} "
        f"repetitions with {result['short_jobs']:,} short jobs. The time from the submission of a job to its first value is "
        f"{first}; *raw* is a client that only reads bytes. The last table shows the peak growth of the client's memory while it "
        f"receives a document, divided by the size of the document. A blocking client "
        f"that 16 threads call has {result['client_threads']} thread of its own. All numbers were measured with Python {result['python']}, using {versions(result['versions'])}.\n"
    )


def busy_threads() -> str:
    result = json.loads((HERE / "results/busy_threads.json").read_text())
    head = ["five functions that", "switch interval, ms", "`/healthz`, median, ms", "maximum, ms", "values/s"]
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
    return f"{table(head, rows)}\n\nThe numbers were measured with Python {result['python']}.\n"


def start() -> str:
    result = json.loads((HERE / "results/start.json").read_text())
    programs = result["cpu_seconds"]
    base = {name: programs[base_of(name)] for name in programs}
    head = [
        "new process",
        "CPU to the first response, s",
        "× httpx",
        "CPU of the whole process, s",
        "× httpx",
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
        ["longest time for which an `AsyncClient` blocks the event loop", "CPU, ms", "wall time, ms"],
        [
            [name, f"{1000 * seconds['cpu']:.0f}", f"{1000 * seconds['wall']:.0f}"]
            for name, seconds in result["loop_held_seconds"].items()
        ],
    )
    return f"{table(head, rows)}\n\n{held}\n\nThe numbers are medians of {result['runs']} runs with Python {result['python']}.\n"


def arrays() -> str:
    result = json.loads((HERE / "results/arrays.json").read_text())
    floor = result["parsers"]["json.loads"]
    rows = [
        [
            name,
            *(
                cell
                for side in ("client", "server")
                for cell in (f"{of[side]:.2f}", f"{of[side] / floor:.1f} ×")
            ),
        ]
        for name, of in result["seconds"].items()
    ]
    rows += [
        [f"`{name}`, in the client", f"{seconds:.2f}", f"{seconds / floor:.1f} ×", "", ""]
        for name, seconds in result["parsers"].items()
    ]
    head = ["function", "client, s", "× `json.loads`", "server, s", "× `json.loads`"]
    return (
        f"{table(head, rows)}\n\n"
        f"The JSON text of the {result['items']:,} arrays with {result['numbers']} numbers each has {result['bytes']:,} bytes. The "
        f"table shows seconds of CPU time, medians of {result['runs']} runs measured with Python {result['python']} on {result['cpus']} "
        f"cores, using {versions(result['versions'])}.\n"
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
        "\n\n".join(tables) + f"\n\nThe numbers are median CPU times of {result['repetitions']} repetitions, "
        f"measured with Python {result['python']}, using {versions(result['versions'])}.\n"
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
    head = ["server", "N", "steps/s", "seconds", "× whole states", "bytes", "× whole states"]
    return (
        f"{table(head, lines)}\n\nThe numbers are medians of {result['repetitions']} runs, measured with Python {result['python']}, using "
        f"{versions(result['versions'])}.\n"
    )


def growth() -> str:
    result = json.loads((HERE / "results/growth.json").read_text())
    groups: dict[str, list[dict]] = {}
    for case in result["cases"]:
        groups.setdefault(case["group"], []).append(case)
    rows = []
    for group, cases in groups.items():
        worst = max(
            cases, key=lambda case: (case["above"] or case["exponent"] <= result["target"], case["exponent"])
        )
        above = sum(case["above"] for case in cases)
        largest = max(map(int, worst["seconds"]))
        rows.append(
            [
                group,
                f"{len(cases)}",
                f"{above}",
                f"{worst['case']}, n = {largest:,}",
                f"{worst['exponent']:.2f}",
            ]
        )
    above = [case for case in result["cases"] if case["above"]]
    short = sum(case["exponent"] > result["target"] and not case["above"] for case in result["cases"])
    of_memory = (
        f" {short} more consist of a few copies of memory, which take less than 15 ms at a size of 512,000, and are not counted."
        if short
        else ""
    )
    named = "; ".join(f"{case['group']}: {case['case']} ({case['exponent']:.2f})" for case in above)
    return (
        f"{table(['operations', 'cases', 'above the target', 'case with the highest exponent', 'its exponent'], rows)}\n\n"
        f"Of {len(result['cases'])} cases, {len(above)} are above the target{': ' + named if named else ''}.{of_memory}\n\n"
        f"The numbers were measured with Python {result['python']}, using {versions(result['versions'])}.\n"
    )


def measured_with(result: dict) -> str:
    return (
        f"measured with Python {result['python']} on {result['cpus']} cores with a load average of {result['load']:.1f} at the "
        f"end, using {versions(result['versions'])}.\n"
    )
