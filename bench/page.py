"""Writes docs/explanation/measurements.md from the results of the measurement scripts in bench/results/."""

import re
from collections.abc import Callable
from pathlib import Path

import tables

PAGE = Path(__file__).parents[1] / "docs/explanation/measurements.md"


def section(title: str, description: str, render: Callable[[], str]) -> str:
    """Render a section with its description and table. Without results, keep the section of the existing page."""
    try:
        return f"## {title}\n\n{description}\n\n{render()}"
    except FileNotFoundError as error:
        print(f"{error.filename} does not exist, so the section {title!r} stays unchanged")
        found = re.search(
            rf"^## {re.escape(title)}\n.*?(?=\n## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE
        )
        return found[0] if found else f"## {title}\n\n{description}\n\nNot run.\n"


def main() -> None:
    sections = [
        section(
            "Bytes on the wire while a text grows",
            "The first workload comes from Gradio's pull request 7102. In each of N steps, the last message of a chat grows by one\n"
            "number, and the function yields the whole history. The second workload is a JSON value that contains a deeply nested\n"
            "text. `GET` means that the client reads the stream from the log after the end of the job. The script is\n"
            "`python bench/wire.py`. At N = 20,000, the targets for one event per step are 4.6 × the size of the text and 1/13 of the\n"
            "bytes that gradio sends. The target for merged events is 1.1 × the size of the text.",
            tables.wire,
        ),
        section(
            "Short runs over a slow link",
            "For short runs, sending diffs must not be slower than sending whole values. A client reads a chat of a hundred messages,\n"
            "whose last text grows N times, through a link with 30 Mbit/s and a round trip time of 40 ms. The script is\n"
            "`python bench/short_runs.py`. The target is at most 1.02 × the time that the client takes to read whole states\n"
            "(`?diffs=0`).",
            tables.short_runs,
        ),
        section(
            "Computing diffs",
            "These tables show the CPU time that the server takes for one step of a function, until the event of the step is in the\n"
            "log. In a step, the function either appends explicitly, or yields a value that it has changed in place. For the other\n"
            "libraries, only the computation of the diff is measured. These libraries also need a copy of the previous value, which\n"
            "the numbers do not include. The script is `python bench/finding.py`. The targets are 0.5 µs for an append at any size\n"
            "and 10 µs for a yield at 10,000 rows.",
            tables.finding,
        ),
        section(
            "Applying diffs",
            "These tables show the CPU time that a client takes to apply a diff, for several sizes of the existing value. To apply a\n"
            "row, or a diff that is only a string, the client changes the mutable document that it keeps for a stream. The pure\n"
            "function `apply` creates a new value. The script is `python bench/apply.py`. The target is 0.2 µs for an append to a\n"
            "text of any size.",
            tables.applying,
        ),
        section(
            "Streams",
            "Tokens are due at fixed times, and the first table shows how late they arrive. The second table shows the cost of an\n"
            "event that is sent separately. The third table shows the workload of Gradio's pull request 7102 with the complete server\n"
            "and client of both projects. The script is `python bench/streams.py --full`. The targets for the first table are 99 % of\n"
            "the tokens within 20 ms at less than half a core for 100 streams, and 99 % within 25 ms for 600 streams. The other\n"
            "targets are 0.45 × the cost of sse-starlette, 1/40 of gradio's time, and 3 ms to the first event. The target for a\n"
            "separately sent event is about the cost of uvicorn itself (`raw ASGI`). This target is not met. The server applies and\n"
            "logs each event before it sends the event, so that a cut connection loses nothing. A server that sends 600 streams of\n"
            "separate events uses most of a core, so the slowest 1 % of their tokens meets the target only on an otherwise idle\n"
            "machine. By default the server merges tokens that follow each other within 5 ms, or within up to 50 ms under load.",
            tables.streams,
        ),
        section(
            "Tokens from function to application",
            "A function produces tokens one by one or in blocks of sixteen. An application receives each piece through one server\n"
            "process and one client process. tidewire merges the tokens so that it sends at most one event per 5 ms. sse-starlette is\n"
            "used together with httpx-sse and a pydantic model for each event, and gradio together with gradio_client. The script is\n"
            "`python bench/end_to_end.py`. The targets for streams of 20,000 tokens are 10 × the tokens per second of sse-starlette\n"
            "and 30 × those of gradio. For single tokens, the first target is missed in tokens per second. The function that produces\n"
            "the tokens runs the event loop once for each token, which takes more than half of the server's CPU (see below the\n"
            "table). In short streams, most of the cost is the fixed cost of a job.",
            tables.end_to_end,
        ),
        section(
            "Cost of the client",
            "The client receives one event per chunk at full speed from a server that does nothing else. Other clients read the same\n"
            "events, except openai, which reads the same tokens in its own format. The script is `python bench/client.py`. There are\n"
            "four targets. Both the async and the blocking client take at most 0.9 × the time of httpx-sse with `json.loads`. A short\n"
            "job, from its submission to its value, takes at most 2 × the CPU time that httpx takes to read the same bytes. The\n"
            "clients deliver the first value at most 2 ms later than a raw reader (in wall time, which is sensitive to load). Their\n"
            "memory use is at most 3 × the size of the document.\n\n"
            "Both clients send their requests with `httpx.AsyncClient`, which takes more CPU than `httpx.Client` for the same bytes.\n"
            "A short job therefore meets its target relative to `httpx.AsyncClient`, and misses it relative to `httpx.Client`. The\n"
            "client spends the remaining time on the five events of the job, which it parses, validates, applies and verifies with\n"
            "the digest, and on opening and closing the stream. The blocking client also switches threads twice for each call.",
            tables.client,
        ),
        section(
            "Request batching",
            "A function takes 20 ms for any number of inputs. There are 50 concurrent callers, and the server runs one call of the\n"
            "function at a time. Size 1 means a function without `batch=True`. The ideal throughput is the throughput of the function\n"
            "alone. The script is `python bench/batching.py`. The target is 90 % of the ideal throughput at each size.",
            tables.batching,
        ),
        section(
            "Stalled readers",
            "In this measurement, 50 readers open a stream and then read nothing while the job continues. The table shows the memory\n"
            "per stream. The script is `python bench/readers.py`. The target is 150,000 bytes per stream, including kernel memory.",
            tables.stalled,
        ),
        section(
            "CPU-bound plain functions",
            "Five plain functions (`def`) keep five threads of the server busy. The table shows the latency of other requests during\n"
            "this time, for several values of Python's thread switch interval. Python's default is 5 ms, and the default of\n"
            "`tidewire serve` is 0.5 ms. The script is `python bench/busy_threads.py`.",
            tables.busy_threads,
        ),
        section(
            "The log",
            "The table shows the CPU time of all threads per event, measured through the interface that the server uses. *Plain\n"
            "SQLite* means one table with one commit per block, without the thread, the fencing and the saved states of the server's\n"
            "log. The script is `python bench/log.py`. For blocks of 100 events, the targets are 0.1 µs per event in memory, and 0.5\n"
            "µs per event in a file to which 20 jobs write.",
            tables.log,
        ),
        section(
            "Starting a process",
            "The table shows the CPU time from the start of an interpreter to the first response of a local server, compared with\n"
            "httpx, which sends the same request. The script is `python bench/start.py`. There are three targets. The first response\n"
            "takes at most 1.4 × the CPU time of httpx. The command `tidewire --version` takes at most 0.3 s. No call blocks the\n"
            "event loop for more than 50 ms, where an import statement does not count as a call.\n\n"
            "The target of 1.4 × httpx is missed. The row `httpx.AsyncClient, pydantic` is a program of ten lines that sends the same\n"
            "request on asyncio and validates the response with a pydantic model of one member. Because it imports asyncio and\n"
            "pydantic in addition to httpx, this program already exceeds the target. The client adds its own modules and models, and\n"
            "the thread of its event loop. If trio, click and rich are installed, httpx and httpcore import these packages, too. Most\n"
            "users do not have these packages, so the last rows are measured without them. In these rows httpx takes less CPU time,\n"
            "and the additional cost of the other programs is the same. The wall time includes time in which other processes ran.",
            tables.start,
        ),
        section(
            "Many short jobs",
            "A client sends jobs over 100 connections, and reads the event stream of each job up to its end. The client is a\n"
            "process of its own on the same machine. The memory of the server does not grow with the number of finished jobs. The\n"
            "script is `python bench/jobs.py`.",
            tables.jobs,
        ),
        section(
            "Decoding event streams",
            "The table shows the speed of event stream decoders relative to the speed of httpx-sse. A higher number is better. The\n"
            "script is `python bench/decoder.py`.",
            tables.decoder,
        ),
    ]
    PAGE.write_text(
        "# Measurements\n\n"
        "`bench/page.py` generates this page from the last results of the measurement scripts, which you can run yourself.\n"
        "Absolute numbers depend on the machine, so compare only the ratios within one run.\n\n"
        + "\n".join(sections)
    )


if __name__ == "__main__":
    main()
