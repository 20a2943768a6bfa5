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
            "This workload comes from Gradio's pull request 7102. The last message of a chat grows by one number, N times, and each\n"
            "step yields the whole history. The second workload is a JSON value with a text deep inside. `GET` means that the client\n"
            "reads the stream from the log after the end of the job. The script is `python bench/wire.py`. At N = 20,000, the targets\n"
            "for one event per step are 4.6 × the text and 1/13 of the bytes that gradio sends. The target for merged events is 1.1 ×\n"
            "the text.",
            tables.wire,
        ),
        section(
            "Short runs over a slow link",
            "For short runs, sending diffs must not be slower than sending whole values. A client reads a chat of a hundred messages,\n"
            "whose last text grows N times, through a link with 30 Mbit/s and a round trip time of 40 ms. The script is\n"
            "`python bench/short_runs.py`. The target is at most 1.02 × the time of whole states, which the server sends with\n"
            "`?diffs=0`.",
            tables.short_runs,
        ),
        section(
            "Computing diffs",
            "These tables show what one step of a function costs the server until the event of the step is in the log. A step is\n"
            "either an explicit append, or the yield of a value that was changed in place. For the other libraries, only the\n"
            "computation of the diff is measured, without the copy of the previous value that they need. The script is\n"
            "`python bench/finding.py`. The targets are 0.5 µs for an append at any size and 10 µs for a yield at 10,000 rows.",
            tables.finding,
        ),
        section(
            "Applying diffs",
            "These tables show what it costs a client to apply a diff, by the size of the existing value. For bare strings and rows,\n"
            "the client changes the mutable document that it keeps for a stream. The pure function `apply` creates a new value. The\n"
            "script is `python bench/apply.py`. The target is 0.2 µs for an append to a text of any size.",
            tables.applying,
        ),
        section(
            "Streams",
            "The first table shows the delay of tokens after the fixed times at which they are due. The second table shows the cost\n"
            "of an event that is sent separately. The third table shows the workload of pull request 7102 with the complete server\n"
            "and client of both projects. The script is `python bench/streams.py --full`. The targets are 99 % of the tokens within\n"
            "20 ms at less than half a core, 99 % within 25 ms, 0.45 × sse-starlette, 1/40 of gradio's time, and 3 ms to the first\n"
            "event. The target for a separately sent event is about the cost of uvicorn itself (`raw ASGI`). It is not met, because\n"
            "the server applies and logs each event before it sends the event, so that a cut connection loses nothing. A server that\n"
            "sends 600 streams of separate events uses most of a core, so the slowest 1 % of their tokens meets the target only on an\n"
            "otherwise idle machine. By default the server merges tokens that follow each other within 5 ms, or within up to 50 ms\n"
            "under load.",
            tables.streams,
        ),
        section(
            "Tokens from function to application",
            "A function produces tokens one by one or in blocks of sixteen. An application receives each piece through one server\n"
            "process and one client process. tidewire merges tokens to at most one event per 5 ms. sse-starlette is used together\n"
            "with httpx-sse and a pydantic model for each event, and gradio together with gradio_client. The script is\n"
            "`python bench/end_to_end.py`. The targets for streams of 20,000 tokens are 10 × the tokens per second of sse-starlette\n"
            "and 30 × those of gradio. For single tokens, the first target is missed in tokens per second. The function that\n"
            "produces the tokens runs the event loop once for each token, which takes more than half of the server's CPU (see below\n"
            "the table). In short streams, most of the cost is the fixed cost of a job.",
            tables.end_to_end,
        ),
        section(
            "Cost of the client",
            "The client receives one event per chunk at full speed from a server that does nothing else. Other clients read the same\n"
            "events, except openai, which reads the same tokens in its own format. The script is `python bench/client.py`. There are\n"
            "four targets. Both the async and the blocking client take at most 0.9 × the time of httpx-sse with `json.loads`. A short\n"
            "job, from its submission to its value, takes at most 2 × the CPU of httpx reading the same bytes. The clients deliver\n"
            "the first value at most 2 ms later than a raw reader (in wall time, which is sensitive to load). They use memory of at\n"
            "most 3 × the document.\n\n"
            "Both clients send their requests with `httpx.AsyncClient`, which takes more CPU than `httpx.Client` for the same bytes.\n"
            "A short job therefore meets its target relative to `httpx.AsyncClient`, and misses it relative to `httpx.Client`. The\n"
            "client spends the remaining time on the five events of the job, which it parses, validates, applies and verifies with\n"
            "the digest, and on opening and closing the stream. The blocking client also switches threads twice for each call.",
            tables.client,
        ),
        section(
            "Request batching",
            "A function takes 20 ms for any number of inputs. There are 50 concurrent callers, and the function runs one call at a\n"
            "time. Size 1 means a function without `batch=True`. The ideal throughput is the throughput of the function alone. The\n"
            "script is `python bench/batching.py`. The target is 90 % of the ideal at each size.",
            tables.batching,
        ),
        section(
            "Stalled readers",
            "In this measurement, 50 readers open a stream and then read nothing while the job continues. The table shows the memory\n"
            "per stream. The script is `python bench/readers.py`. The target is 150,000 bytes per stream, including memory of the\n"
            "kernel.",
            tables.stalled,
        ),
        section(
            "CPU-bound plain functions",
            "Five plain functions (`def`) keep five threads of the server busy. The table shows the latency of other requests in this\n"
            "time, for several values of Python's thread switch interval. Python's default is 5 ms, and the default of\n"
            "`tidewire serve` is 0.5 ms. The script is `python bench/busy_threads.py`.",
            tables.busy_threads,
        ),
        section(
            "The log",
            "The table shows the CPU time of all threads per event, measured through the interface that the server uses. *Plain\n"
            "SQLite* means one table with one commit per block, without the thread, the fencing and the saved states of the server's\n"
            "log. The script is `python bench/log.py`. The targets, in blocks of 100 events, are 0.1 µs in memory and 0.5 µs in a\n"
            "file to which 20 jobs write.",
            tables.log,
        ),
        section(
            "Starting a process",
            "The table shows the CPU time from the start of an interpreter to the first response of a local server, compared with\n"
            "httpx, which sends the same request. The script is `python bench/start.py`. The targets are 1.4 × httpx, 0.3 s for\n"
            "`tidewire --version`, and 50 ms during which a call blocks the event loop. An import statement is not a call.\n\n"
            "The first target is missed. The row `httpx.AsyncClient, pydantic` is a program of ten lines that sends the same\n"
            "request on asyncio and validates the response with a pydantic model of one member. Because it imports asyncio and\n"
            "pydantic in addition to httpx, this program already exceeds the target. The client adds its own modules and models,\n"
            "and the thread of its event loop. If trio, click and rich are installed, httpx and httpcore import these packages,\n"
            "too. The last rows are measured without these packages, which most users do not have: httpx then takes less CPU, and\n"
            "the other programs have the same additional cost. The wall time includes time in which other processes ran.",
            tables.start,
        ),
        section(
            "Many short jobs",
            "One server runs 100 jobs at the same time, and the jobs use all parts of the server except its sockets. The memory of\n"
            "the server does not grow with the number of finished jobs. The script is `python bench/jobs.py`.",
            tables.jobs,
        ),
        section(
            "Decoding event streams",
            "The table shows the speed of decoders for event streams relative to httpx-sse. A higher number is better. The script is\n"
            "`python bench/decoder.py`.",
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
