"""pytest plugin that adds a test for each check: `pytest -p tidewire_conformance.pytest_plugin --tidewire-url=URL`.

The checks run concurrently in a background thread. Each test waits for the verdict of its check, which determines the
outcome of the test:

verdict of the check               | outcome of the test
-----------------------------------+--------------------------------------------------------------------------
pass                               | passed
fail                               | failed, with the text of the console report
fail, all requirements in baseline | xfailed, with the reasons from the baseline
warn                               | xfailed, with the SHOULD that was violated
skipped                            | skipped, with the reason: not declared, no occasion, untested or blocked
inconclusive                       | failed; the text begins with INCONCLUSIVE
error                              | failed; the text begins with ERROR OF THE SUITE

The plugin prints the grade at the end. The pytest run also fails if a requirement holds although the baseline lists it
as failing.
"""

import asyncio
import inspect
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

try:
    from tidewire_conformance import parse_option_values, registry
    from tidewire_conformance.judging.grade import Report, grade
    from tidewire_conformance.judging.server_probe import ProbeError
    from tidewire_conformance.judging.verdict import Assertion, Outcome, Verdict
    from tidewire_conformance.registry import Check
    from tidewire_conformance.report.failure_evidence import failure_text
    from tidewire_conformance.runner import INTERRUPTED, CheckProgress, Plan
except ModuleNotFoundError as error:
    if (error.name or "").startswith("tidewire"):
        raise
    from tidewire.install_command import install_command

    raise pytest.UsageError(
        f"tidewire_conformance.pytest_plugin needs {error.name or error}: {install_command('conformance')}"
    ) from None

SHOWN: Final = 5
"""Maximum number of different failures that are shown for one check."""
CLOSE_SECONDS: Final = 10.0
"""Time, in seconds, that a cancelled run may take to close its connections."""

_RUN = pytest.StashKey["_Background"]()

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--tidewire-url": {"metavar": "URL", "default": "", "help": "Base URL of the server. Without this option, the plugin does nothing."},
    "--tidewire-profile": {"action": "append", "default": [], "help": "Profile for which the server is graded. By default, all profiles that it claims."},
    "--tidewire-header": {"action": "append", "default": [], "metavar": "'NAME: VALUE'", "help": "HTTP header to send with each request."},
    "--tidewire-second-header": {"action": "append", "default": [], "metavar": "'NAME: VALUE'", "help": "HTTP header with the credentials of a second user. Checks use it to test whether jobs are private."},
    "--tidewire-example": {"action": "append", "default": [], "metavar": "ENDPOINT=JSON", "help": "Input to use for an endpoint in place of the examples in its description."},
    "--tidewire-origin": {"default": "", "help": "Web origin that the server is configured to allow, for the CORS checks."},
    "--tidewire-restart-cmd": {"default": "", "metavar": "CMD", "help": "Shell command that kills the server and starts it again."},
    "--tidewire-expire-cmd": {"default": "", "metavar": "CMD", "help": "Shell command that makes the server delete its ended jobs."},
    "--tidewire-replica-url": {"default": "", "metavar": "URL", "help": "Base URL of another replica of the server."},
    "--tidewire-patience": {"type": float, "default": 1.0, "help": "Factor that multiplies all timeouts."},
    "--tidewire-seed": {"type": int, "default": 0, "help": "Seed for the random choices of the checks."},
    "--tidewire-baseline": {"type": Path, "default": None, "metavar": "FILE", "help": "TOML file that lists known failures."},
}  # fmt: skip
"""Command-line options that the plugin adds to pytest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's command-line options to pytest, with the prefix `--tidewire-`."""
    group = parser.getgroup("tidewire", "conformance to the Tidewire protocol")
    for name, options in OPTIONS.items():
        group.addoption(name, **options)


def pytest_configure(config: pytest.Config) -> None:
    """Parse the options and choose the checks before pytest collects tests."""
    if not config.getoption("tidewire_url"):
        return
    config.addinivalue_line("markers", "tidewire: a check of the tidewire conformance suite")
    for area in {_area(check) for check in registry.checks()}:
        config.addinivalue_line("markers", f"tidewire_{area}: a check of the area {area}")
    option = config.option
    try:
        plan = parse_option_values.plan(
            option.tidewire_url,
            header=option.tidewire_header,
            second_header=option.tidewire_second_header,
            example=option.tidewire_example,
            restart=option.tidewire_restart_cmd,
            expire=option.tidewire_expire_cmd,
            replica_url=option.tidewire_replica_url,
            origin=option.tidewire_origin,
            patience=option.tidewire_patience,
            seed=option.tidewire_seed,
        )
        known = parse_option_values.baseline(option.tidewire_baseline)
        chosen = parse_option_values.chosen((), (), option.tidewire_profile)
    except parse_option_values.UsageError as error:
        raise pytest.UsageError(f"tidewire: {error}") from None
    config.stash[_RUN] = _Background(plan, chosen, known, option.tidewire_profile)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the line for the header of the pytest output, with the number of checks, the URL and the seed."""
    background = config.stash.get(_RUN, None)
    if background is None:
        return None
    return f"tidewire: {len(background.chosen)} checks of {background.plan.base_url}, seed {background.plan.seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each check, before pytest deselects tests by `-k` and `-m`."""
    background = config.stash.get(_RUN, None)
    if background is None:
        return
    for area, checks in groupby(background.chosen, key=_area):
        parent = _Area.from_parent(session, name=area, nodeid=f"tidewire::{area}")
        own = [_CheckItem.from_parent(parent, check=check, background=background) for check in checks]
        items += own
        config.hook.pytest_collectreport(report=pytest.CollectReport(parent.nodeid, "passed", None, [*own]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped check at the check's source location instead of a line in this file."""
    report = yield
    if isinstance(item, _CheckItem) and isinstance(report.longrepr, tuple):
        path, line, _ = item.reportinfo()
        report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the background run, and fail the pytest session if the server now meets a requirement that the baseline
    lists as a known failure.
    """
    background = session.config.stash.get(_RUN, None)
    if background is None:
        return
    background.close()
    if background.report is not None and background.report.stale and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the grade and the requirements that should be removed from the baseline."""
    background = config.stash.get(_RUN, None)
    if background is None or background.report is None:
        return
    report = background.report
    terminalreporter.section("tidewire conformance")
    terminalreporter.write_line(report.headline, **{"green" if report.exit_code == 0 else "red": True})
    if report.part:
        terminalreporter.write_line(f"only a part of the suite was run: {report.part}")
    if report.run.cut_short:
        terminalreporter.write_line(f"the run ended early: {report.run.cut_short}")
    for name in report.stale:
        terminalreporter.write_line(
            f"{name} passes, but the baseline lists it as failing; remove it from the baseline", red=True
        )


class _Area(pytest.Collector):
    """pytest collector for the checks of one area."""

    def collect(self) -> Sequence[pytest.Item]:
        """Return no items; `pytest_collection_modifyitems` adds them."""
        return ()


class _CheckItem(pytest.Item):
    """pytest item for one check."""

    def __init__(self, *, check: Check, background: "_Background", **options: Any) -> None:
        area = _area(check)
        name = check.name.partition(".")[2]
        super().__init__(name=name, nodeid=f"tidewire::{area}::{name}", **options)
        self.check = check
        self._background = background
        self.add_marker("tidewire")
        self.add_marker(f"tidewire_{area}")
        # Add the requirement ids as keywords, so that `-k TW-RES-019` selects the checks of that requirement.
        self.extra_keyword_matches |= {*check.requirements, check.name}

    def runtest(self) -> None:
        """Wait for the verdict of the check and convert it to a pytest outcome."""
        chosen = [item.check for item in self.session.items if isinstance(item, _CheckItem)]
        verdict = self._background.verdict(self.check, chosen)
        known = self._background.known
        match verdict.outcome:
            case Outcome.SKIPPED:
                pytest.skip(f"{verdict.why}: {verdict.note}")
            case Outcome.WARN:
                pytest.xfail("; ".join(_brief(verdict, Outcome.WARN)))
            case Outcome.FAIL if all(each.requirement in known for each in _failed(verdict)):
                reasons = dict.fromkeys(known[each.requirement] for each in _failed(verdict))
                pytest.xfail(f"known: {'; '.join(reasons)}")
            case Outcome.FAIL | Outcome.INCONCLUSIVE | Outcome.ERROR:
                raise _NotPassedError(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text that the console report shows for the failure, without a traceback."""
        if isinstance(excinfo.value, _NotPassedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the source location of the check."""
        file = inspect.getsourcefile(self.check.run) or __file__
        return Path(file), self.check.run.__code__.co_firstlineno - 1, f"tidewire: {self.check.name}"


class _NotPassedError(Exception):
    """Raised for a check that failed, was inconclusive or had an error. Its text is the same as in the console report."""

    def __init__(self, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.FAIL:
            broken = _failed(verdict)
            different: dict[tuple[str, str], Assertion] = {}
            for each in broken:
                different.setdefault((each.requirement, each.expected), each)
            shown = list(different.values())[:SHOWN]
            texts = [failure_text(verdict, each) for each in shown]
            texts += [f"… and {len(broken) - len(shown)} more failures"] if len(broken) > len(shown) else []
            super().__init__("\n\n".join(texts))
        else:
            word = "INCONCLUSIVE" if verdict.outcome is Outcome.INCONCLUSIVE else "ERROR OF THE SUITE"
            super().__init__(f"{word}: {verdict.note}\n{verdict.check}: {verdict.about}")


class _Background:
    """Background thread that runs the suite. The pytest tests wait for its verdicts."""

    def __init__(self, plan: Plan, chosen: list[Check], known: dict[str, str], profiles: list[str]) -> None:
        self.plan, self.chosen, self.known, self._profiles = plan, chosen, known, profiles
        self.report: Report | None = None
        self._verdicts: dict[str, Future[Verdict]] = {}
        self._progress: CheckProgress | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def verdict(self, check: Check, checks: list[Check]) -> Verdict:
        """Return the verdict of a check. The first call starts the run.

        Args:
            check: Check to wait for.
            checks: All checks to run.
        """
        if self._thread is None:
            self._verdicts = {each.name: Future() for each in checks}
            self._progress = CheckProgress(
                self.plan, checks, lambda verdict, *_: self._verdicts[verdict.check].set_result(verdict)
            )
            self._thread = threading.Thread(
                target=self._work, args=[self._progress], name="tidewire conformance", daemon=True
            )
            self._thread.start()
        try:
            return self._verdicts[check.name].result()
        except ProbeError as error:
            pytest.exit(f"tidewire: {error}", returncode=3)

    def close(self) -> None:
        """Stop the run and grade the verdicts collected so far."""
        if self._thread is None or self._progress is None:
            return
        is_running = not all(each.done() for each in self._verdicts.values())
        if is_running and self._loop is not None and self._task is not None:
            self._progress.cut_short = INTERRUPTED
            # If the run ends at this moment, its event loop is already closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(CLOSE_SECONDS)
        if self._progress.server is not None:
            count, total = len(self._verdicts), len(self.chosen)
            part = f"{count} of {total} checks" if count < total else ""
            self.report = grade(self._progress.run(), self.known, part, self._profiles)

    def _work(self, progress: CheckProgress) -> None:
        async def go() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            await progress.go()

        try:
            asyncio.run(go())
        except BaseException as error:  # noqa: BLE001 - `verdict` raises it in the waiting test
            for each in self._verdicts.values():
                if not each.done():
                    each.set_exception(error)


def _area(check: Check) -> str:
    return check.name.partition(".")[0]


def _failed(verdict: Verdict) -> list[Assertion]:
    return [each for each in verdict.broken if each.outcome is Outcome.FAIL]


def _brief(verdict: Verdict, outcome: Outcome) -> Iterator[str]:
    for each in verdict.broken:
        if each.outcome is outcome:
            got = f", got {each.got}" if each.got else ""
            yield f"{each.requirement} (SHOULD): expected {each.expected}{got}"
