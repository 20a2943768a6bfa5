"""Command line of the conformance suite: `tidewire conformance` and `python -m tidewire_conformance`."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidewire_conformance import parse_option_values, registry
from tidewire_conformance.clients.scenarios import AdapterError, ScenarioError
from tidewire_conformance.clients.scenarios.client_mode import choose, judge_client
from tidewire_conformance.clients.scenarios.play_all_scenarios import (
    DEFAULT_CONCURRENCY as DEFAULT_CLIENT_CONCURRENCY,
)
from tidewire_conformance.clients.scenarios.play_all_scenarios import ScenarioPlan as ClientPlan
from tidewire_conformance.clients.scenarios.scenario_to_verdict import name_of
from tidewire_conformance.event_streams.judge_stream_server import (
    StreamUnreachableError,
    choose_stream_checks,
    judge_stream_server,
)
from tidewire_conformance.judging.grade import Report, Settings, grade
from tidewire_conformance.judging.server_probe import ProbeError, UnknownEndpointError
from tidewire_conformance.judging.verdict import Outcome, Verdict
from tidewire_conformance.registry import Check
from tidewire_conformance.report import badge, html_report, json_report, junit_report, terminal_report
from tidewire_conformance.runner import DEFAULT_CONCURRENCY, INTERRUPTED, CheckProgress, Plan, SuiteRun, Watch

CONFORMANT, FAILED, USAGE, UNREACHABLE, NOTHING_RAN = 0, 1, 2, 3, 4

HELP: Final = """Report the requirements that a server or a client violates, with the bytes that prove each violation.

To test a server, the suite needs only its URL. The suite runs the
examples in the server's endpoint descriptions, and announces how many
jobs it starts on each endpoint. Checks for which no example is
suitable need the endpoint tidewire.script, which
`tidewire serve --script` adds.

If the environment variables TIDEWIRE_URL and TIDEWIRE_TOKEN are set,
the suite uses them as the URL and as the bearer token of its caller.
The token is sent only to the origin of TIDEWIRE_URL.

To test a client, write a program that controls the client. The program
reads commands and writes reports as lines of JSON
(docs/how-to/write-a-client.md).

With `--profile sse`, the suite tests any URL that streams events, or
any client that reads event streams, whether or not it uses Tidewire
(docs/how-to/test-event-streams.md).

An interrupt (Ctrl-C) or SIGTERM ends the run, and the report shows the
results so far. The grade, baselines and the pytest plugin are described in
docs/reference/conformance.md.
"""

_EPILOG: Final = """Examples:

tidewire conformance http://127.0.0.1:8000

tidewire conformance http://127.0.0.1:8000 --endpoint count --only resume

tidewire conformance http://127.0.0.1:8000 --json report.json --page report.html

tidewire conformance --client 'node my-client.mjs' --only cuts

tidewire conformance --profile sse https://example.org/events

tidewire conformance --list   (prints the checks and their requirements)

Exit codes: 0 no requirement failed; 1 a requirement failed or is inconclusive; 2 wrong usage; 3 the server cannot be \
reached, the client program's output cannot be parsed, the suite failed, or the run was cut short; 4 nothing ran.
"""

RepeatedOption = list[str] | None
_of_server = partial(typer.Option, rich_help_panel="Server")
_of_client = partial(typer.Option, rich_help_panel="Client")
_of_checks = partial(typer.Option, rich_help_panel="Checks")
_of_reports = partial(typer.Option, rich_help_panel="Reports")
LINE_SECONDS: Final = 10.0
"""Interval, in seconds, between progress lines. They are printed only if standard error is not a terminal."""


def conformance(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Base URL of the server. By default, TIDEWIRE_URL.", show_default=False
        ),
    ] = "",
    client: Annotated[
        str,
        _of_client(
            metavar="CMD",
            help="Test a client instead of a server. CMD is the command line of a program that drives the client.",
        ),
    ] = "",
    variants: Annotated[
        RepeatedOption,
        _of_client(
            metavar="NAME",
            help="Unusual server with which the client is also tested: a name, `all` or `none`. By default, the client is tested with a few scenarios on each unusual server.",
        ),
    ] = None,
    only: Annotated[
        RepeatedOption,
        _of_checks(
            metavar="NAME",
            help="Area, requirement id or name of checks to run. A name may contain * as a wildcard.",
        ),
    ] = None,
    skip: Annotated[
        RepeatedOption,
        _of_checks(metavar="NAME", help="Area, requirement id or name of checks to leave out."),
    ] = None,
    profile: Annotated[
        RepeatedOption,
        _of_checks(
            metavar="PROFILE",
            help="Profile for which the server is graded. By default, all profiles that it claims.",
        ),
    ] = None,
    header: Annotated[
        RepeatedOption,
        _of_server(metavar="NAME: VALUE", help="HTTP header to send with each request."),
    ] = None,
    second_header: Annotated[
        RepeatedOption,
        _of_server(
            metavar="NAME: VALUE",
            help="HTTP header with the credentials of a second user. Checks use it to test whether jobs are private.",
        ),
    ] = None,
    body: Annotated[
        str,
        _of_server(
            metavar="TEXT",
            help="With `--profile sse`: body to send with POST, or @FILE. By default, the stream is requested with GET.",
        ),
    ] = "",
    endpoint: Annotated[
        RepeatedOption,
        _of_server(
            metavar="NAME", help="Endpoint whose examples are run. By default, all endpoints are used."
        ),
    ] = None,
    example: Annotated[
        RepeatedOption,
        _of_server(
            metavar="ENDPOINT=JSON",
            help="Input to use for an endpoint in place of the examples in its description.",
        ),
    ] = None,
    origin: Annotated[
        str,
        _of_server(
            metavar="ORIGIN", help="Web origin that the server is configured to allow, for the CORS checks."
        ),
    ] = "",
    restart_cmd: Annotated[
        str,
        _of_server(metavar="CMD", help="Shell command that kills the server and starts it again."),
    ] = "",
    expire_cmd: Annotated[
        str,
        _of_server(metavar="CMD", help="Shell command that makes the server delete its ended jobs."),
    ] = "",
    replica_url: Annotated[
        str,
        _of_server(metavar="URL", help="Base URL of another replica of the server."),
    ] = "",
    patience: Annotated[
        float,
        _of_checks(
            min=0.1,
            max=100,
            metavar="FACTOR",
            help="Factor that multiplies all timeouts. The report shows it.",
        ),
    ] = 1.0,
    budget: Annotated[
        float,
        _of_checks(min=1, metavar="SECONDS", help="Time, in seconds, after which no further check starts."),
    ] = 300.0,
    seed: Annotated[
        int,
        _of_checks(metavar="NUMBER", help="Seed for the random choices of the checks."),
    ] = 0,
    repeat: Annotated[
        int,
        _of_checks(
            min=1,
            max=1000,
            metavar="TIMES",
            help="Number of times to run each check. The worst result counts.",
        ),
    ] = 1,
    lanes: Annotated[
        int | None,
        _of_checks(
            min=1,
            max=64,
            metavar="NUMBER",
            help=f"Number of checks that run concurrently. The default is {DEFAULT_CONCURRENCY}, or {DEFAULT_CLIENT_CONCURRENCY} for a client.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        _of_checks(exists=True, dir_okay=False, metavar="FILE", help="TOML file that lists known failures."),
    ] = None,
    json: Annotated[
        Path | None,
        _of_reports(metavar="FILE", help="Write the report as JSON to this file."),
    ] = None,
    junit_xml: Annotated[
        Path | None,
        _of_reports("--junit", metavar="FILE", help="Write the report as JUnit XML to this file."),
    ] = None,
    html: Annotated[
        Path | None,
        _of_reports("--page", metavar="FILE", help="Write the report as one HTML page to this file."),
    ] = None,
    svg: Annotated[
        Path | None,
        _of_reports("--badge", metavar="FILE", help="Write the grade as an SVG badge to this file."),
    ] = None,
    verbose: Annotated[
        bool,
        _of_reports("--verbose", "-v", help="Also list the checks that passed."),
    ] = False,
    list_checks: Annotated[bool, _of_checks("--list", help="Print the checks without running them.")] = False,
) -> None:
    """Report the requirements of the specification that a server or a client violates."""
    console = Console(highlight=False, width=None if os.environ.get("COLUMNS") else max(100, Console().width))
    writers = (
        (json, json_report.write),
        (junit_xml, junit_report.write),
        (html, html_report.write),
        (svg, badge.write),
    )
    for path, _ in writers:
        if path is not None and not path.resolve().parent.is_dir():
            _fail(f"cannot write {path}: the folder {path.resolve().parent} does not exist", USAGE)
    server = _ServerOptions(
        url=url,
        header=header or [],
        second_header=second_header or [],
        body=body,
        endpoint=endpoint or [],
        example=example or [],
        origin=origin,
        restart=restart_cmd,
        expire=expire_cmd,
        replica_url=replica_url,
    )
    try:
        checks = _CheckOptions(
            only=only or [],
            skip=skip or [],
            profiles=profile or [],
            settings=Settings(seed=seed, repeat=repeat, patience=patience, budget=budget),
            lanes=lanes,
            known=parse_option_values.baseline(baseline),
            list_only=list_checks,
        )
        if checks.is_sse and len(checks.profiles) > 1:
            _fail("--profile sse cannot be combined with another profile", USAGE)
        if body and (client or not checks.is_sse):
            _fail("--body requires --profile sse and a URL", USAGE)
        if checks.is_sse and not client:
            report = _stream_mode(server, checks, variants or [], console)
        elif client or variants:
            report = _client_mode(client, variants or [], server, checks, console)
        else:
            report = _server_mode(server, checks, console)
    except parse_option_values.EmptySelectionError as error:
        _fail(str(error), NOTHING_RAN)
    except (parse_option_values.UsageError, UnknownEndpointError) as error:
        _fail(str(error), USAGE)
    except (registry.BrokenChecksError, ProbeError, StreamUnreachableError) as error:
        _fail(str(error), UNREACHABLE)
    _write_and_show(report, writers, console, verbose)


conformance.__doc__ = HELP


@dataclass(frozen=True, kw_only=True)
class _ServerOptions:
    """Options for a server or an event stream under test."""

    url: str
    header: list[str]
    second_header: list[str]
    body: str
    endpoint: list[str]
    example: list[str]
    origin: str
    restart: str
    expire: str
    replica_url: str

    @property
    def requires_tidewire(self) -> bool:
        """Whether an option is set that only makes sense for a server of the Tidewire protocol."""
        requests = (self.second_header, self.endpoint, self.example, self.origin)
        return any((*requests, self.restart, self.expire, self.replica_url))


@dataclass(frozen=True, kw_only=True)
class _CheckOptions:
    """Options that select the checks or scenarios, and that control their run."""

    only: list[str]
    skip: list[str]
    profiles: list[str]
    settings: Settings
    lanes: int | None
    known: dict[str, str]
    """Ids of requirements that are known to fail, with the reasons."""
    list_only: bool

    @property
    def is_sse(self) -> bool:
        return "sse" in self.profiles

    @property
    def part(self) -> str:
        """Options that select a part of the checks, as the report shows them. Empty if all checks run."""
        options = {"--only": self.only, "--skip": self.skip}
        return " ".join(f"{name} {each}" for name, values in options.items() for each in values)


def _stream_mode(
    server: _ServerOptions, checks: _CheckOptions, variants: list[str], console: Console
) -> Report:
    """Test any server that streams events, whether or not it uses Tidewire."""
    if variants or server.requires_tidewire:
        _fail("--profile sse accepts only --header and --body of the options for a server", USAGE)
    if checks.settings.repeat > 1 or checks.lanes:
        _fail("--repeat and --lanes cannot be combined with --profile sse and a URL", USAGE)
    chosen = choose_stream_checks(checks.only, checks.skip)
    if checks.list_only:
        _list_and_exit(console, ((each.name, each.requirements, each.about) for each in chosen))
    plan = parse_option_values.stream_plan(server.url, server.header, server.body, **asdict(checks.settings))
    return judge_stream_server(plan, chosen, checks.known, checks.part)


def _client_mode(
    client: str, variants: list[str], server: _ServerOptions, checks: _CheckOptions, console: Console
) -> Report:
    """Test a client, which the program with the command line `client` controls."""
    if server.url or server.header or server.requires_tidewire:
        _fail("--client cannot be combined with a URL or with the options for a server", USAGE)
    if not client or (checks.profiles and not checks.is_sse):
        _fail("--variants requires --client, and a profile other than sse requires a URL", USAGE)
    if variants and checks.is_sse:
        _fail("--variants cannot be combined with --profile sse", USAGE)
    try:
        scenarios = choose(checks.only, checks.skip, variants, "sse" if checks.is_sse else "")
    except ScenarioError as error:
        _fail(str(error), UNREACHABLE)
    if checks.list_only:
        _list_and_exit(console, ((name_of(each), each.requirements, each.about) for each in scenarios))
    plan = ClientPlan(client, checks.lanes or DEFAULT_CLIENT_CONCURRENCY, **asdict(checks.settings))
    try:
        with _show_progress(f"starting {client}", len(scenarios) * plan.repeat) as (watch, _):
            report = judge_client(plan, scenarios, checks.known, watch)
    except AdapterError as error:
        _fail(str(error), UNREACHABLE)
    except ValueError as error:
        _fail(f"{client!r} is not a valid command: {error}", USAGE)
    return replace(report, part=checks.part)


def _server_mode(server: _ServerOptions, checks: _CheckOptions, console: Console) -> Report:
    """Test a server of the Tidewire protocol."""
    chosen = parse_option_values.chosen(checks.only, checks.skip, checks.profiles)
    if checks.list_only:
        _list_and_exit(console, ((each.name, each.requirements, each.about) for each in chosen))
    url = parse_option_values.server_url(server.url)
    if not url:
        _fail("pass the URL of a server, set TIDEWIRE_URL, or pass --client", USAGE)
    plan = parse_option_values.plan(
        url,
        header=parse_option_values.caller(url, server.header),
        second_header=server.second_header,
        example=server.example,
        endpoint=server.endpoint,
        restart=server.restart,
        expire=server.expire,
        replica_url=server.replica_url,
        origin=server.origin,
        lanes=checks.lanes or DEFAULT_CONCURRENCY,
        **asdict(checks.settings),
    )
    found = _run(plan, chosen)
    if not found.server.samples:
        reasons = [f" ({each.why})" for each in found.server.failed_examples[:1]]
        typer.echo(
            f"tidewire conformance: most checks were skipped, because no example of an endpoint ran to its end{''.join(reasons)}; "
            'fix the endpoint, or pass a working input with the option --example \'ENDPOINT={"its": "input"}\'',
            err=True,
        )
    count = len(registry.checks())
    part = f"{len(chosen)} of {count} checks, by {checks.part}" if checks.part and len(chosen) < count else ""
    return grade(found, checks.known, part, checks.profiles)


def _write_and_show(
    report: Report,
    writers: Sequence[tuple[Path | None, Callable[[Report, Path], None]]],
    console: Console,
    everything: bool,
) -> NoReturn:
    write_failed = False
    for path, write in writers:
        if path is not None:
            try:
                write(report, path)
            except OSError as error:
                typer.echo(f"tidewire conformance: cannot write {path}: {error}", err=True)
                write_failed = True
    terminal_report.show(report, console, everything=everything)
    if report.run.cut_short == INTERRUPTED:
        # End the process at once. A normal exit would wait for the threads of the running scenarios.
        sys.stdout.flush()
        os._exit(report.exit_code)
    raise typer.Exit(report.exit_code or (UNREACHABLE if write_failed else CONFORMANT))


def _run(plan: Plan, checks: list[Check]) -> SuiteRun:
    with _show_progress(f"probing {plan.base_url}", len(checks) * plan.repeat) as (watch, announce):
        progress = CheckProgress(plan, checks, watch, announce)
        # Continuous integration stops a job with SIGTERM, which by default would leave the jobs of the run running.
        default = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            asyncio.run(progress.go())
        except KeyboardInterrupt:
            progress.cut_short = INTERRUPTED
        finally:
            signal.signal(signal.SIGTERM, default)
        return progress.run()


@contextmanager
def _show_progress(first: str, total: int) -> Iterator[tuple[Watch, Callable[[str], None]]]:
    """Show progress on standard error: as a bar on a terminal, otherwise as a line every `LINE_SECONDS` seconds.

    Yields:
        The callback for finished checks, and a function that prints an announcement.
    """
    console = Console(stderr=True, highlight=False)
    columns = (
        BarColumn(bar_width=30),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    failed, last_line = 0, time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(first, total=total)

        def watch(verdict: Verdict, done: int, total: int) -> None:
            nonlocal failed, last_line
            progress.update(task, completed=done, total=total, description=verdict.check)
            if verdict.outcome in {Outcome.FAIL, Outcome.ERROR}:
                failed += 1
                console.print(f"{verdict.outcome.value}: {verdict.check}", markup=False, soft_wrap=True)
            if not console.is_terminal and time.monotonic() - last_line > LINE_SECONDS:
                last_line = time.monotonic()
                console.print(f"{done} of {total} finished, {failed} failed", markup=False)

        yield watch, lambda text: console.print(text, markup=False, soft_wrap=True)


def _list_and_exit(console: Console, rows: Iterable[tuple[str, Sequence[str], str]]) -> NoReturn:
    """Print the checks or scenarios that would run, and exit."""
    for name, requirements, about in rows:
        console.print(f"[bold]{name}[/bold]  {' '.join(requirements)}")
        console.print(f"    {about}", markup=False)
    raise typer.Exit(CONFORMANT)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"tidewire conformance: {message}", err=True)
    raise typer.Exit(code)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""Typer application, mounted by the `tidewire` command line."""
app.command("conformance", epilog=_EPILOG)(conformance)


def main() -> None:
    """Run the command as `python -m tidewire_conformance`."""
    app(prog_name="python -m tidewire_conformance")
