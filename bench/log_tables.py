"""Tables of the log, of short jobs, of the load on PostgreSQL and of the capacity that follows from it."""

import json
from typing import Any, Final

from tables import HERE, table, versions

DAY: Final = 86_400
PEAK: Final = 5
"""Assumed ratio of the jobs per second in the busiest minutes to the mean of the day."""
RETAINED_JOBS: Final = 20_000
"""Default of `max_retained_jobs`."""


def log() -> str:
    result = json.loads((HERE / "results/log.json").read_text())
    head = ["log", "events per block", "concurrent logs", "append, µs", "replay, µs", "append, wall time, µs"]
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
    concurrent = table(
        ["log", "jobs", "blocks/s", "median, ms", "99th percentile, ms"],
        [
            [
                row["log"],
                str(row["jobs"]),
                f"{row['blocks_per_second']:,.0f}",
                *(f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms")),
            ]
            for row in result["concurrent"]
        ],
    )
    killed = result["kill"]
    return (
        f"{table(head, rows)}\n\n"
        "In the next table, each job appends blocks of one event, and waits for its commit before its next block. A store in\n"
        f"memory never waits. Each row was measured for {result['seconds']:g} s.\n\n"
        f"{concurrent}\n\n"
        f"After a server is killed and started again, the first event of the new attempt arrives {killed['resumed_ms']:.0f} ms after the kill.\n"
        f"Most of this time is spent on the start of Python and the imports of the server. A separate process that only starts, imports the\n"
        f"server and ends takes {killed['process_start_ms']:.0f} ms. Both numbers are medians of {killed['kills']} runs.\n\n"
        f"The numbers are medians of {result['repetitions']} repetitions, measured with Python {result['python']} on "
        f"{result['cpus']} cores, using "
        f"{versions(result['versions'])}.\n"
    )


def jobs() -> str:
    result = json.loads((HERE / "results/jobs.json").read_text())
    measured = {log: runs["this"] for log, runs in result["results"].items()}
    speeds = table(
        ["log", "jobs/s", "median, ms", "99th percentile, ms", "CPU per job, µs"],
        [
            [log, *(f"{each[name]:,.0f}" for name in ("per_second", "p50_ms", "p99_ms", "cpu_us_per_job"))]
            for log, each in measured.items()
        ],
    )
    rows = zip(*(each["rows"] for each in measured.values()), strict=True)
    memory = table(
        ["jobs", *(f"MiB, log in {log}" for log in measured)],
        [[f"{row[0]['jobs']:,}", *(f"{each['rss_kib'] / 1024:.1f}" for each in row)] for row in rows],
    )
    kept = f"{result['retained']:,}"
    return (
        f"{speeds}\n\n{memory}\n\nThe server keeps {kept} ended jobs. The numbers were measured over {result['connections']} "
        f"connections with Python {result['python']}.\n"
    )


def replicas() -> str:
    result = json.loads((HERE / "results/replicas.json").read_text())
    kinds = {"notified": "with notifications", "polled": "with polls only"}
    head = ["several servers", "median, ms", "99th percentile, ms", "longest, ms"]
    rows = []
    for kind, words in kinds.items():
        row = result["latencies"][kind]
        rows.append(
            [
                f"token at another server, {words}",
                *(f"{row[name]:.1f}" for name in ("token_p50_ms", "token_p99_ms")),
                "",
            ]
        )
        rows.append(
            [
                f"cancel at another server, {words}",
                *(f"{row['cancel_p50_ms']:.1f}", "", f"{row['cancel_max_ms']:.1f}"),
            ]
        )
    resume = result["resume"]
    rows.append(["read at another server", f"{resume['read_p50_ms']:.1f}", "", ""])
    rows.append(
        ["resume there after a kill", f"{resume['resume_p50_ms']:.1f}", "", f"{resume['resume_max_ms']:.1f}"]
    )
    restart, batches = result["restart"], result["batches"]
    longest = "longest wait of a reader while three servers restart"
    rows.append([longest, f"{restart['p50_ms']:,.0f}", "", f"{restart['max_ms']:,.0f}"])
    speeds = result["throughput"]["tokens_per_second"]
    return (
        f"{table(head, rows)}\n\n"
        f"Functions that compute wrote {speeds['one']:,.0f} tokens per second through one server and {speeds['two']:,.0f} through two, "
        f"which is {result['throughput']['speed_up']:.2f} times as many. Two plain processes that only compute are "
        f"{result['throughput']['plain_speed_up']:.2f} times as fast as one. With 50 callers, a batch had {batches['one']:.1f} inputs with one worker and "
        f"{batches['two']:.1f} with two. There were {result['resume']['kills']} kills. The numbers were "
        f"measured with Python {result['python']} on {result['cpus']} cores, which PostgreSQL, the servers and their clients shared, "
        f"using {versions(result['versions'])}.\n"
    )


def large_values() -> str:
    result = json.loads((HERE / "results/large_values.json").read_text())
    head = ["log", "values, MB", "alone, p99, ms", "median, ms", "p99, ms", "longest, ms", "written, MB/s"]
    names = ("quiet_p99_ms", "busy_p50_ms", "busy_p99_ms", "busy_max_ms", "large_mb_per_s")
    rows = [
        [row["log"], f"{row['value_bytes'] / 1e6:.0f}", *(f"{row[name]:,.1f}" for name in names)]
        for row in result["rows"]
    ]
    return (
        f"{table(head, rows)}\n\n"
        f"The numbers were measured with Python {result['python']} on {result['cpus']} cores.\n"
    )


def _result() -> dict[str, Any]:
    return json.loads((HERE / "results/postgres_load.json").read_text())


def postgres_load() -> str:
    result = _result()
    names = ("commits", "rows", "disk_bytes", "wal_bytes", "postgres_us", "server_us")
    rows = [
        [
            f"token, {row['streams']} {'stream' if row['streams'] == 1 else 'streams'} of {row['rate']:g} tokens/s",
            *(_cell(row[name]) for name in names),
        ]
        for row in result["streams"]
    ]
    rows.append(
        [
            f"short job, over {result['jobs']['connections']} connections",
            *(_cell(result["jobs"][name]) for name in names),
        ]
    )
    head = [
        "for one",
        "commits",
        "rows with events",
        "bytes on disk",
        "bytes of WAL",
        "CPU of PostgreSQL, µs",
        "CPU of the server, µs",
    ]
    idle = result["idle"]
    return (
        f"{table(head, rows)}\n\n"
        f"A server without jobs makes {idle['commits']:.1f} commits and writes {idle['wal_bytes']:.0f} bytes of WAL per second, which "
        f"is its heartbeat. The streams ran for {result['seconds']:g} s. There were {result['jobs']['jobs']:,} short jobs. The numbers "
        f"were measured with Python {result['python']} on {result['cpus']} cores, which PostgreSQL, the server and its clients "
        f"shared, using {versions(result['versions'])}.\n"
    )


def _cell(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.3f}"


def capacity() -> str:
    result = _result()
    at_once = max(row["streams"] for row in result["streams"])
    streams = table(
        [
            "streams",
            "tokens/s each",
            "rows/s",
            "commits/s, at most",
            "WAL, MB/s",
            "cores of PostgreSQL",
            "cores of servers",
            "events of 10 minutes, GB",
        ],
        [
            [
                f"{streams:,}",
                f"{row['rate']:g}",
                *(_cell(streams * row["rate"] * row[name]) for name in ("rows", "commits")),
                *(
                    _cell(streams * row["rate"] * row[name] / 1e6)
                    for name in ("wal_bytes", "postgres_us", "server_us")
                ),
                _cell(streams * row["rate"] * row["disk_bytes"] * 600 / 1e9),
            ]
            for row in result["streams"]
            if row["streams"] == at_once
            for streams in (100, 1_000, 10_000)
        ],
    )
    job = result["jobs"]
    jobs = table(
        [
            "jobs per day",
            "mean jobs/s",
            f"jobs/s at a peak of {PEAK} ×",
            "commits/s at the peak",
            "cores of PostgreSQL at the peak",
            "cores of servers at the peak",
            "WAL per day, GB",
            "ended jobs of an hour, MB",
            f"{RETAINED_JOBS:,} jobs last",
        ],
        [
            [
                f"{daily:,}",
                _cell(daily / DAY),
                _cell(peak := daily / DAY * PEAK),
                _cell(peak * job["commits"]),
                *(_cell(peak * job[name] / 1e6) for name in ("postgres_us", "server_us")),
                _cell(daily * job["wal_bytes"] / 1e9),
                _cell(daily / 24 * job["disk_bytes"] / 1e6),
                _duration(RETAINED_JOBS / (daily / DAY)),
            ]
            for daily in (10_000, 100_000, 1_000_000)
        ],
    )
    return (
        f"{streams}\n\n{jobs}\n\n"
        f"Each number is a product of a row of the previous section: of tokens at {at_once} streams, or of short jobs.\n"
    )


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h" if hours >= 10 else f"{hours} h {minutes} min" if hours else f"{minutes} min"
