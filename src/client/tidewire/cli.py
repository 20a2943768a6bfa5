"""The command line: `tidewire call`, `attach`, `cancel`, `jobs`, `describe`, and what other packages add."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.core
import typer.main

from tidewire import display
from tidewire.errors import (
    InvalidValueError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    ProtocolError,
    RequestError,
    TidewireError,
    TotalTimeoutError,
)
from tidewire.protocol.strict_json import StrictJsonError, loads
from tidewire.sync import BatchJob, Client, Job
from tidewire.types import UNSET

COMMANDS: Final = "tidewire.commands"
"""Entry-point group in which other packages offer commands: functions, as typer takes them, or typer apps."""

JOB_FAILED, USAGE, UNREACHABLE, PROTOCOL_FAULT, INTERRUPTED = 1, 2, 3, 4, 130

_EXTRAS = {"tidewire_server": "server", "tidewire_conformance": "server"}

_EPILOG = (
    "Exit codes: 0 done, 1 the job failed or was cancelled, 2 wrong usage or input, 3 the server cannot be reached "
    "or does not take the request now, 4 the other side does not keep to the protocol, 130 interrupted (the job goes on)."
)


class _Commands(typer.core.TyperGroup):
    """The commands of this file, and those found through entry points, loaded when they are named."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_others()) - set(super().list_commands(ctx)))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        other = _others().get(cmd_name)
        return own if own is not None or other is None else _load(other)


app: Final = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Jobs on GPU servers whose results stream, and survive every break of the connection.",
    epilog=_EPILOG,
)


def main() -> None:
    """Entry point of the `tidewire` command."""
    app(prog_name="tidewire")


def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS)}


def _load(point: EntryPoint) -> Any:
    """The command behind an entry point; where its package lacks a requirement, one that says what to install."""
    try:
        found = point.load()
    except ImportError as error:
        return _missing(point, error)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    if not callable(found) or hasattr(found, "invoke"):
        return found
    return _command(point.name, found)


def _missing(point: EntryPoint, error: ImportError) -> Any:
    extra = _EXTRAS.get(point.module.partition(".")[0])
    wanted = f"'tidewire[{extra}]'" if extra else (error.name or "what it needs")

    def command() -> NoReturn:
        display.Screen().error(f"`tidewire {point.name}` needs {error.name or error}: pip install {wanted}")
        raise typer.Exit(USAGE)

    command.__doc__ = f"Not installed: pip install {wanted}"
    return _command(point.name, command, ignore_unknown_options=True, allow_extra_args=True)


def _command(name: str, function: Callable[..., Any], **settings: bool) -> Any:
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name, context_settings=dict(settings))(function)
    return typer.main.get_command(single)


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
        with Client(url, headers=_headers(headers), timeout=timeout) as client:
            yield client, screen
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


def _headers(given: list[str] | None) -> dict[str, str]:
    headers = {}
    for header in given or []:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header {header!r} is not of the form NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _follow(client: Client, job: Job[Any], screen: display.Screen, as_json: bool) -> None:
    """Show a job until its end."""
    job.listener = screen.tell
    try:
        if (job.item_count or len((job.read().state or {})["items"])) > 1:
            _follow_items(client.batch_job(job.id), screen, as_json)
        elif as_json:
            _follow_as_json(job, screen)
        elif screen.live:
            _follow_live(job, screen)
        else:
            _follow_into_pipe(job, screen)
    except KeyboardInterrupt:
        job.listener = None
        screen.end_line()
        screen.note(f"interrupted; the job goes on: tidewire attach {client.url} {job.id}")
        raise typer.Exit(INTERRUPTED) from None
    except TotalTimeoutError as error:
        error.advice = f"The job goes on: tidewire attach {client.url} {job.id}"
        raise


def _follow_items(batch: BatchJob[Any], screen: display.Screen, as_json: bool) -> None:
    """Several items: each when it has ended, as a line; a failure among them is told, and raised at the end."""
    batch.listener = screen.tell
    failed: ItemFailedError | None = None
    for index, result in batch.as_completed():
        if isinstance(result, ItemFailedError):
            failed = failed or result
            screen.json({"type": "error", "item": index, "code": result.code, "message": str(result)})
        elif as_json:
            screen.json({"type": "result", "item": index, "job": batch.id, "value": result})
        else:
            screen.json({"item": index, "value": result})
    if failed is not None:
        raise failed


def _follow_live(job: Job[Any], screen: display.Screen) -> None:
    texts = False
    with screen.waiting(f"job {job.id}"):
        for update in job:
            if update.deleted:
                screen.void(update.deleted)
            if update.text:
                texts = True
                screen.write(update.text)
            elif not texts:
                screen.show(update.value)
    screen.end_line()
    if not texts:
        screen.value(job.result())


def _follow_into_pipe(job: Job[Any], screen: display.Screen) -> None:
    texts = False
    for text in job.iter_text():
        texts = True
        screen.write(text)
    if not texts:
        screen.value(job.result())


def _follow_as_json(job: Job[Any], screen: display.Screen) -> None:
    try:
        for update in job:
            line: dict[str, Any] = {
                "type": "update",
                "id": update.id,
                "first_seq": update.first_seq,
                "seq": update.seq,
                "deleted": update.deleted,
                "text": update.text,
            }
            # Beside a text the whole value would make the output grow with its square.
            screen.json(line if update.text or update.deleted else line | {"value": update.value})
        screen.json({"type": "result", "job": job.id, "value": job.result()})
    except TidewireError as error:
        screen.json(
            {
                "type": "error",
                "job": job.id,
                "error": type(error).__name__,
                "code": error.code,
                "retryable": error.retryable,
                "last_event_id": error.last_event_id,
                "message": str(error),
            }
        )
        raise


# ---- commands ----------------------------------------------------------------------------------------------------


@app.command(epilog=_EPILOG)
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
    error. Interrupting leaves the job running and says how to see it again.
    """
    with _client(url, header, timeout) as (client, screen):
        endpoint, members = _parse_words(words or [])
        whole = UNSET if input_ is None else _parse_input(input_)
        if whole is not UNSET and members:
            raise ValueError("give the input with --input or as KEY=VALUE, not both")
        options = client.with_options(deadline=deadline, idempotency_key=idempotency_key)
        job = options.submit(endpoint, members if whole is UNSET else whole)
        if detach:
            screen.json({"job": job.id}) if as_json else screen.value(job.id)
            return
        _follow(client, job, screen, as_json)


# The id of a job may begin with a dash: what is no option of theirs is an argument to these two.
_IDS = {"ignore_unknown_options": True}


@app.command(epilog=_EPILOG, context_settings=_IDS)
def attach(
    url: Url, job: JobId, as_json: AsJson = False, timeout: Timeout = None, header: Headers = None
) -> None:
    """Show a job that runs already, or has ended, from its beginning."""
    with _client(url, header, timeout) as (client, screen):
        _follow(client, client.job(job), screen, as_json)


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
            screen.wide(display.jobs(found))
        else:
            screen.note("no jobs")


@app.command(epilog=_EPILOG)
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
            display.server(client.discover())
            if endpoint is None
            else display.endpoint(client.describe(endpoint), url)
        )
        for number, part in enumerate(parts):
            if number:
                screen.out.print()
            screen.out.print(part)


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    if show_version:
        print(version("tidewire"))
        raise typer.Exit


def _parse_words(words: list[str]) -> tuple[str | None, dict[str, Any]]:
    endpoint = words[0] if words and "=" not in words[0] else None
    members: dict[str, Any] = {}
    for word in words[0 if endpoint is None else 1 :]:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(f"{word!r} is not of the form KEY=VALUE")
        if key in members:
            raise ValueError(f"{key!r} is given twice")
        try:
            members[key] = loads(text)
        except StrictJsonError:
            members[key] = text
    return endpoint, members


def _parse_input(given: str) -> Any:
    if given == "-":
        text = sys.stdin.read()
    elif given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--input {given}: {error.strerror}") from None
    else:
        text = given
    try:
        return loads(text)
    except StrictJsonError as error:
        raise ValueError(f"--input: {error}") from None


if __name__ == "__main__":
    main()
