"""Command line of the conformance suite: `tidewire conformance` and `python -m tidewire_conformance`."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidewire_conformance import parse_option_values, registry
from tidewire_conformance.clients.scenarios import AdapterError, Scenario, ScenarioError
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
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.judging.server_probe import ProbeError
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

An interrupt (Ctrl-C) ends the run, and the report shows the results
so far. The grade, baselines and the pytest plugin are described in
docs/reference/conformance.md.
"""

_EPILOG: Final = """Examples:

tidewire conformance http://127.0.0.1:8000

tidewire conformance http://127.0.0.1:8000 --endpoint count --only resume

tidewire conformance http://127.0.0.1:8000 --json report.json --page report.html

tidewire conformance --client 'node my-client.mjs' --only cuts

tidewire conformance --profile sse https://example.org/events

tidewire conformance --list   (prints the checks and their requirements)

Exit codes: 0 no requirement failed; 1 a requirement failed or could not be judged; 2 wrong usage; 3 the server cannot be \
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
    selection = parse_option_values.part(only or (), skip or ())
    try:
        known = parse_option_values.baseline(baseline)
        is_sse = "sse" in (profile or ())
        if is_sse and len(profile or ()) > 1:
            _fail("--profile sse cannot be combined with another profile", USAGE)
        if body and (client or not is_sse):
            _fail("--body requires --profile sse and a URL", USAGE)
        if is_sse and not client:
            unused = (
                variants,
                second_header,
                endpoint,
                example,
                origin,
                restart_cmd,
                expire_cmd,
                replica_url,
            )
            if any(unused):
                _fail("of the options for a server, --profile sse has only --header and --body", USAGE)
            if repeat > 1 or lanes:
                _fail("--repeat and --lanes cannot be combined with --profile sse and a URL", USAGE)
            stream_checks = choose_stream_checks(only or (), skip or ())
            if list_checks:
                _list(console, ((each.name, each.requirements, each.about) for each in stream_checks))
                return
            stream_plan = parse_option_values.stream_plan(
                url, header or (), body, patience=patience, seed=seed, budget=budget
            )
            options = parse_option_values.part(only or (), skip or ())
            report = judge_stream_server(stream_plan, stream_checks, known, options)
            _write_and_show(report, writers, console, verbose)
        if client or variants:
            if any((url, header, second_header, endpoint, origin, restart_cmd, expire_cmd, replica_url)):
                _fail("--client cannot be combined with a URL or with the options for a server", USAGE)
            if not client or (profile and not is_sse):
                _fail("--variants requires --client, and a profile other than sse requires a URL", USAGE)
            if variants and is_sse:
                _fail("--variants cannot be combined with --profile sse", USAGE)
            selection = parse_option_values.part(only or (), skip or ())
            client_plan = ClientPlan(
                client,
                lanes or DEFAULT_CLIENT_CONCURRENCY,
                seed=seed,
                repeat=repeat,
                patience=patience,
                budget=budget,
            )
            scenarios = _scenarios(only or [], skip or [], variants or [], "sse" if is_sse else "")
            report = _client(client_plan, scenarios, known, console, list_checks)
            _write_and_show(replace(report, part=selection), writers, console, verbose)
        chosen = parse_option_values.chosen(only or (), skip or (), profile or ())
        if list_checks:
            _list(console, ((each.name, each.requirements, each.about) for each in chosen))
            return
        url = parse_option_values.server_url(url)
        if not url:
            _fail("pass the URL of a server, set TIDEWIRE_URL, or pass --client", USAGE)
        plan = parse_option_values.plan(
            url, header=parse_option_values.caller(url, header or ()), second_header=second_header or (), example=example or (),
            endpoint=endpoint or (), restart=restart_cmd, expire=expire_cmd, replica_url=replica_url, origin=origin,
            patience=patience, seed=seed, repeat=repeat, budget=budget, lanes=lanes or DEFAULT_CONCURRENCY,
        )  # fmt: skip
        found = _run(plan, chosen)
    except parse_option_values.EmptySelectionError as error:
        _fail(str(error), NOTHING_RAN)
    except parse_option_values.UsageError as error:
        _fail(str(error), USAGE)
    except (registry.BrokenChecksError, ProbeError, StreamUnreachableError) as error:
        _fail(str(error), UNREACHABLE)
    if not found.server.samples:
        reasons = [f" ({each.why})" for each in found.server.failed_examples[:1]]
        typer.echo(
            f"tidewire conformance: most checks were skipped, because no example of an endpoint ran to its end{''.join(reasons)}; "
            'fix the endpoint, or pass a working input with the option --example \'ENDPOINT={"its": "input"}\'',
            err=True,
        )
    count = len(registry.checks())
    part = f"{len(chosen)} of {count} checks, by {selection}" if selection and len(chosen) < count else ""
    _write_and_show(grade(found, known, part, profile or ()), writers, console, verbose)


conformance.__doc__ = HELP


def _scenarios(only: list[str], skip: list[str], variants: list[str], profile: str) -> list[Scenario]:
    try:
        return choose(only, skip, variants, profile)
    except ScenarioError as error:
        _fail(str(error), UNREACHABLE)


def _client(
    plan: ClientPlan,
    scenarios: list[Scenario],
    known: dict[str, str],
    console: Console,
    list_only: bool,
) -> Report:
    if list_only:
        _list(console, ((name_of(each), each.requirements, each.about) for each in scenarios))
        raise typer.Exit(CONFORMANT)
    try:
        with _show_progress(f"starting {plan.command}", len(scenarios) * plan.repeat) as (watch, _):
            return judge_client(plan, scenarios, known, watch)
    except AdapterError as error:
        _fail(str(error), UNREACHABLE)
    except ValueError as error:
        _fail(f"{plan.command!r} is not a valid command: {error}", USAGE)


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
        try:
            asyncio.run(progress.go())
        except KeyboardInterrupt:
            progress.cut_short = INTERRUPTED
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


def _list(console: Console, rows: Iterable[tuple[str, Sequence[str], str]]) -> None:
    for name, requirements, about in rows:
        console.print(f"[bold]{name}[/bold]  {' '.join(requirements)}")
        console.print(f"    {about}", markup=False)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"tidewire conformance: {message}", err=True)
    raise typer.Exit(code)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
"""Typer application, mounted by the `tidewire` command line."""
app.command("conformance", epilog=_EPILOG)(conformance)


def main() -> None:
    """Run the command as `python -m tidewire_conformance`."""
    app(prog_name="python -m tidewire_conformance")
