"""The command-line interface `tidewire`.

It has the commands `call`, `map`, `attach`, `cancel`, `jobs`, `chat`, `describe` and `codegen`, and the commands of plugins.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidewire.commands import display
from tidewire.commands.chat import converse
from tidewire.commands.codegen import typed_module
from tidewire.commands.describe_text import describe_endpoint, describe_server
from tidewire.commands.error_advice import advise
from tidewire.commands.exit_codes import (
    BROKEN_PIPE,
    EPILOG,
    INTERRUPTED,
    JOB_FAILED,
    OUTPUT_FAILED,
    USAGE,
    exit_code,
)
from tidewire.commands.follow_job import follow
from tidewire.commands.list_jobs import list_jobs, watch_jobs
from tidewire.commands.map_progress import Failures, map_progress, reason_of
from tidewire.commands.plugins import Commands
from tidewire.commands.read_arguments import expanded, read_headers, read_input, read_lines, read_words, typed
from tidewire.commands.server_url import DEFAULT_LOGPROBS, LOGPROBS, CommandWithUrl, check_url, command_line
from tidewire.errors import ItemFailedError, TidewireError
from tidewire.hooks import Hooks, log
from tidewire.http.url_and_token import URL_VARIABLE
from tidewire.inputs.submit_members import UNSET
from tidewire.install_command import install_command
from tidewire.jobs.map.map_work import BATCH_SIZE, CONCURRENCY
from tidewire.protocol.resources import Discovery
from tidewire.sync import Client


def _examples(*lines: str) -> str:
    """Build the text at the end of a command's help, with examples and the exit codes."""
    return "\n\n".join(["Examples:", *(f"tidewire {line}" for line in lines), EPILOG])


_URL = "http://127.0.0.1:8000"


app: Final = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run jobs on Tidewire servers and stream their results. Jobs and results survive lost connections. "
    f"If the environment variable {URL_VARIABLE} contains the address of the server, the argument URL may be omitted.",
    epilog=EPILOG,
)


def main() -> None:
    """Entry point of the `tidewire` command."""
    if os.environ.get("COLUMNS") == "0":
        # With a width of 0, rich would print nothing, not even errors.
        del os.environ["COLUMNS"]
    app(prog_name="tidewire")


# ---- shared arguments and error handling -------------------------------------------------------------------------

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Base URL of the server, such as http://127.0.0.1:8000. It may be omitted if the environment variable "
        f"{URL_VARIABLE} contains it.",
    ),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the output as lines of JSON, for use by programs.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        help="Maximum time to wait, in seconds. After a timeout, the job keeps running on the server.",
        min=0.001,
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME: VALUE",
        help="HTTP header to send with every request. This option can be repeated.",
    ),
]


TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with a bearer token to send with every request. Without this option, the token in the environment "
        "variable TIDEWIRE_TOKEN is sent, if it is set.",
    ),
]


Uds = Annotated[
    Path | None,
    typer.Option(
        "--uds",
        metavar="PATH",
        help="Unix domain socket to connect to. The URL's host and port are then used only for the Host header.",
    ),
]


@contextmanager
def _client(
    url: str,
    headers: list[str] | None,
    token_file: Path | None,
    uds: Path | None,
    timeout: float | None = None,
    *,
    endpoint: str | None = None,
    idempotency_key: str | None = None,
) -> Iterator[tuple[Client, display.Screen]]:
    """Create a client and the output of a command for a `with` block.

    If the block raises an error, print the error and its advice to standard error, and exit with the exit code for this
    error. The advice mentions `endpoint` and `idempotency_key` if they are passed.
    """
    screen = display.Screen()
    screen.options = [] if uds is None else ["--uds", str(uds)]
    hooks = Hooks(on_reconnect=screen.show_reconnect, on_request=screen.show_request)
    retries = display.ShowRetries(screen)
    log.addHandler(retries)
    level = log.level
    log.setLevel(min(level or retries.level, retries.level))
    try:
        check_url(url)
        headers_ = read_headers(headers, token_file)
        with Client(url, headers=headers_, timeout=timeout, uds=uds, hooks=hooks) as client:
            yield client, screen
    except BrokenPipeError:
        display.discard_output()
        raise typer.Exit(BROKEN_PIPE) from None
    except display.OutputError as error:
        display.discard_output()
        screen.error(str(error))
        raise typer.Exit(OUTPUT_FAILED) from None
    except TidewireError as error:
        advise(error, url, endpoint, idempotency_key)
        screen.error(str(error))
        raise typer.Exit(exit_code(error)) from None
    except ValueError as error:
        screen.error(str(error))
        raise typer.Exit(USAGE) from None
    except KeyboardInterrupt:
        screen.note("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        log.setLevel(level)
        log.removeHandler(retries)


# ---- commands ----------------------------------------------------------------------------------------------------


@app.command(
    cls=CommandWithUrl,
    epilog=_examples(
        f"call {_URL} generate prompt='import ' max_tokens=40",
        f"call {_URL} generate prompt='import ' --logprobs   (colors the tokens by their probabilities)",
        f"call {_URL} generate -i @input.json --json | jq 'select(.type == \"result\").value.text'",
        f"call {_URL} generate prompt=hello --detach   (prints the job's id, for `tidewire attach`)",
    ),
)
def call(
    url: Url,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENDPOINT] [KEY=VALUE]…",
            help="Name of the endpoint, followed by members of the input. The name is optional if the server has only one "
            "endpoint. The input schema of the endpoint determines how a value is read: as text if only a string is valid, "
            "and otherwise as JSON. Example: prompt=hello max_tokens=64 'stop=[\"\\n\"]'. KEY=@FILE sends the content of a "
            "file, as base64 if the schema says that the member is base64.",
        ),
    ] = None,
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="JSON|@FILE|-",
            help="The whole input, as JSON text, as @ and the name of a JSON file, or as - for standard input.",
        ),
    ] = None,
    as_json: AsJson = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            LOGPROBS,
            metavar="[=N]",
            help="Request the log-probabilities of generated tokens, and N alternatives of each token ("
            f"{DEFAULT_LOGPROBS} by default). The live "
            "view colors each token by its probability.",
            min=0,
        ),
    ] = None,
    timeout: Timeout = None,
    deadline: Annotated[
        float | None,
        typer.Option(help="Number of seconds after which the job fails if it has not ended.", min=0.001),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's id and exit without waiting for the result.")
    ] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            help="Key that identifies this call. If the call is repeated with the same key, the server does not start a "
            "second job."
        ),
    ] = None,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """Start a job and show its result as it arrives.

    On a terminal, text is printed as it grows. Below it, a live view shows
    the queue position, the progress, the tokens per second, lost
    connections, and with --logprobs the alternatives of the latest token.
    Any other value, and the members of the value next to the text, are
    printed when they are complete.

    If you press Ctrl+C, the job keeps running, and the command that
    attaches to it is printed. A second Ctrl+C within a second cancels the
    job. In a pipe, the command ends at once.

    In a pipe, standard output receives only the text, or with --json one
    line per update. The queue position, the progress and lost connections
    are printed to standard error.
    """
    endpoint = words[0] if words and "=" not in words[0] else None
    with _client(
        url, header, token_file, uds, timeout, endpoint=endpoint, idempotency_key=idempotency_key
    ) as (client, screen):
        members = read_words(words[endpoint is not None :] if words else [])
        whole = UNSET if input_ is None else read_input(input_)
        if whole is not UNSET and members:
            raise ValueError("the input was passed twice; use either --input or KEY=VALUE, not both")
        value = typed(client, endpoint, members) if whole is UNSET else whole
        if logprobs is not None:
            if not isinstance(value, dict):
                raise ValueError("--logprobs needs an input that is an object, because it adds members")
            value = {"logprobs": True, "token_text": True, "top_logprobs": logprobs} | value
        try:
            job = client.with_options(deadline=deadline).submit(
                endpoint, value, idempotency_key=idempotency_key
            )
        except KeyboardInterrupt:
            look = command_line(client.url, "jobs", *screen.options)
            screen.note(f"interrupted; the job may or may not have started. To look for it, run: {look}")
            raise typer.Exit(INTERRUPTED) from None
        if detach:
            screen.json({"job": job.id}) if as_json else screen.value(job.id)
            return
        follow(client, job, screen, as_json)


@app.command(
    "map",
    cls=CommandWithUrl,
    epilog=_examples(
        f"map {_URL} generate prompts.jsonl max_tokens=20 > results.jsonl",
        f"map {_URL} generate - max_tokens=20 < prompts.jsonl > results.jsonl   (reads standard input)",
        f"map {_URL} generate prompts.jsonl --resume run.jsonl > results.jsonl   (can be repeated after a crash; prints all "
        "results, and runs only inputs without a result)",
    ),
)
def map_(
    url: Url,
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="Name of the endpoint.")],
    inputs: Annotated[
        str,
        typer.Argument(metavar="FILE|-", help="File with one JSON input per line, or - for standard input."),
    ] = "-",
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="Members to add to each input that does not have them."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(help="Maximum number of jobs that run at the same time.", min=1)
    ] = CONCURRENCY,
    batch_size: Annotated[int, typer.Option(help="Maximum number of inputs per job.", min=1)] = BATCH_SIZE,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            help="Key that identifies this run. If the command is repeated with the same key and the same inputs, the server "
            "does not run inputs again whose jobs it still has."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that records the jobs and results of this run. If the command is repeated with the same file and the "
            "same inputs, it prints the recorded results, and runs only the other inputs.",
        ),
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Run all failed inputs in the file of --resume again. Without this option, only failures that are marked "
            "as retryable run again.",
        ),
    ] = False,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """Run an endpoint on each line of a file, and print the results in order.

    Each output line is a JSON object with the member `index`, and either
    the member `value` or the member `error`. If standard error is a
    terminal, a progress bar is shown.
    """
    with (
        _client(url, header, token_file, uds, endpoint=endpoint, idempotency_key=idempotency_key) as (
            client,
            screen,
        ),
        read_lines(inputs) as (lines, total),
        map_progress(screen, total) as move,
    ):
        if resume is not None and idempotency_key is not None:
            raise ValueError("--resume and --idempotency-key were both passed; use one of the two")
        if retry_failed and resume is None:
            raise ValueError("--retry-failed needs --resume FILE")
        shared = typed(client, endpoint, read_words(words or []))
        results = client.map(
            endpoint,
            lines,
            return_exceptions=True,
            concurrency=concurrency,
            batch_size=batch_size,
            progress=move,
            idempotency_key=idempotency_key,
            resume_file=None if resume is None else expanded(resume),
            retry_failed=retry_failed,
            shared=shared,
        )
        done, failed, failures = 0, 0, Failures()
        try:
            for result in results:
                line: dict[str, Any] = {"index": done}
                if isinstance(result, ItemFailedError):
                    failed += 1
                    line["error"] = {"code": result.code, "message": reason_of(result)}
                    failures.add(done, **line["error"])
                else:
                    line["value"] = result
                screen.json(line)
                done += 1
        except KeyboardInterrupt:
            again = "with the same key to get their results" if idempotency_key else "to continue"
            advice = (
                f"the jobs keep running on the server; repeat the command {again}"
                if idempotency_key or resume
                else "the running jobs were cancelled"
            )
            screen.note(f"interrupted after {done} inputs; {advice}")
            raise typer.Exit(INTERRUPTED) from None
    if lines.fault is not None:
        screen.error(f"{lines.fault}. This line and the lines after it were not run.")
    if failed or lines.fault is not None:
        details = "; see the member `error` of their output lines" if failed else ""
        again = " To run them again, repeat the command with --retry-failed." if failed and resume else ""
        if done:
            screen.error(f"{failed} of {done} inputs failed{details}.{again}")
        for each in failures.summary():
            screen.note(each)
        raise typer.Exit(JOB_FAILED if lines.fault is None else USAGE)


# `attach` and `cancel` treat unknown options as arguments, because the id of a job may begin with a dash.
_IDS = {"ignore_unknown_options": True}


@app.command(
    cls=CommandWithUrl,
    epilog=_examples(f"attach {_URL} 5f1c…   (`call --detach` and `jobs` print the ids of jobs)"),
    context_settings=_IDS,
)
def attach(
    url: Url,
    job: JobId,
    as_json: AsJson = False,
    from_now: Annotated[
        bool,
        typer.Option("--from-now", help="Do not print the text and the items that have already arrived."),
    ] = False,
    timeout: Timeout = None,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """Show the result of a running or finished job, from the beginning."""
    with _client(url, header, token_file, uds, timeout) as (client, screen):
        follow(client, client.job(job), screen, as_json, from_now=from_now)


@app.command(cls=CommandWithUrl, epilog=EPILOG, context_settings=_IDS)
def cancel(
    url: Url,
    job: JobId,
    as_json: AsJson = False,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """Cancel a job, and print its status. If the job has already ended, nothing changes."""
    with _client(url, header, token_file, uds) as (client, screen):
        status = client.job(job).cancel()
        screen.json({"job": job, "status": status}) if as_json else screen.value(status)


@app.command(cls=CommandWithUrl, epilog=_examples(f"jobs {_URL} --watch"))
def jobs(
    url: Url,
    as_json: AsJson = False,
    limit: Annotated[int, typer.Option(help="Maximum number of jobs to list.", min=1)] = 50,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Update the list every second until Ctrl+C."),
    ] = False,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """List your jobs, newest first."""
    with _client(url, header, token_file, uds) as (client, screen):
        if watch:
            watch_jobs(client, limit, screen)
        else:
            list_jobs(client, limit, screen, as_json=as_json)


@app.command(
    cls=CommandWithUrl,
    epilog=_examples(
        f"chat {_URL}",
        f"chat {_URL} --system 'Answer in one sentence.' max_tokens=200",
        f"chat {_URL} < questions.txt   (one question per line)",
    ),
)
def chat(
    url: Url,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENDPOINT] [KEY=VALUE]…",
            help="Name of the endpoint, which is `generate` by default, followed by members of each input, such as "
            "max_tokens=200.",
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text of the system message that begins the conversation."),
    ] = None,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """Chat with a language model.

    Each question is sent with the conversation so far, as the member
    `messages` of the input. Ctrl+C stops a reply, and the conversation
    continues with the part that has arrived. Ctrl+D ends the command. The
    server does not store the conversation.
    """
    endpoint = words.pop(0) if words and "=" not in words[0] else "generate"
    with _client(url, header, token_file, uds, endpoint=endpoint) as (client, screen):
        members = typed(client, endpoint, read_words(words or []))
        converse(client, endpoint, members, screen, system=system)


@app.command(
    cls=CommandWithUrl,
    epilog=_examples(f"describe {_URL}", f"describe {_URL} generate --json | jq .input_schema"),
)
def describe(
    url: Url,
    endpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="ENDPOINT", help="Name of an endpoint. Without a name, the command describes the server."
        ),
    ] = None,
    as_json: AsJson = False,
    show_all: Annotated[
        bool,
        typer.Option("--all", help="Also show descriptions, limits and capabilities in full."),
    ] = False,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """Describe a server, or the input and the value of one endpoint."""
    with _client(url, header, token_file, uds) as (client, screen):
        found = client.discover() if endpoint is None else client.describe(endpoint)
        if as_json:
            screen.json(found.model_dump())
        elif isinstance(found, Discovery):
            screen.table(*describe_server(found, client.url, show_all=show_all))
        else:
            screen.table(*describe_endpoint(found, client.url, show_all=show_all))


@app.command(
    cls=CommandWithUrl,
    epilog=_examples(
        f"codegen {_URL} -o gpu.py",
        f"codegen {_URL} --endpoint generate > generate.py",
    ),
)
def codegen(
    url: Url,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write to, instead of standard output. If no module can be generated, the file is not changed.",
        ),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="Endpoint to include. This option can be repeated. The default is all endpoints."),
    ] = None,
    header: Headers = None,
    token_file: TokenFile = None,
    uds: Uds = None,
) -> None:
    """Generate a typed Python module for the endpoints of a server.

    The module has pydantic models for the input and the value of each
    endpoint. Its classes TypedClient and TypedAsyncClient wrap a
    client. Editors and type checkers know the types of the methods of
    these classes.
    """
    try:
        import_module("datamodel_code_generator")
    except ImportError as error:
        display.Screen().error(
            f"`tidewire codegen` needs {error.name or error}: {install_command('codegen')}"
        )
        raise typer.Exit(USAGE) from None
    with _client(url, header, token_file, uds) as (client, screen):
        discovery = client.discover()
        offered = [each.name for each in discovery.endpoints]
        described = [
            typed_module.described(client, name, offered) for name in dict.fromkeys(endpoint or offered)
        ]
        text = typed_module.module(client.url, discovery, described)
        if output is None:
            screen.write(text)
            return
        try:
            expanded(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--output {output}: {error.strerror}") from None


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if show_version:
        print(version("tidewire"))
        raise typer.Exit


if __name__ == "__main__":
    main()
