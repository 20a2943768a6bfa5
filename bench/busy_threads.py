"""How long a server keeps others waiting while plain functions compute: five that yield without end, five that count.

Each runs in a thread, and Python gives the event loop its turn after the switch interval: 5 ms by Python's default,
0.5 ms by that of `tidewire serve` (setting `switch_interval`). Counted, for each: how long `/healthz` takes, and the
values that the functions yield in a second, of which a shorter interval might cost some.
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
ASKED = 20

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
    """One request; the body of its answer."""
    body = b'{"input": {}}' if method == "POST" else None
    http.request(method, path, body, {"Content-Type": "application/json"})
    return http.getresponse().read()


def measure(endpoint: str, interval: float) -> dict[str, float | str]:
    """Latency of `/healthz` in seconds, and values a second."""
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
        took = []
        for _ in range(ASKED):
            asked = time.monotonic()
            ask(http, "GET", "/healthz")
            took.append(time.monotonic() - asked)
            time.sleep(0.05)
        rate = (values() - first) / (time.monotonic() - begun)
    return {
        "functions": endpoint,
        "interval": interval,
        "median_ms": 1000 * statistics.median(took),
        "worst_ms": 1000 * max(took),
        "values_a_second": rate,
    }


def main() -> None:
    """Measure and print."""
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
                f"five that {endpoint[:-1]}, interval {1000 * interval:3.1f} ms: /healthz {row['median_ms']:4.0f} ms, "
                f"at worst {row['worst_ms']:4.0f} ms; {row['values_a_second']:8,.0f} values a second"
            )
    save(arguments.json, {"rows": rows}, "tidewire", "uvicorn")


if __name__ == "__main__":
    main()
