"""The suite inside pytest: `pytest -p tidewire_conformance.pytest_plugin --tidewire-url=URL`, a test for each check.

The checks run as they do by themselves, several at a time, while pytest waits for one after the other.

what came of a check               | the test
-----------------------------------+--------------------------------------------------------------------------
pass                               | passed
fail                               | failed, with the text that the console has
fail, and the baseline knows each  | xfailed, with the reason of the baseline
warn                               | xfailed, with the SHOULD that does not hold
skipped                            | skipped: not declared, no occasion, untested or blocked, and why
inconclusive                       | failed; its text begins with INCONCLUSIVE
error                              | failed; its text begins with ERROR OF THE SUITE

The grade stands at the end. A baseline of which something holds fails the run.
"""

import asyncio
import inspect
import threading
from collections.abc import Generator, Iterator, Sequence
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
    raise pytest.UsageError(
        f"tidewire_conformance.pytest_plugin needs {error.name or error}: pip install 'tidewire[conformance]'"
    ) from None

SHOWN: Final = 5
"""Failures of one check that are shown."""
CLOSE_SECONDS: Final = 10.0
"""How long a run that was given up may take to close its connections."""

_RUN = pytest.StashKey["_Background"]()

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--tidewire-url": {"metavar": "URL", "default": "", "help": "Where the server is mounted; without it, nothing is done."},
    "--tidewire-profile": {"action": "append", "default": [], "help": "A profile to keep to."},
    "--tidewire-header": {"action": "append", "default": [], "metavar": "'NAME: VALUE'", "help": "Sent with each request."},
    "--tidewire-second-header": {"action": "append", "default": [], "metavar": "'NAME: VALUE'", "help": "Headers of another caller."},
    "--tidewire-example": {"action": "append", "default": [], "metavar": "ENDPOINT=JSON", "help": "An input to run."},
    "--tidewire-origin": {"default": "", "help": "An origin whose pages the server allows."},
    "--tidewire-restart-cmd": {"default": "", "metavar": "CMD", "help": "Kills the server and starts it again."},
    "--tidewire-expire-cmd": {"default": "", "metavar": "CMD", "help": "Lets the states of ended jobs expire."},
    "--tidewire-replica-url": {"default": "", "metavar": "URL", "help": "Another replica of the server."},
    "--tidewire-patience": {"type": float, "default": 1.0, "help": "Multiplies each wait."},
    "--tidewire-seed": {"type": int, "default": 0, "help": "Of the choices that checks make."},
    "--tidewire-baseline": {"type": Path, "default": None, "metavar": "FILE", "help": "Failures that are known, as TOML."},
}  # fmt: skip
"""What pytest takes beside its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the suite's own command, with `--tidewire-` before them."""
    group = parser.getgroup("tidewire", "conformance to the tidewire protocol")
    for name, options in OPTIONS.items():
        group.addoption(name, **options)


def pytest_configure(config: pytest.Config) -> None:
    """Read what was given, before anything is collected."""
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
    config.stash[_RUN] = _Background(plan, chosen, known)


def pytest_report_header(config: pytest.Config) -> str | None:
    """What is judged."""
    found = config.stash.get(_RUN, None)
    if found is None:
        return None
    return f"tidewire: {len(found.chosen)} checks of {found.plan.base_url}, seed {found.plan.seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks before pytest itself deselects by `-k` and `-m`."""
    found = config.stash.get(_RUN, None)
    if found is None:
        return
    for area, checks in groupby(found.chosen, key=_area):
        parent = _Area.from_parent(session, name=area, nodeid=f"tidewire::{area}")
        own = [_CheckItem.from_parent(parent, check=check, background=found) for check in checks]
        items += own
        config.hook.pytest_collectreport(report=pytest.CollectReport(parent.nodeid, "passed", None, [*own]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip stands where its check does, not in this file."""
    report = yield
    if isinstance(item, _CheckItem) and isinstance(report.longrepr, tuple):
        path, line, _ = item.reportinfo()
        report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what still runs; a baseline that is stale fails the run."""
    found = session.config.stash.get(_RUN, None)
    if found is None:
        return
    found.close()
    if found.report is not None and found.report.stale and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The grade."""
    found = config.stash.get(_RUN, None)
    if found is None or found.report is None:
        return
    report = found.report
    terminalreporter.section("tidewire conformance")
    terminalreporter.write_line(report.headline, **{"green" if report.exit_code == 0 else "red": True})
    if report.part:
        terminalreporter.write_line(f"only a part of the suite was run: {report.part}")
    if report.run.cut_short:
        terminalreporter.write_line(f"cut short: {report.run.cut_short}")
    for name in report.stale:
        terminalreporter.write_line(f"stale: {name} is in the baseline and holds: take it out", red=True)


class _Area(pytest.Collector):
    """The checks of one area."""

    def collect(self) -> Sequence[pytest.Item]:
        """Nothing: its items are made beside it."""
        return ()


class _CheckItem(pytest.Item):
    """One check."""

    def __init__(self, *, check: Check, background: "_Background", **options: Any) -> None:
        area = _area(check)
        name = check.name.partition(".")[2]
        super().__init__(name=name, nodeid=f"tidewire::{area}::{name}", **options)
        self.check = check
        self._background = background
        self.add_marker("tidewire")
        self.add_marker(f"tidewire_{area}")
        # Sentences are names as well: `-k TW-RES-019`.
        self.extra_keyword_matches |= {*check.sentences, check.name}

    def runtest(self) -> None:
        """Wait for the verdict, and say it in the words of pytest."""
        chosen = [item.check for item in self.session.items if isinstance(item, _CheckItem)]
        verdict = self._background.verdict(self.check, chosen)
        known = self._background.known
        match verdict.outcome:
            case Outcome.SKIPPED:
                pytest.skip(f"{verdict.why}: {verdict.note}")
            case Outcome.WARN:
                pytest.xfail("; ".join(_brief(verdict, Outcome.WARN)))
            case Outcome.FAIL if all(each.sentence in known for each in _failed(verdict)):
                reasons = dict.fromkeys(known[each.sentence] for each in _failed(verdict))
                pytest.xfail(f"known: {'; '.join(reasons)}")
            case Outcome.FAIL | Outcome.INCONCLUSIVE | Outcome.ERROR:
                raise _NotPassedError(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What the console says, without a traceback through the suite."""
        if isinstance(excinfo.value, _NotPassedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the check stands."""
        file = inspect.getsourcefile(self.check.run) or __file__
        return Path(file), self.check.run.__code__.co_firstlineno - 1, f"tidewire: {self.check.name}"


class _NotPassedError(Exception):
    """A check that did not pass, in words."""

    def __init__(self, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.FAIL:
            broken = _failed(verdict)
            different: dict[tuple[str, str], Assertion] = {}
            for each in broken:
                different.setdefault((each.sentence, each.expected), each)
            shown = list(different.values())[:SHOWN]
            texts = [failure_text(verdict, each) for each in shown]
            texts += [f"… and {len(broken) - len(shown)} times more"] if len(broken) > len(shown) else []
            super().__init__("\n\n".join(texts))
        else:
            word = "INCONCLUSIVE" if verdict.outcome is Outcome.INCONCLUSIVE else "ERROR OF THE SUITE"
            super().__init__(f"{word}: {verdict.note}\n{verdict.check}: {verdict.about}")


class _Background:
    """A run in a thread of its own, whose verdicts are waited for one by one."""

    def __init__(self, plan: Plan, chosen: list[Check], known: dict[str, str]) -> None:
        self.plan, self.chosen, self.known = plan, chosen, known
        self.report: Report | None = None
        self._checks: list[Check] = []
        self._course: CheckProgress | None = None
        self._verdicts: dict[str, Verdict] = {}
        self._moved = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        self._is_over = False

    def verdict(self, check: Check, checks: list[Check]) -> Verdict:
        """What came of a check; the first call begins the run.

        Args:
            check: Which one.
            checks: All that are to be run.
        """
        if self._thread is None:
            self._checks = checks
            self._course = CheckProgress(self.plan, checks, self._heard)
            self._thread = threading.Thread(target=self._work, name="tidewire conformance", daemon=True)
            self._thread.start()
        with self._moved:
            self._moved.wait_for(lambda: check.name in self._verdicts or self._is_over)
            if check.name in self._verdicts:
                return self._verdicts[check.name]
        if isinstance(self._fault, ProbeError):
            pytest.exit(f"tidewire: {self._fault}", returncode=3)
        raise self._fault or RuntimeError(f"{check.name} did not run")

    def close(self) -> None:
        """End the run, and grade what there is of it."""
        if self._thread is None or self._course is None:
            return
        if not self._is_over and self._loop is not None and self._task is not None:
            self._course.cut_short = INTERRUPTED
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(CLOSE_SECONDS)
        if self._course.server is not None:
            count = len(registry.checks())
            part = f"{len(self._checks)} of {count} checks" if len(self._checks) < count else ""
            self.report = grade(self._course.run(), self._checks, self.known, part)

    def _heard(self, verdict: Verdict, _done: int, _total: int) -> None:
        with self._moved:
            self._verdicts[verdict.check] = verdict
            self._moved.notify_all()

    def _work(self) -> None:
        async def go() -> None:
            assert self._course is not None  # noqa: S101 - the thread begins with it
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            await self._course.go()

        try:
            asyncio.run(go())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._fault = error
        with self._moved:
            self._is_over = True
            self._moved.notify_all()


def _area(check: Check) -> str:
    return check.name.partition(".")[0]


def _failed(verdict: Verdict) -> list[Assertion]:
    return [each for each in verdict.broken if each.outcome is Outcome.FAIL]


def _brief(verdict: Verdict, outcome: Outcome) -> Iterator[str]:
    for each in verdict.broken:
        if each.outcome is outcome:
            got = f", got {each.got}" if each.got else ""
            yield f"{each.sentence} (SHOULD): expected {each.expected}{got}"
