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
            "The workload of Gradio's pull request 7102: the last message of a chat grows by one number, N times, and each step\n"
            "yields the whole history. `python bench/wire.py`. The targets at N = 20,000 are 4.6 × the text and 1/13 of gradio\n"
            "for one event per step, and 1.1 × the text when merged. The same is measured for a JSON value with a text deep\n"
            "inside, and for a stream that is read from the log with GET after the end of the job.",
            tables.wire,
        ),
        section(
            "Short runs over a slow link",
            "Diffs must not be slower than whole values. A chat of a hundred messages, whose last text grows N times, is read\n"
            "through a link with 30 Mbit/s and a round trip time of 40 ms. `python bench/short_runs.py`. The target is at most 1.02 ×\n"
            "the time of whole states, which the server sends with `?diffs=0`.",
            tables.short_runs,
        ),
        section(
            "Computing diffs",
            "Server cost of one step of a function until its event is in the log: an explicit append, or yielding a value that\n"
            "was changed in place. For other libraries only the diff is measured, without the copy that they need.\n"
            "`python bench/finding.py`. The targets are 0.5 µs for an append at any size and 10 µs for a yield at 10,000 rows.",
            tables.finding,
        ),
        section(
            "Applying diffs",
            "Client cost of applying a diff, by the size of the existing value. Bare strings and rows are applied to the mutable\n"
            "document that a client keeps for a stream; the pure `apply` creates a new value. `python bench/apply.py`. The target\n"
            "is 0.2 µs for an append to a text of any size.",
            tables.applying,
        ),
        section(
            "Streams",
            "The delay of tokens after fixed due times, the cost of an event that is sent separately, and the workload of pull\n"
            "request 7102 through the complete server and client of both projects. `python bench/streams.py --full`. The targets\n"
            "are 99 % of the tokens within 20 ms at less than half a core, 99 % within 25 ms, 0.45 × sse-starlette, 1/40 of\n"
            "gradio's time, and 3 ms to the first event. The cost of a separately sent event misses its target, which is about\n"
            "the cost of uvicorn itself (`raw ASGI`), because the server applies and logs each event before sending it. A cut\n"
            "connection therefore loses nothing. 600 streams of separate events use most of a core, so the slowest 1 % of their\n"
            "tokens meets the target only on an otherwise idle machine. The server merges tokens that follow each other within\n"
            "5 ms, or within up to 50 ms under load.",
            tables.streams,
        ),
        section(
            "Tokens from function to application",
            "A function produces tokens one by one or in blocks of sixteen, and an application receives each piece through one\n"
            "server process and one client process. tidewire merges tokens to at most one event per 5 ms. sse-starlette is used\n"
            "with httpx-sse and a pydantic model for each event, gradio with gradio_client. `python bench/end_to_end.py`. The\n"
            "targets for streams of 20,000 tokens are 10 × the tokens per second of sse-starlette and 30 × those of gradio. For\n"
            "single tokens, the first target is missed in tokens per second. The function that produces the tokens, with one\n"
            "iteration of the event loop for each, takes more than half of the server's CPU (see below the table). In a stream of\n"
            "2,000 tokens, most of the rest is the submit and the end of the job.",
            tables.end_to_end,
        ),
        section(
            "Cost of the client",
            "The client receives one event per chunk at full speed from a server that does nothing else. Other clients read the\n"
            "same events, openai the same tokens in its own format. `python bench/client.py`. The targets are 0.9 × httpx-sse with\n"
            "`json.loads`, async and blocking; 2 × httpx reading the same bytes for a short job, from submit to value; a first\n"
            "value within 2 ms after a raw reader (wall time, sensitive to load); and memory of at most 3 × the document.\n\n"
            "Both clients make their requests with `httpx.AsyncClient`, which takes more CPU than `httpx.Client` for the same\n"
            "bytes. A short job therefore meets its target relative to `httpx.AsyncClient` and misses it relative to\n"
            "`httpx.Client`. The difference is the five events of the job, which are parsed, validated, applied and verified\n"
            "with the digest; opening and closing the stream; and, in the blocking client, two thread switches per call.",
            tables.client,
        ),
        section(
            "Request batching",
            "A function takes 20 ms for any number of inputs. There are 50 concurrent callers and one call of the function at a\n"
            "time. Size 1 is a function without `batch=True`. The ideal throughput is that of the function alone.\n"
            "`python bench/batching.py`. The target is 90 % of the ideal at each size.",
            tables.batching,
        ),
        section(
            "Stalled readers",
            "Memory per stream of 50 readers that read nothing while a job continues. `python bench/readers.py`. The target is\n"
            "150,000 bytes per stream, kernel included.",
            tables.stalled,
        ),
        section(
            "CPU-bound plain functions",
            "Latency of other requests while five plain functions keep five threads busy, by Python's thread switch interval.\n"
            "Python's default is 5 ms, that of `tidewire serve` is 0.5 ms. `python bench/busy_threads.py`.",
            tables.busy_threads,
        ),
        section(
            "The log",
            "CPU time of all threads per event, measured through the interface that the server uses. Plain SQLite is one table\n"
            "with one commit per block, without the store's thread, fencing and saved states. `python bench/log.py`. The targets,\n"
            "in blocks of 100, are 0.1 µs in memory and 0.5 µs in a file to which 20 jobs write.",
            tables.log,
        ),
        section(
            "Starting a process",
            "CPU time of a new interpreter until the first response of a local server, compared with httpx sending the same\n"
            "request. `python bench/start.py`. The targets are 1.4 × httpx, 0.3 s for `tidewire --version`, and 50 ms for which a\n"
            "call blocks the event loop. An import statement is not a call, and blocks the loop until it is complete.\n\n"
            "The first target is missed. The row `httpx.AsyncClient, pydantic` is a program of ten lines that sends the same\n"
            "request on asyncio and validates the response with a model of one member. Importing asyncio and pydantic in addition\n"
            "to httpx already takes more than the target. This client adds its own modules and models, and the thread of its event\n"
            "loop. httpx imports click and rich, and httpcore imports trio, if they are installed. The last rows are measured\n"
            "without these, as most users have it: httpx then takes less, and the rest is the same. The wall time for which the\n"
            "event loop is blocked includes time in which other processes ran.",
            tables.start,
        ),
        section(
            "Many short jobs",
            "One server runs 100 jobs at the same time, through everything except its sockets. Its memory does not grow with the\n"
            "number of finished jobs. `python bench/jobs.py`.",
            tables.jobs,
        ),
        section(
            "Decoding event streams",
            "Speed of event stream decoders relative to httpx-sse; higher is better. `python bench/decoder.py`.",
            tables.decoder,
        ),
    ]
    PAGE.write_text(
        "# Measurements\n\n"
        "`bench/page.py` writes this page from the last results of the measurement scripts, which you can run yourself.\n"
        "Absolute numbers depend on the machine; compare the ratios within one run.\n\n" + "\n".join(sections)
    )


if __name__ == "__main__":
    main()
