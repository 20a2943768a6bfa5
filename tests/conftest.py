"""Rules for all tests: async tests, leak checks of the client, hypothesis, garbage collection, and REQUIRE_ALL."""

import asyncio
import functools
import gc
import inspect
import os
import signal
import sys
from pathlib import Path

import pytest

from support import postgres_server
from support.leak_checks import no_task_is_left, nothing_is_left

__all__ = ["no_task_is_left", "nothing_is_left"]

# The threads of OpenMP spin while they wait for each other. Where servers with small models run side by side, they would
# take the processors from the tests. Set before torch is imported, also for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# httpx2 reads the certificates of all public authorities for each new client: 50 ms, also for plain HTTP. Tests and the
# processes that they start connect only to servers of their own, so a folder without certificates is enough.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# A shell without job control starts a background command with SIGINT ignored, and every process that a test interrupts would
# inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exempt the modules and the thousands of tests from garbage collection while the tests run.

    They stay to the end. To walk them takes half a second, and a leak check collects garbage after most tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    """Thaw what is frozen at the end: `gc.get_referrers`, which hypothesis needs to be imported, does not see it.

    Its plugin imports it then. If it is imported, pytest need not walk the modules and tests once more.
    """
    try:
        return (yield)
    finally:
        if "hypothesis" not in sys.modules:
            gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector):
    """Load the profile of hypothesis before a module that uses it. To import it takes most of a second."""
    if isinstance(collector, pytest.Module) and "hypothesis" in collector.path.read_text(encoding="utf-8"):
        load_hypothesis_profile()


@functools.cache
def load_hypothesis_profile() -> None:
    """A busy machine must not fail a test: the time that an example takes is not judged."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "tidewire", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    settings.load_profile("tidewire")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


SHARE_THREADS = {"test_client_scenarios.py"}
"""Tests of the client that play in the background, many at once: others run on when one has ended."""


def is_leak_checked(path: Path) -> bool:
    """Whether the tests of a file must leave no thread, socket or task: `test_client_*.py`, in any folder."""
    return path.name.startswith("test_client_") and path.name not in SHARE_THREADS


@pytest.fixture(autouse=True)
def _client_tests_leave_nothing(request):
    """Fail a test of the client after which threads, sockets or tasks are left."""
    if is_leak_checked(request.path):
        request.getfixturevalue("nothing_is_left")
        if "anyio_backend" in request.fixturenames:
            request.getfixturevalue("no_task_is_left")


def pytest_pyfunc_call(pyfuncitem):
    """Run an async test on asyncio. With the mark `anyio`, the plugin of anyio runs it, on asyncio and on trio.

    Tests of the client need the mark: without it, they would not run on trio.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or is_leak_checked(pyfuncitem.path):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


REQUIRE_ALL = os.environ.get("REQUIRE_ALL") == "1"
"""Where all that tests need is installed, one that does not run is a fault; but none has a GPU."""


def demand(report) -> None:
    """Make a skip a failure, with its reason."""
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL=1, and this did not run: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if item.get_closest_marker("gpu") is None:
        demand(report)
    # A lone surrogate in what a test logged could not travel between processes that test side by side.
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    demand(report)
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    """Say in the last lines how many tests did not run here."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} not run here: their reasons stand above")


@pytest.fixture(scope="session")
def postgres_of_the_run(tmp_path_factory):
    """PostgreSQL server that all processes of the test run share."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with postgres_server.postgres_server(shared) as server:
        yield server


@pytest.fixture
def database_url(postgres_of_the_run, tmp_path):
    """URL of a new, empty PostgreSQL database."""
    with postgres_of_the_run.database() as url:
        (tmp_path / postgres_server.DATABASE_URL).write_text(url)
        yield url
