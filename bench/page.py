"""Writes docs/explanation/measurements.md from the results of the measurement scripts in bench/results/."""

import re
from collections.abc import Callable
from pathlib import Path

import engine_tables
import log_tables
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
            "text. In the rows with `GET`, the client reads the stream from the log after the end of the job. The script is `python\n"
            "bench/wire.py`.\n\n"
            "The following targets apply for N = 20,000:\n\n"
            "- With one event per step, the stream should have at most 4.8 × the size of the text, and at most 1/13 of the bytes that\n"
            "  gradio sends.\n"
            "- If the server merges several steps into one event, as it does by default, the stream should have at most 1.1 × the\n"
            "  size of the text.",
            tables.wire,
        ),
        section(
            "Short runs over a slow link",
            "For short runs, sending diffs must not be slower than sending whole values. A client reads a chat of a hundred messages\n"
            "through a link with 30 Mbit/s and a round trip time of 40 ms. The text of the last message grows N times. The script is\n"
            "`python bench/short_runs.py`. The target is at most 1.02 × the time that the client takes to read whole states\n"
            "(`?diffs=0`).",
            tables.short_runs,
        ),
        section(
            "Computing diffs",
            "These tables show the CPU time that the server takes for one step of a function, until the event of the step is in the\n"
            "log. In a step, the function either appends explicitly, or yields a value that it has changed in place. For the other\n"
            "libraries, only the computation of the diff is measured. These libraries also need a copy of the previous value, which\n"
            "the numbers do not include. The script is `python bench/finding.py`. The targets are 1.5 µs for an append and 4 µs\n"
            "for a row of three columns at any size, and half of gradio's time for a yield at 1,000 and 10,000 rows, with the\n"
            "write to the log. The diff alone is to take at most half of the time of gradio and its copy at any number of rows.",
            tables.finding,
        ),
        section(
            "Applying diffs",
            "These tables show the CPU time that a client takes to apply a diff, for several sizes of the existing value. A diff that\n"
            "only appends is a string, or a row that adds one piece to each of several columns. Such a diff changes the mutable\n"
            "document that the client keeps for a stream. The pure function `apply` creates a new value instead. The script is\n"
            "`python bench/apply.py`. The target is 1 µs for an append to a text of any size.",
            tables.applying,
        ),
        section(
            "Streams",
            "A function produces tokens at fixed times. The first table shows how late each token arrives at the client. The\n"
            "second table shows the CPU time of an event that the server sends by itself. In the third table, the server\n"
            "and client of each project process the workload of Gradio's pull request 7102. The script is `python\n"
            "bench/streams.py --full`.\n\n"
            "The following targets apply:\n\n"
            "- First table: With 100 streams, 99 % of the tokens should arrive within 20 ms, and the server should use less than half\n"
            "  a core. With 600 streams, the 99th percentile should be at most 1/5 of that of sse-starlette.\n"
            "- Second table: An event should take at most 0.8 × the CPU time that it takes with sse-starlette. The row `raw ASGI` shows\n"
            "  the time that the function and uvicorn take in every server.\n"
            "- Third table: The workload should take at most 1/60 of the time that it takes with gradio, and the first event of a job\n"
            "  should arrive within 3 ms.\n\n"
            "The server applies and logs each event before it sends the event, so that a lost connection loses no event. By\n"
            "default, the server merges tokens that follow each other within 5 ms, or within up to 50 ms when it falls behind. The\n"
            "target for 600 streams is for a machine on which they saturate a core with sse-starlette. On a faster machine, 1,000\n"
            "streams are near this limit, and the results of sse-starlette vary between rounds.",
            tables.streams,
        ),
        section(
            "Tokens from function to application",
            "A function produces tokens one by one or in blocks of sixteen. An application receives each token or block through one\n"
            "server process and one client process. tidewire is compared with two pairs of a server and a client: sse-starlette with\n"
            "httpx-sse, where a pydantic model validates each event, and gradio with gradio_client. tidewire sends at most one event\n"
            "per 5 ms, which contains all tokens of these 5 ms. The script is `python bench/end_to_end.py`.\n\n"
            "The targets are 5 × the tokens per second of sse-starlette one by one, and 12 × in blocks of sixteen. One by one, the\n"
            "function runs the event loop once for each token, and takes a large part of the time itself: the text below the table\n"
            "states its CPU time.\n\n"
            "A job also has a fixed cost, in the server process and the client process together. In a stream of 2,000 tokens, this\n"
            "fixed cost is about as high as the cost of all tokens.",
            tables.end_to_end,
        ),
        section(
            "Cost of the client",
            "A server that does nothing else sends events, with one event per chunk: in a burst, as fast as the client reads, and then\n"
            "2,000 events per second, each of which arrives in a packet of its own. All clients read the same events, except openai, which reads the same tokens in its own format. The script is `python bench/client.py`.\n\n"
            "The following targets apply:\n\n"
            "- To read a stream, `AsyncClient` and `Client` should each take at most 1.0 × the CPU time of httpx-sse with\n"
            "  `json.loads` in a burst, and at most 1.2 × for events that arrive one by one.\n"
            "- A short job, from its submission to its value, should take at most 3 × the CPU time that httpx takes to read the same\n"
            "  bytes.\n"
            "- The first value should arrive at most 2 ms (wall time) later than at a client that only reads bytes.\n"
            "- The memory of the client should grow by at most 3 × the size of the document.\n\n"
            "`AsyncClient` and `Client` both use the connection pool of `httpx2.AsyncClient`, which takes more CPU time than\n"
            "`httpx.Client` for the same bytes. The target for short jobs refers to `httpx.Client`. `Client` also passes each call\n"
            "to its background thread and back. The third table shows short jobs that a program starts at once, with\n"
            "`asyncio.gather`. A pool takes longer for each request, the more connections it has. httpx and httpx2 open at most 100\n"
            "by default, and the async client sends at most 64 requests at once.",
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
            "The text engine on a CPU",
            "The table shows the CPU time of the whole process per generated token, on one thread. A request has a prompt of about 16\n"
            "tokens and generates 32 tokens. Two other engines run the same float32 weights in the same process: the continuous\n"
            "batching of transformers, and llama.cpp with a GGUF file. The Llama model of 100 million parameters has random weights.\n"
            "A ratio above 1 means that tidewire takes less time. The script is `python bench/engine_cpu.py`.\n\n"
            "[How the engine works](engine.md) shows which parts of a step take how much time, and lists the changes that were tried\n"
            "and rejected.",
            engine_tables.engine_cpu,
        ),
        section(
            "The text engine on a GPU",
            "A step decodes one token of each request after 256 tokens, or reads prompts of 128 tokens. The models are random Llama\n"
            "models in bfloat16 with the shapes of Pythia 160 M and Llama 3.1 8B. The table shows the time of a step without most\n"
            "probable tokens, and the additional time with n of them, or with typical-p. The script is `python bench/engine_gpu.py`.\n"
            "\n"
            "The targets apply to decoding. With 64 requests, n = 5, 20 and 64 may take 5, 8 and 15 % more time with the 160 M\n"
            "shape, and 2 % more with the 8B shape. With one request and the 8B shape, reading the weights must be 75 % of a step.\n"
            "With 64 requests, the engine with n = 5 must generate twice as many tokens per second as continuous batching of transformers\n"
            "without most probable tokens.",
            engine_tables.engine_gpu,
        ),
        section(
            "Stalled readers",
            "In this measurement, 50 readers open a stream and then read nothing while the job continues. The table shows the memory\n"
            "per stream. The script is `python bench/readers.py`. The target is at most 150,000 bytes per stream, including kernel\n"
            "memory.",
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
            "SQLite* is a program that only inserts the events into one table, with one commit for each block of events. It has no\n"
            "writer thread, does not check the expected head of a job, and stores no snapshots. The script is `python bench/log.py`.\n"
            "For blocks of 100 events, the targets are 0.1 µs per event in memory, and 0.5 µs per event in a file to which 20 jobs\n"
            "write. For blocks of one event, the targets are 2,500 blocks per second of 64 jobs in PostgreSQL, and 6,000 of 256 jobs.",
            log_tables.log,
        ),
        section(
            "Load on PostgreSQL",
            "A server keeps its log in a PostgreSQL database with default settings, so each commit waits for the disk. One reader\n"
            "follows each stream. The store merges the tokens of 50 ms into one row, and commits the rows of all jobs together. A\n"
            "commit is a transaction with an id. Bytes on disk are those of all tables and indexes, and bytes of WAL include the\n"
            "images of pages after a checkpoint. The script is `python bench/postgres_load.py`. Each row is one run. Rows and bytes\n"
            "hardly depend on the machine. Commits do, because a slower machine commits more jobs together, and so do CPU times.",
            log_tables.postgres_load,
        ),
        section(
            "Several servers",
            "Servers share a PostgreSQL database with default settings. The latency of a token at another server is the time between\n"
            "its arrival at a reader of the server that runs the function, and its arrival at a reader of the other server. The latency\n"
            "of a cancel ends when the function is cancelled. For the resume, a server is killed while it serves the reader of a job\n"
            "that a worker runs, and the reader continues at another server. For the restarts, three servers stop as planned and start\n"
            "again, one after the other, while 16 jobs that continue are read. For the batches, a worker takes up to 16 inputs of 50\n"
            "callers at once. The script is `python bench/replicas.py`. The targets are a 99th percentile of 50 ms for tokens and 100 ms\n"
            "for a cancel (1.5 s with polls only), a median of 50 ms from the kill to the next event, at most 2 s of waiting during\n"
            "planned restarts, batches that two workers do not halve, and 1.7 × the tokens per second through two servers.",
            log_tables.replicas,
        ),
        section(
            "Large values",
            "One caller's function replaces a random text of 1 MB or 8 MB again and again, 300 MB in total. Meanwhile, another job\n"
            "appends a small event every 10 ms. The table shows the time from the moment at which an append is due until its commit. The\n"
            "script is `python bench/large_values.py`. The target is a 99th percentile of 100 ms. Each measurement of PostgreSQL begins\n"
            "after a checkpoint. With its default settings, PostgreSQL runs one each time that about 600 MB of WAL were written, and\n"
            "commits then wait once for the disk, here for 0.2 s; `max_wal_size` makes checkpoints rarer.",
            log_tables.large_values,
        ),
        section(
            "Capacity on paper",
            "These tables multiply the measured cost of one token and of one short job. No such load was run. In particular, they\n"
            "assume that cost is proportional to load, as it is for bytes and rows. Commits are an upper bound, because a commit\n"
            "contains the rows of more jobs if there are more. The CPU times are those of the machine above: measure your own.\n"
            "[Capacity](../how-to/operate-postgresql.md#capacity) explains how to use the numbers.",
            log_tables.capacity,
        ),
        section(
            "Starting a process",
            "The table shows the CPU time from the start of an interpreter to the first response of a local server. The script is\n"
            "`python bench/start.py`.\n\n"
            "The following targets apply:\n\n"
            "- Up to the first response, the client should take at most 1.4 × the CPU time that httpx takes for the same request.\n"
            "- The command `tidewire --version` should take at most 0.3 s.\n"
            "- No call should block the event loop for more than 50 ms. An import statement does not count as a call.\n\n"
            "The row `httpx.AsyncClient, pydantic` is a program of ten lines. It sends the same request on asyncio and validates the\n"
            "response with a pydantic model of one member.\n\n"
            "httpx and httpcore import trio, click and rich if they are installed. The last rows are measured without these packages.\n"
            "There, httpx itself takes less time, so the ratios to httpx are higher. The wall time includes time in which other\n"
            "processes ran.",
            tables.start,
        ),
        section(
            "Many short jobs",
            "A client sends jobs over 100 connections, and reads the event stream of each job up to its end. The client runs in a\n"
            "separate process on the same machine. The memory of the server does not grow with the number of finished jobs. The\n"
            "script is `python bench/jobs.py`. The targets are 1,800 jobs a second in memory and 1,300 over SQLite, set on a faster\n"
            "machine.\n\n"
            "With PostgreSQL, the server asks the database several times for each job, so that any other server could\n"
            "have run it. For many short jobs, start several servers, or submit the jobs as items of one batch.",
            log_tables.jobs,
        ),
        section(
            "Arrays of numbers",
            "A client sends 5,000 inputs through `Client.map`. For each input, the function returns an array of 384 floats, as a\n"
            "model for embeddings does. The table shows the CPU time of the client process and of the server process. For comparison,\n"
            "it shows the time that `json.loads` takes in the client process to parse the JSON text of the same arrays. The script is\n"
            "`python bench/arrays.py`. The target is at most 5 × `json.loads` for each process.\n\n"
            "Each process parses or writes the arrays, checks them, and keeps them in the state of their job. At the end, the\n"
            "client serializes the items again as canonical JSON to verify the digest in the event `done`. The server computes\n"
            "this digest from the JSON text of its events. Functions of C and Rust libraries do all of this work, so no Python\n"
            "code runs for each number. The remaining CPU time is that of the Python code that runs once for each item. With one\n"
            "call per input, the server also passes each call to a thread and back.",
            tables.arrays,
        ),
        section(
            "Decoding event streams",
            "The table shows the speed of event stream decoders relative to the speed of httpx-sse. A higher number is better. The\n"
            "script is `python bench/decoder.py`.",
            tables.decoder,
        ),
        section(
            "Growth with the size of the input",
            "Each case runs at four sizes, from n to 8 n. The inputs include adversarial ones: long runs of line ends, 1-byte reads,\n"
            "unclosed brackets, shuffled arrays, and diffs with an op for each element. The exponent is the slope of the logarithm of\n"
            "the CPU time over the logarithm of the size. Linear time has the exponent 1. The target is at most 1.3, which allows n\n"
            "log n and some noise. `tests/unit/test_growth.py` counts steps instead of measuring time. The script is `python\n"
            "bench/growth.py`.",
            tables.growth,
        ),
        section(
            "Sampling and top-n in the text engine",
            "In this measurement, a step of the engine decodes one token for each of 64 requests, on one CPU thread. The models are\n"
            "the default model and a random Llama model of 100 million parameters. The table shows the CPU time that each setting\n"
            "adds to a step, in comparison with temperature 0. The script is `python bench/engine_sampling.py`. The targets apply to\n"
            "the vocabulary of 32,000 tokens.",
            engine_tables.engine_sampling,
        ),
        section(
            "Top-n log-probabilities over HTTP",
            "Clients that only read bytes read 64 streams of the default model, with 128 tokens each. The table shows the CPU time of\n"
            "the server and the wall time that log-probabilities add to the same generations, in comparison with `top_logprobs=0`.\n"
            "The script is `python bench/engine_http.py`.\n\n"
            "The server sends each token as a separate event, because a step of the model takes longer than the period in which the\n"
            "server merges events.",
            engine_tables.engine_http,
        ),
        section(
            "In front of an engine",
            "Requests go to an engine with OpenAI's API directly, and in alternation through a server with `--upstream`. The scripted\n"
            "engine generates 2,000 tokens per second in total. `transformers serve` runs the default model on the CPU and shares the\n"
            "cores with the server. The overhead is the part of the tokens per second that is lost. The script is `python\n"
            "bench/upstream.py`.",
            engine_tables.upstream,
        ),
        section(
            "Continuing a text after a restart",
            "With the log in a file, a generation continues after a restart of the server, because each event has the ids of its\n"
            'tokens. The table compares this with `on_restart="rerun"`, where the texts have no ids. 16 raw readers read 16 texts of\n'
            "the default model, with 256 tokens each. The bytes include the framing. With `top_logprobs`, the events have the ids in\n"
            "both cases. The script is `python bench/engine_restart.py`.",
            engine_tables.engine_restart,
        ),
        section(
            "Cost of a token outside the device",
            "In this measurement, constants replace the results of the model, the sampler and the choice of the most probable tokens.\n"
            "The table shows the CPU time of the server for everything else: text, lists of candidates, JSON, the log, its digest and\n"
            "the event stream. The script is `python bench/engine_host.py`. The targets are 20 µs per token without candidates, and\n"
            "30 µs per token with five candidates.",
            engine_tables.engine_host,
        ),
        section(
            "What simpler code costs",
            "Some mechanisms saved microseconds that no user notices, and were removed. The table compares the revision before\n"
            "with the revision after, with the same measurements. The script is `python bench/compare.py OLD NEW --json\n"
            "bench/results/compare.json`.",
            tables.simplified,
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
