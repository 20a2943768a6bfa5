"""The command line: `tidewire call`, `attach`, `cancel`, `jobs`, `describe`, `codegen`, and what other packages add."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidewire.commands import codegen as generated
from tidewire.commands import display, tables
from tidewire.commands.follow_job import INTERRUPTED, follow
from tidewire.commands.plugins import USAGE, Commands
from tidewire.commands.read_inputs import read_headers, read_input, read_lines, read_words
from tidewire.errors import (
    InvalidValueError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    ProtocolError,
    RequestError,
    TidewireError,
)
from tidewire.jobs.map_work import BATCH_SIZE, CONCURRENCY
from tidewire.sync import Client
from tidewire.types import UNSET

JOB_FAILED, UNREACHABLE, PROTOCOL_FAULT, NO_READER = 1, 3, 4, 141

_EPILOG = (
    "Exit codes: 0 done, 1 the job failed or was cancelled, 2 wrong usage or input, 3 the server cannot be reached "
    "or does not take the request now, 4 the other side does not keep to the protocol, 130 interrupted (the job goes on), 141 whoever read the output has gone (so does `| head`)."
)


def _examples(*lines: str) -> str:
    """Examples below a command's help, one a paragraph, and the exit codes."""
    return "\n\n".join(["Examples:", *(f"tidewire {line}" for line in lines), _EPILOG])


_URL = "http://127.0.0.1:8000"


app: Final = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Jobs on GPU servers whose results stream, and survive every break of the connection.",
    epilog=_EPILOG,
)


def main() -> None:
    """Entry point of the `tidewire` command."""
    app(prog_name="tidewire")


# ---- what the commands share -------------------------------------------------------------------------------------

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Where the server is mounted, such as http://127.0.0.1:8000.")
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")]
Timeout = Annotated[
    float | None,
    typer.Option(help="Seconds to wait in all; the job goes on when they have passed.", min=0.001),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME: VALUE", help="Sent with every request; repeatable."),
]


@contextmanager
def _client(
    url: str, headers: list[str] | None, timeout: float | None = None
) -> Iterator[tuple[Client, display.Screen]]:
    """A client and a screen; errors become a paragraph and an exit code."""
    screen = display.Screen()
    try:
        with Client(url, headers=read_headers(headers), timeout=timeout) as client:
            yield client, screen
            sys.stdout.flush()
    except BrokenPipeError:
        display.let_go_of_output()
        raise typer.Exit(NO_READER) from None
    except TidewireError as error:
        screen.error(str(error))
        raise typer.Exit(_exit_code(error)) from None
    except ValueError as error:
        screen.error(str(error))
        raise typer.Exit(USAGE) from None


def _exit_code(error: TidewireError) -> int:
    match error:
        case JobFailedError() | JobCancelledError() | ItemFailedError() | InvalidValueError():
            return JOB_FAILED
        case ProtocolError():
            return PROTOCOL_FAULT
        case RequestError():
            busy = error.status_code is not None and (error.status_code == 429 or error.status_code >= 500)
            return UNREACHABLE if busy else USAGE
        case ValueError():
            return USAGE
        case _:
            return UNREACHABLE


# ---- commands ----------------------------------------------------------------------------------------------------


@app.command(
    epilog=_examples(
        f"call {_URL} generate prompt='import ' max_tokens=40",
        f"call {_URL} generate prompt='import ' top_logprobs=3   (with what else could have come)",
        f"call {_URL} generate -i @input.json --json | jq .text",
        f"call {_URL} generate prompt=hello --detach   (prints the job's id, for `tidewire attach`)",
    )
)
def call(
    url: Url,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENDPOINT] [KEY=VALUE]…",
            help="The endpoint, which may be left out where there is only one, and members of the input. A value is "
            "JSON where it reads as JSON, else text: max_tokens=64 'stop=[\"\\n\"]' prompt=hello",
        ),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="JSON|@FILE|-",
            help="The whole input: JSON, a file of it, or standard input.",
        ),
    ] = None,
    as_json: AsJson = False,
    timeout: Timeout = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds after which the server ends the job.", min=0.001)
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's id and leave it to itself.")
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Names this call: repeating it with the same key starts nothing new.")
    ] = None,
    header: Headers = None,
) -> None:
    """Start a job and show its result as it grows.

    A text goes to standard output as it comes, any other value when it is whole; queue and progress go to standard
    error. Interrupting leaves the job running and says how to see it again. On a terminal a generation that was
    asked for log-probabilities is followed by its tokens and what else could have stood in their place.
    """
    with _client(url, header, timeout) as (client, screen):
        endpoint, members = read_words(words or [])
        whole = UNSET if input_ is None else read_input(input_)
        if whole is not UNSET and members:
            raise ValueError("give the input with --input or as KEY=VALUE, not both")
        job = client.with_options(deadline=deadline).submit(
            endpoint, members if whole is UNSET else whole, idempotency_key=idempotency_key
        )
        if detach:
            screen.json({"job": job.id}) if as_json else screen.value(job.id)
            return
        follow(client, job, screen, as_json)


@app.command(
    "map",
    epilog=_examples(
        f"map {_URL} generate prompts.jsonl max_tokens=20 > results.jsonl",
        f"jq -c '{{prompt: .title}}' articles.json | tidewire map {_URL} generate > results.jsonl",
        f"map {_URL} generate prompts.jsonl --idempotency-key tonight > results.jsonl   (once more after a "
        "crash: what ran already is not run again)",
    ),
)
def map_(
    url: Url,
    endpoint: Annotated[str, typer.Argument(help="The endpoint.")],
    inputs: Annotated[
        str, typer.Argument(metavar="FILE|-", help="One input a line, as JSON; - is standard input.")
    ] = "-",
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="Members that every input gets unless it has its own."),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Jobs under way at the same time.", min=1)] = CONCURRENCY,
    batch_size: Annotated[int, typer.Option(help="Inputs of one job at most.", min=1)] = BATCH_SIZE,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="Names this run: with the same key and inputs, what ran already is not run again."),
    ] = None,
    header: Headers = None,
) -> None:
    """Run each line of a file, and write one line each, in the same order.

    A line of the output has `index` and `value`, or `index` and `error`. On a terminal a bar shows how far it is.
    """
    with (
        _client(url, header) as (client, screen),
        read_lines(inputs) as (lines, total),
        screen.bar(total) as move,
    ):
        _, shared = read_words(words or [])
        results = client.map(
            endpoint,
            lines,
            return_exceptions=True,
            concurrency=concurrency,
            batch_size=batch_size,
            progress=move,
            idempotency_key=idempotency_key,
            shared=shared,
        )
        done = failed = 0
        try:
            for result in results:
                line: dict[str, Any] = {"index": done}
                if isinstance(result, ItemFailedError):
                    failed += 1
                    problem = result.problem
                    line["error"] = {
                        "code": result.code,
                        "message": (problem and problem.detail) or result.what,
                    }
                else:
                    line["value"] = result
                screen.json(line)
                done += 1
        except KeyboardInterrupt:
            how = (
                "what runs goes on: start it once more with the same key"
                if idempotency_key
                else "what ran is cancelled"
            )
            screen.note(f"interrupted after {done} inputs; {how}")
            raise typer.Exit(INTERRUPTED) from None
    if failed:
        screen.error(f"{failed} of {done} inputs failed: see `error` in their lines.")
        raise typer.Exit(JOB_FAILED)


# The id of a job may begin with a dash: what is no option of theirs is an argument to these two.
_IDS = {"ignore_unknown_options": True}


@app.command(
    epilog=_examples(f"attach {_URL} 5f1c…   (the id that `call --detach` or `jobs` prints)"),
    context_settings=_IDS,
)
def attach(
    url: Url, job: JobId, as_json: AsJson = False, timeout: Timeout = None, header: Headers = None
) -> None:
    """Show a job that runs already, or has ended, from its beginning."""
    with _client(url, header, timeout) as (client, screen):
        follow(client, client.job(job), screen, as_json)


@app.command(epilog=_EPILOG, context_settings=_IDS)
def cancel(url: Url, job: JobId, as_json: AsJson = False, header: Headers = None) -> None:
    """Cancel a job; one that has ended stays as it is."""
    with _client(url, header) as (client, screen):
        status = client.job(job).cancel()
        screen.json({"job": job, "status": status}) if as_json else screen.value(status)


@app.command(epilog=_EPILOG)
def jobs(
    url: Url,
    as_json: AsJson = False,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 50,
    header: Headers = None,
) -> None:
    """List your jobs, newest first."""
    with _client(url, header) as (client, screen):
        found = client.jobs(limit=limit)
        if as_json:
            for job in found:
                screen.json(
                    job.model_dump(
                        mode="json", by_alias=True, exclude_none=True, exclude={"state", "columns"}
                    )
                )
        elif found:
            screen.wide(tables.jobs(found))
        else:
            screen.note("no jobs")


@app.command(epilog=_examples(f"describe {_URL}", f"describe {_URL} generate --json | jq .input_schema"))
def describe(
    url: Url,
    endpoint: Annotated[str | None, typer.Argument(help="One endpoint; without it, the server.")] = None,
    as_json: AsJson = False,
    header: Headers = None,
) -> None:
    """Say what a server offers, or what one endpoint takes and gives."""
    with _client(url, header) as (client, screen):
        found = client.discover() if endpoint is None else client.describe(endpoint)
        if as_json:
            screen.json(found.model_dump(mode="json", by_alias=True))
            return
        parts = (
            tables.server(client.discover())
            if endpoint is None
            else tables.endpoint(client.describe(endpoint), url)
        )
        for number, part in enumerate(parts):
            if number:
                screen.out.print()
            screen.out.print(part)


@app.command(
    epilog=_examples(
        f"codegen {_URL} -o gpu.py",
        f"codegen {_URL} --endpoint generate > generate.py",
    )
)
def codegen(
    url: Url,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Written only when all went well.")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="Only this one; repeatable. All, if none is named.")
    ] = None,
    header: Headers = None,
) -> None:
    """Write a typed Python module for a server: a model for what each endpoint takes and gives.

    Below the models stand TypedClient and TypedAsyncClient, over a client: an editor completes and checks their calls.
    """
    try:
        import_module("datamodel_code_generator")
    except ImportError as error:
        raise _without_generator(error) from None
    with _client(url, header) as (client, _):
        discovery = client.discover()
        names = endpoint or [each.name for each in discovery.endpoints]
        described = [client.describe(name) for name in dict.fromkeys(names)]
        try:
            text = generated.module(client.url, discovery, described)
        except ImportError as error:
            raise _without_generator(error) from None
        if output is None:
            sys.stdout.write(text)
            return
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"-o {output}: {error.strerror}") from None


def _without_generator(error: ImportError) -> typer.Exit:
    """Print the line that installs what `codegen` lacks; return the exit to raise."""
    display.Screen().error(f"`tidewire codegen` needs {error.name or error}: pip install 'tidewire[codegen]'")
    return typer.Exit(USAGE)


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    if show_version:
        print(version("tidewire"))
        raise typer.Exit


if __name__ == "__main__":
    main()
