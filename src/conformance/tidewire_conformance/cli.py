"""`tidewire conformance URL` or `--client CMD`, and the same as `python -m tidewire_conformance …`."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidewire_conformance import parse_option_values, registry
from tidewire_conformance.clients.client_mode.choose_and_judge_client import (
    NoSuchNameError,
    choose,
    judge_client,
)
from tidewire_conformance.clients.client_mode.scenario_runner import LANES as CLIENT_LANES
from tidewire_conformance.clients.client_mode.scenario_runner import ScenarioPlan as ClientPlan
from tidewire_conformance.clients.client_mode.scenario_verdicts import name_of
from tidewire_conformance.clients.player import AdapterError, ScenarioError
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.judging.server_probe import ProbeError
from tidewire_conformance.judging.verdict import Outcome, Verdict
from tidewire_conformance.registry import Check
from tidewire_conformance.report import badge, html_report, json_report, junit_report
from tidewire_conformance.report import terminal_report as for_people
from tidewire_conformance.runner import INTERRUPTED, LANES, CheckProgress, Plan, SuiteRun, Watch

CONFORMANT, FAILED, USAGE, UNREACHABLE, NOTHING_RAN = 0, 1, 2, 3, 4

HELP: Final = """Tell which sentences of the specification a server or a client breaks, with the bytes that prove it.

The server needs nothing but a description of itself. The examples of its endpoints are called, and what is seen of
them decides what can be checked. An endpoint `tidewire.script` unlocks the rest (spec/README.md tells what it takes).

\b
  tidewire conformance http://127.0.0.1:8000                    all checks
  tidewire conformance URL --only resume --only TW-FRM-015      an area, and the checks of one sentence
  tidewire conformance URL --only resume.a_cursor_that_is_no_id_is_refused
  tidewire conformance URL --header 'Authorization: Bearer a' --second-header 'Authorization: Bearer b'
  tidewire conformance URL --profile core --skip TW-FRM-068     a profile, but for one sentence
  tidewire conformance URL --json report.json --page report.html --junit report.xml --badge grade.svg
  tidewire conformance URL --list                               the checks, and what each judges

\b
Inside pytest, a test for each check:
  pytest -p tidewire_conformance.pytest_plugin --tidewire-url=URL

\b
A client is any program that reads commands and writes reports, lines of JSON (docs/how-to/write-a-client.md):
  tidewire conformance --client 'node my-client.mjs'            every scenario
  tidewire conformance --client CMD --only cuts --only TW-CLI-017
  tidewire conformance --client CMD --variants all              each scenario with every unusual server as well

\b
The grade counts sentences. A profile (core, durable, batch, logprobs, browser) is met with all of its sentences or
not at all; what the server claims and nothing could try counts as not met, and is listed with what would unlock it.

\b
A baseline is a TOML file of failures that are known. They still run, and one that passes is an error:
  [[known]]
  sentence = "TW-FRM-068"
  reason = "the proxy in front sends no ping"

\b
Exit codes: 0 no requirement failed, 1 one failed or could not be judged, 2 wrong usage, 3 the server cannot be
reached, the program with the client cannot be understood, the suite failed or was cut short, 4 nothing ran.
An interrupt (Ctrl-C) ends the run with the report so far; the checks that did not end count as untested.
"""

Repeated = list[str] | None
LINE_SECONDS: Final = 10.0
"""Between two lines that tell how far it is, where there is no terminal."""


def conformance(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the server is mounted.", show_default=False)
    ] = "",
    client: Annotated[
        str,
        typer.Option(metavar="CMD", help="Judge a client: the program that drives it, with its arguments."),
    ] = "",
    variants: Annotated[
        Repeated,
        typer.Option(
            metavar="NAME",
            help="Of servers that a client meets: a name, `all` or `none`; by default a few of each.",
        ),
    ] = None,
    only: Annotated[
        Repeated, typer.Option(metavar="NAME", help="Areas, sentences or names of checks (with *) to run.")
    ] = None,
    skip: Annotated[Repeated, typer.Option(metavar="NAME", help="Those to leave out.")] = None,
    profile: Annotated[
        Repeated,
        typer.Option(metavar="PROFILE", help="Profiles of whose sentences checks are run; all by default."),
    ] = None,
    header: Annotated[Repeated, typer.Option(metavar="NAME: VALUE", help="Sent with each request.")] = None,
    second_header: Annotated[
        Repeated,
        typer.Option(metavar="NAME: VALUE", help="Headers of another caller, for the checks of ownership."),
    ] = None,
    endpoint: Annotated[
        Repeated, typer.Option(metavar="NAME", help="Endpoints whose examples are run; all by default.")
    ] = None,
    example: Annotated[
        Repeated,
        typer.Option(metavar="ENDPOINT=JSON", help="An input to run, where the description has no example."),
    ] = None,
    origin: Annotated[
        str,
        typer.Option(
            metavar="ORIGIN", help="An origin whose pages the server allows, for the checks of CORS."
        ),
    ] = "",
    restart_cmd: Annotated[
        str, typer.Option(metavar="CMD", help="A shell command that kills the server and starts it again.")
    ] = "",
    expire_cmd: Annotated[
        str, typer.Option(metavar="CMD", help="A shell command that lets the states of ended jobs expire.")
    ] = "",
    replica_url: Annotated[str, typer.Option(metavar="URL", help="Another replica of the server.")] = "",
    patience: Annotated[
        float,
        typer.Option(min=0.1, max=100, metavar="FACTOR", help="Multiplies each wait; it is in the report."),
    ] = 1.0,
    budget: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Seconds after which no further check begins.")
    ] = 300.0,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Of the choices that checks make.")] = 0,
    repeat: Annotated[
        int, typer.Option(min=1, max=1000, metavar="TIMES", help="Run each check so often; the worst counts.")
    ] = 1,
    lanes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="NUMBER",
            help=f"Checks that run at a time; {LANES}, or {CLIENT_LANES} for a client.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Failures that are known, as TOML."),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JSON here.")] = None,
    junit_xml: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write it as JUnit XML here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write it as one HTML page here.")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--badge", metavar="FILE", help="Write the grade as a badge (SVG) here.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List the checks that passed as well.")
    ] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="Print the checks, and run none.")] = False,
) -> None:
    """Tell which sentences of the specification a server or a client breaks."""
    console = Console(highlight=False, width=None if os.environ.get("COLUMNS") else max(100, Console().width))
    writers = (
        (json, json_report.write),
        (junit_xml, junit_report.write),
        (html, html_report.write),
        (svg, badge.write),
    )
    for path, _ in writers:
        if path is not None and not path.resolve().parent.is_dir():
            _fail(f"{path} cannot be written: there is no folder {path.resolve().parent}", USAGE)
    chosen_by = parse_option_values.part(only or (), skip or (), profile or ())
    try:
        known = parse_option_values.baseline(baseline)
        if client or variants:
            if (
                url
                or header
                or second_header
                or endpoint
                or origin
                or restart_cmd
                or expire_cmd
                or replica_url
            ):
                _fail("a URL, and what goes with it, is for a server; --client stands without", USAGE)
            if not client or profile:
                _fail("--variants go with --client, and --profile with a URL", USAGE)
            client_plan = ClientPlan(client, seed, repeat, patience, budget, lanes or CLIENT_LANES)
            report = _client(client_plan, only or [], skip or [], variants or [], known, console, list_checks)
            _tell(replace(report, part=chosen_by), writers, console, verbose)
        chosen = parse_option_values.chosen(only or (), skip or (), profile or ())
        if list_checks:
            _list(console, chosen)
            return
        if not url:
            _fail("give the URL of a server, or --client", USAGE)
        plan = parse_option_values.plan(
            url, header=header or (), second_header=second_header or (), example=example or (),
            endpoint=endpoint or (), restart=restart_cmd, expire=expire_cmd, replica_url=replica_url, origin=origin,
            patience=patience, seed=seed, repeat=repeat, budget=budget, lanes=lanes or LANES,
        )  # fmt: skip
    except parse_option_values.NothingNamedError as error:
        _fail(str(error), NOTHING_RAN)
    except parse_option_values.UsageError as error:
        _fail(str(error), USAGE)
    except registry.BrokenChecksError as error:
        _fail(str(error), UNREACHABLE)
    try:
        found = _run(plan, chosen)
    except ProbeError as error:
        _fail(str(error), UNREACHABLE)
    if not found.server.seen:
        typer.echo(
            "tidewire conformance: no example of an endpoint ran and ended, so that little could be tried: "
            'give one with --example \'ENDPOINT={"its": "input"}\'',
            err=True,
        )
    count = len(registry.checks())
    part = f"{len(chosen)} of {count} checks, by {chosen_by}" if len(chosen) < count else ""
    _tell(grade(found, chosen, known, part), writers, console, verbose)


conformance.__doc__ = HELP


def _client(
    plan: ClientPlan,
    only: list[str],
    skip: list[str],
    variants: list[str],
    known: dict[str, str],
    console: Console,
    list_only: bool,
) -> Report:
    try:
        scenarios = choose(only, skip, variants)
    except NoSuchNameError as error:
        _fail(str(error), NOTHING_RAN)
    except ScenarioError as error:
        _fail(str(error), UNREACHABLE)
    if list_only:
        for each in scenarios:
            console.print(f"[bold]{name_of(each)}[/bold]  {' '.join(each.requirements)}")
            console.print(f"    {each.about}", markup=False)
        raise typer.Exit(CONFORMANT)
    try:
        with _watching(f"starting {plan.command}", len(scenarios) * plan.repeat) as watch:
            return judge_client(plan, scenarios, known, watch)
    except AdapterError as error:
        _fail(str(error), UNREACHABLE)
    except ValueError as error:
        _fail(f"{plan.command!r} is no command: {error}", USAGE)


def _tell(
    report: Report,
    writers: Sequence[tuple[Path | None, Callable[[Report, Path], None]]],
    console: Console,
    everything: bool,
) -> NoReturn:
    lost = False
    for path, write in writers:
        if path is not None:
            try:
                write(report, path)
            except OSError as error:
                typer.echo(f"tidewire conformance: {path} could not be written: {error}", err=True)
                lost = True
    for_people.show(report, console, everything=everything)
    if report.run.cut_short == INTERRUPTED:
        # Scenarios that were being played wait in threads, and the end of the interpreter would wait for them.
        sys.stdout.flush()
        os._exit(report.exit_code)
    raise typer.Exit(report.exit_code or (UNREACHABLE if lost else CONFORMANT))


def _run(plan: Plan, checks: list[Check]) -> SuiteRun:
    with _watching(f"asking {plan.base_url} what it is", len(checks) * plan.repeat) as watch:
        course = CheckProgress(plan, checks, watch)
        try:
            asyncio.run(course.go())
        except KeyboardInterrupt:
            course.cut_short = INTERRUPTED
        return course.run()


@contextmanager
def _watching(first: str, total: int) -> Iterator[Watch]:
    """What is seen while it runs, on the standard error: a bar on a terminal, else a line now and then."""
    console = Console(stderr=True, highlight=False)
    columns = (
        BarColumn(bar_width=30),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    failed, told = 0, time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(first, total=total)

        def watch(verdict: Verdict, done: int, total: int) -> None:
            nonlocal failed, told
            progress.update(task, completed=done, total=total, description=verdict.check)
            if verdict.outcome in {Outcome.FAIL, Outcome.ERROR}:
                failed += 1
                console.print(f"{verdict.outcome.value}: {verdict.check}", markup=False, soft_wrap=True)
            if not console.is_terminal and time.monotonic() - told > LINE_SECONDS:
                told = time.monotonic()
                console.print(f"{done} of {total} have ended, {failed} failed", markup=False)

        yield watch


def _list(console: Console, checks: list[Check]) -> None:
    for each in checks:
        console.print(f"[bold]{each.name}[/bold]  {' '.join(each.sentences)}")
        console.print(f"    {each.about}", markup=False)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"tidewire conformance: {message}", err=True)
    raise typer.Exit(code)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
"""The command, for the `tidewire` command line."""
app.command("conformance")(conformance)


def main() -> None:
    """Run the command by itself: `python -m tidewire_conformance`."""
    app(prog_name="python -m tidewire_conformance")
