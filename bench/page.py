"""Writes docs/explanation/measurements.md from what the scripts beside it have left in bench/results/."""

import re
from collections.abc import Callable
from pathlib import Path

import tables

PAGE = Path(__file__).parents[1] / "docs/explanation/measurements.md"


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


def main() -> None:
    sections = [
        section(
            "Bytes while a chat's last text grows",
            "The workload of Gradio's pull request 7102: an answer grows by one number at a time, N times, and each step\n"
            "yields the whole history. `python bench/wire.py`. The bars at N = 20,000 are 4.6 × the text and 1/13 of gradio\n"
            "for one event per step, 1.1 × when merged. The same is asked of a value that is no chat (a text deep inside), and of\n"
            "a stream that is read from the log with GET when all is over.",
            tables.wire,
        ),
        section(
            "Short runs over a slow link",
            "Whether diffs are ever slower than whole values: a chat of a hundred messages whose last text grows N times, read\n"
            "through a link of 30 Mbit/s and 40 ms. `python bench/short_runs.py`; the bar is that diffs never take more than 1.02\n"
            "of the time of whole states, which this server sends with `?diffs=0`.",
            tables.short_runs,
        ),
        section(
            "Finding what changed",
            "What a step of a function costs the server, until it is an event: an explicit append, and a whole value that was\n"
            "changed in place and is yielded again. Of the peers it is the diff alone, without the copy that each needs.\n"
            "`python bench/finding.py`. The bars are 0.5 µs for an append at any size, 10 µs for a yield at 10,000 rows.",
            tables.finding,
        ),
        section(
            "Applying what changed",
            "What a client pays for a diff, and whether it grows with what is there: a bare string and a row are applied to the\n"
            "document that a stream is folded into, the pure `apply` makes a new value. `python bench/apply.py`; the bar is 0.2 µs\n"
            "for an append to a text of any size.",
            tables.applying,
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
            tables.streams,
        ),
        section(
            "From a function to an application",
            "Tokens that a function makes one by one or sixteen at a time, through a server and a client of one process each, to\n"
            "an application that takes each piece as it comes: ours, which merges what comes faster than one event in 5 ms;\n"
            "sse-starlette with httpx-sse and a pydantic model for each event; gradio with gradio_client.\n"
            "`python bench/end_to_end.py`. The bars, of streams of 20,000 tokens, are 10 × the tokens a second of the first and\n"
            "30 × those of the second; of tokens one by one the first is missed in tokens a second. The function that makes them,\n"
            "one turn of the event loop for each, takes more than half of the server's CPU by itself (below the table), and of a\n"
            "stream of 2,000 tokens the submit and the end of its job take most of the rest.",
            tables.end_to_end,
        ),
        section(
            "What a client costs",
            "One event per chunk, as fast as it is read, from a server that does nothing else; peers read the same events,\n"
            "openai its own shape of the same tokens. `python bench/client.py`. The bars: 0.9 × httpx-sse with `json.loads`,\n"
            "async and blocking; a short job, submitted and read to its value, 2 × httpx that reads the same bytes; a first value\n"
            "2 ms after the raw one, wall time, which a busy machine spoils; memory at most 3 × the document.\n\n"
            "Both clients make their requests with `httpx.AsyncClient`, which takes longer than `httpx.Client` for the same bytes;\n"
            "so a short job is within its bar of the first and not of the second. The rest is the five events of the job, which are\n"
            "parsed, validated, applied and checked against the digest; opening and closing the stream; and in the blocking client\n"
            "the way to the thread of the event loop and back.",
            tables.client,
        ),
        section(
            "Request batching",
            "A function that takes 20 ms whatever the number of its inputs, 50 callers at once, one call of it at a time; size 1\n"
            "is a function without `batch=True`. The ideal is what the function alone could do. `python bench/batching.py`;\n"
            "the bar is 90 % at each size.",
            tables.batching,
        ),
        section(
            "Readers that do not read",
            "What each of 50 streams holds whose reader takes nothing, while a job goes on. `python bench/readers.py`; the bar\n"
            "is 150,000 bytes a stream, kernel included.",
            tables.stalled,
        ),
        section(
            "Plain functions that compute",
            "How long others wait while five plain functions keep as many threads busy, by the time after which Python gives\n"
            "another thread its turn. Python's default is 5 ms, that of `tidewire serve` 0.5 ms.\n"
            "`python bench/busy_threads.py`.",
            tables.busy_threads,
        ),
        section(
            "The log",
            "CPU time of all threads for each event, through the interface that the server uses; plain SQLite is one table and\n"
            "one commit for each block, without our thread, fence and states. `python bench/log.py`; the bars, in blocks of\n"
            "100, are 0.1 µs in memory and 0.5 µs in a file that 20 jobs write to.",
            tables.log,
        ),
        section(
            "Starting a process",
            "CPU time of a fresh interpreter up to the first response of a local server, next to httpx making the same request.\n"
            "`python bench/start.py`. The bars are 1.4 × httpx, 0.3 s for `tidewire --version`, and 50 ms for which a call holds\n"
            "the event loop; an import is not a call, and holds the loop for as long as it takes.\n\n"
            "The first bar is missed. `httpx.AsyncClient, pydantic` is a program of ten lines that makes the same request on\n"
            "asyncio and validates it as a model of one member: importing asyncio and pydantic next to httpx alone takes more\n"
            "than the bar. What this client adds to that is its own modules and models, and the thread of its event loop.\n"
            "httpx imports click and rich, and httpcore imports trio, where they are installed; the last rows are without these,\n"
            "as with most users: httpx takes less there, and the rest is the same. Of the event loop, the time by the clock also counts\n"
            "what other processes take of a busy machine; the CPU does not.",
            tables.start,
        ),
        section(
            "Many short jobs",
            "One server, 100 jobs under way at once, through everything but sockets: what it holds does not grow with the\n"
            "jobs that it has done. `python bench/jobs.py`.",
            tables.jobs,
        ),
        section(
            "Decoding event streams",
            "`python bench/decoder.py`; higher is better.",
            tables.decoder,
        ),
    ]
    PAGE.write_text(
        "# Measurements\n\n"
        "This page is written by `bench/page.py` from what the scripts measured last; run them to get your own.\n"
        "Machines are noisy: what counts are the ratios inside one run.\n\n" + "\n".join(sections)
    )


if __name__ == "__main__":
    main()
