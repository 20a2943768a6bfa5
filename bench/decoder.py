"""Speed of decoding event streams with `tidewire.protocol.sse.Decoder`, compared with other decoders in one process.

Each reader reads the same chunks from an asynchronous source in memory and creates event objects. The baseline is
`httpx_sse.EventSource.aiter_sse`; a ratio of 3 means three times as fast. Times are process CPU time: medians over
repetitions in which the readers alternate. Sockets, HTTP and TLS are not included.

Readers marked `response` read the source through an `httpx.Response`, as an application does. The baseline supports
only this form, so the targets apply to the tidewire row of the same form. That row uses `aiter_raw`, as the client
does, because streams have no content coding. A separate row uses `aiter_bytes`, as openai and anthropic do. Rows marked
`alone` use neither httpx nor the async source.

    python bench/decoder.py            about a minute
    python bench/decoder.py --quick    a few seconds, noisier
"""

import argparse
import asyncio
import codecs
import gc
import importlib
import importlib.metadata
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from measured import HINT, save

from tidewire.protocol.sse import Decoder, Event

try:
    import httpx_sse
    from httpx_sse._decoders import SSEDecoder, SSELineDecoder
except ModuleNotFoundError:
    sys.exit(f"httpx-sse is not installed, and all results are relative to it; {HINT}")

TOKEN = b'{"type":"token","index":0,"t":" the"}'
CHUNK = 16 * 1024
BASE, OURS = "httpx-sse, response", "tidewire, response"


# --- workloads


@dataclass
class Workload:
    name: str
    chunks: list[bytes]
    events: int
    bar: float | None
    """Target: minimum speed relative to the baseline. For events in bursts, the client may take at most the CPU time of
    httpx-sse (bench/client.py). At 1.5, decoding takes two thirds of it, and a third is left for everything else."""


def cut(stream: bytes, size: int) -> list[bytes]:
    return [stream[i : i + size] for i in range(0, len(stream), size)]


def workloads(scale: int) -> list[Workload]:
    tiny, large, huge, single = 20_000 // scale, 2_000 // scale, max(10 // scale, 2), 800 // scale
    frames = [b"id: %d\ndata: %s\n\n" % (n, TOKEN) for n in range(tiny)]
    with_id = b"".join(frames)
    mixed = [b"event: progress\ndata: {}\n\n" if n % 10 == 0 else frame for n, frame in enumerate(frames)]
    join = b"".join
    return [
        Workload("tokens, id", cut(with_id, CHUNK), tiny, 1.5),
        Workload("no id", cut(b"data: %s\n\n" % TOKEN * tiny, CHUNK), tiny, 1.5),
        Workload("CRLF", cut(with_id.replace(b"\n", b"\r\n"), CHUNK), tiny, 1.5),
        Workload(
            "1 KB",
            cut(join(b"id: %d\ndata: %s\n\n" % (n, b"x" * 1000) for n in range(large)), CHUNK),
            large,
            1.5,
        ),
        Workload(
            "1 MB",
            cut(join(b"id: %d\ndata: %s\n\n" % (n, b"x" * 10**6) for n in range(huge)), CHUNK),
            huge,
            1.0,
        ),
        Workload("one a chunk", frames, tiny, 1.5),
        Workload("1-byte chunks", cut(join(frames[:single]), 1), single, 2.0),
        Workload(
            "tidewire/1", cut(join(b'id:1-%d\ndata:" the"\n\n' % n for n in range(tiny)), CHUNK), tiny, None
        ),
        Workload("mixed types", cut(join(mixed), CHUNK), tiny, None),
        Workload(
            "data, then id", cut(join(b"data: %s\nid: 7\n\n" % TOKEN for _ in range(tiny)), CHUNK), tiny, None
        ),
    ]


# --- readers


class Source(httpx.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


def response_of(chunks: list[bytes]) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Source(chunks))


async def events_of(source: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    feed = Decoder().feed
    async for chunk in source:
        for event in feed(chunk):
            yield event


def httpx_sse_alone(chunks: list[bytes]) -> Iterator[Any]:
    text, lines, decoder = codecs.getincrementaldecoder("utf-8")("replace"), SSELineDecoder(), SSEDecoder()
    for chunk in chunks:
        for line in lines.decode(text.decode(chunk)):
            event = decoder.decode(line)
            if event is not None:
                yield event


def tidewire_alone(chunks: list[bytes]) -> Iterator[Event]:
    feed = Decoder().feed
    for chunk in chunks:
        yield from feed(chunk)


def readers() -> tuple[dict[str, Callable[[list[bytes]], Any]], dict[str, str]]:
    """Return the readers by name, and the missing packages with the reason."""
    found: dict[str, Callable[[list[bytes]], Any]] = {
        BASE: lambda chunks: httpx_sse.EventSource(response_of(chunks)).aiter_sse(),
        OURS: lambda chunks: events_of(response_of(chunks).aiter_raw()),
        "tidewire, aiter_bytes": lambda chunks: events_of(response_of(chunks).aiter_bytes()),
    }
    missing = {}
    for name in ("openai", "anthropic"):
        try:
            streaming = importlib.import_module(f"{name}._streaming")
        except ImportError as error:
            missing[name] = str(error)
            continue
        found[f"{name}, aiter_bytes"] = lambda chunks, sse=streaming.SSEDecoder: sse().aiter_bytes(
            response_of(chunks).aiter_bytes()
        )
    found["tidewire, async source"] = lambda chunks: events_of(aiter(Source(chunks)))
    found["tidewire, alone"] = tidewire_alone
    found["httpx-sse, alone"] = httpx_sse_alone
    try:
        reader = importlib.import_module("ld_eventsource.reader")
    except ImportError as error:
        missing["launchdarkly-eventsource"] = str(error)
    else:
        found["launchdarkly, alone"] = lambda chunks: reader._SSEReader(
            reader._BufferedLineReader.lines_from(chunks)
        ).events_and_comments()
    found["bytes.split (floor)"] = lambda chunks: iter(b"".join(chunks).removesuffix(b"\n\n").split(b"\n\n"))
    return found, missing


async def measure(read: Callable[[list[bytes]], Any], chunks: list[bytes]) -> tuple[int, float]:
    """Return the number of decoded events and the CPU time in seconds."""
    gc.collect()
    count = 0
    began = time.process_time()
    events = read(chunks)
    if hasattr(events, "__aiter__"):
        async for _ in events:
            count += 1
    else:
        for _ in events:
            count += 1
    return count, time.process_time() - began


async def compare(workload: Workload, found: dict[str, Any], repetitions: int) -> dict[str, float | str]:
    """Return the nanoseconds per event of each reader, or the reason for a missing result."""
    times: dict[str, list[float]] = {name: [] for name in found}
    failed: dict[str, str] = {}
    for _ in range(repetitions):
        for name, read in found.items():
            if name in failed or (name.startswith("bytes.split") and workload.name == "CRLF"):
                failed.setdefault(name, "-")
                continue
            count, seconds = await measure(read, workload.chunks)
            if count != workload.events:
                failed[name] = f"wrong: {count}"
            times[name].append(seconds / workload.events * 1e9)
    return {name: failed.get(name) or statistics.median(times[name]) for name in found}


# --- linearity


def linearity(quick: bool) -> list[dict[str, Any]]:
    """Measure the nanoseconds per byte for lines of growing length. A linear decoder has a constant result."""
    sizes = [250_000, 1_000_000] if quick else [1_000_000, 4_000_000, 16_000_000]
    rows = []
    for chunk_size in (64, 1):
        row = {"chunk_bytes": chunk_size, "line_bytes": [], "ns_per_byte": []}
        for size in sizes if chunk_size > 1 else sizes[:2]:
            chunks = [b"data:", *cut(bytes(size), chunk_size), b"\n\n"]
            durations = []
            for _ in range(3):
                decoder = Decoder()
                began = time.process_time()
                events = [event for chunk in chunks for event in decoder.feed(chunk)]
                durations.append((time.process_time() - began) / size * 1e9)
                if [len(event.data) for event in events] != [size]:
                    raise RuntimeError(
                        f"a line of {size} bytes in chunks of {chunk_size} was decoded incompletely"
                    )
            row["line_bytes"].append(size)
            row["ns_per_byte"].append(statistics.median(durations))
        rows.append(row)
    return rows


# --- the report


def print_report(report: dict[str, Any]) -> None:
    for name, why in report["missing"].items():
        print(f"not measured, because it is not installed: {name} ({why})")
    print(f"\nns per event (speed relative to {BASE}), medians of {report['repetitions']} repetitions\n")
    rows = report["workloads"]
    for part in (rows[:5], rows[5:]):
        print(f"{'':24}" + "".join(f"{row['name']:>19}" for row in part))
        for name in part[0]["ns_per_event"]:
            cells = []
            for row in part:
                durations = row["ns_per_event"][name]
                cell = (
                    durations
                    if isinstance(durations, str)
                    else f"{durations:,.0f} ({row['ratio'][name]:.2f})"
                )
                cells.append(f"{cell:>19}")
            print(f"{name:24}" + "".join(cells))
        bars = [f"{row['bar']} {'met' if row['met'] else 'MISSED'}" if row["bar"] else "-" for row in part]
        print(f"{'target for our response':24}" + "".join(f"{bar:>19}" for bar in bars) + "\n")
    for row in report["linearity"]:
        durations = ", ".join(
            f"{n:,} bytes {t:.1f}" for n, t in zip(row["line_bytes"], row["ns_per_byte"], strict=True)
        )
        print(
            f"one line in {row['chunk_bytes']}-byte chunks, ns per byte: {durations}; ratio of longest to shortest {row['growth']:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="do a tenth of the work; the results are noisier"
    )
    parser.add_argument("--repetitions", type=int, default=7, metavar="N", help="at least 5 (default: 7)")
    default = Path(__file__).parent / "results" / "decoder.json"
    parser.add_argument(
        "--out", type=Path, default=default, help="output file (default: bench/results/decoder.json)"
    )
    options = parser.parse_args()
    if options.repetitions < 5:
        parser.error("--repetitions must be at least 5: the median of fewer repetitions is too noisy")

    found, missing = readers()
    rows = []
    for workload in workloads(10 if options.quick else 1):
        durations = asyncio.run(compare(workload, found, options.repetitions))
        ratio = {name: durations[BASE] / ns for name, ns in durations.items() if not isinstance(ns, str)}
        rows.append(
            {
                "name": workload.name,
                "events": workload.events,
                "bytes": sum(map(len, workload.chunks)),
                "chunks": len(workload.chunks),
                "bar": workload.bar,
                "met": workload.bar is None or ratio[OURS] >= workload.bar,
                "ns_per_event": durations,
                "ratio": ratio,
            }
        )
    lines = linearity(options.quick)
    for row in lines:
        row["growth"] = row["ns_per_byte"][-1] / row["ns_per_byte"][0]
    packages = ("tidewire", "httpx", "httpx-sse", "openai", "anthropic", "launchdarkly-eventsource")
    report = {
        "question": "How fast are event streams decoded, relative to httpx-sse in the same run?",
        "missing": missing,
        "quick": options.quick,
        "repetitions": options.repetitions,
        "workloads": rows,
        "linearity": lines,
    }
    print_report(report)
    save(options.out, report, *packages)


if __name__ == "__main__":
    main()
