"""Latency of a server while plain functions keep its threads busy: five generators that yield, or five loops that count.

Each function runs in a thread. Python switches from the thread to the event loop after the switch interval: 5 ms by
Python's default, 0.5 ms by default in `tidewire serve` (setting `switch_interval`). For each interval, the script
measures the latency of `/healthz` and the number of values per second that the functions yield. A shorter interval
might reduce this number.
"""

import argparse
import json
import statistics
import time
from http.client import HTTPConnection
from pathlib import Path

from measured import save
from readers import serving

FUNCTIONS = 5
INTERVALS = (0.005, 0.001, 0.0005)
PROBES = 20

SERVER = """
import sys
from collections.abc import Iterator
from tidewire_server import Server

sys.setswitchinterval(float(sys.argv[2]))
server = Server(default_concurrency_limit=None)

@server.endpoint
def yields() -> Iterator[int]:
    n = 0
    while True:
        n += 1
        yield n

@server.endpoint
def counts() -> int:
    n = 0
    while True:
        n += 1

server.run(port=0, port_file=sys.argv[1])
"""


def ask(http: HTTPConnection, method: str, path: str) -> bytes:
    """Send a request and return the body of the response."""
    body = b'{"input": {}}' if method == "POST" else None
    http.request(method, path, body, {"Content-Type": "application/json"})
    return http.getresponse().read()


def measure(endpoint: str, interval: float) -> dict[str, float | str]:
    """Measure the latency of `/healthz` and the values per second."""
    with serving(SERVER, str(interval)) as (_, port):
        http = HTTPConnection("127.0.0.1", port, timeout=60)
        jobs = [
            json.loads(ask(http, "POST", f"/v1/endpoints/{endpoint}/jobs"))["id"] for _ in range(FUNCTIONS)
        ]
        time.sleep(1)

        def values() -> int:
            states = [json.loads(ask(http, "GET", f"/v1/jobs/{job}"))["state"] for job in jobs]
            return sum(state["items"][0]["value"] or 0 for state in states)

        begun, first = time.monotonic(), values()
        latencies = []
        for _ in range(PROBES):
            asked = time.monotonic()
            ask(http, "GET", "/healthz")
            latencies.append(time.monotonic() - asked)
            time.sleep(0.05)
        rate = (values() - first) / (time.monotonic() - begun)
    return {
        "functions": endpoint,
        "interval": interval,
        "median_ms": 1000 * statistics.median(latencies),
        "worst_ms": 1000 * max(latencies),
        "values_a_second": rate,
    }


def main() -> None:
    """Measure all functions and intervals, print the results and save them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "busy_threads.json")
    arguments = parser.parse_args()
    rows = []
    for endpoint in ("yields", "counts"):
        for interval in INTERVALS:
            rows.append(row := measure(endpoint, interval))
            print(
                f"five functions that {endpoint[:-1]}, interval {1000 * interval:3.1f} ms: /healthz median "
                f"{row['median_ms']:4.0f} ms, maximum {row['worst_ms']:4.0f} ms; {row['values_a_second']:8,.0f} values/s"
            )
    save(arguments.json, {"rows": rows}, "tidewire", "uvicorn")


if __name__ == "__main__":
    main()
