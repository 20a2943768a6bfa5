"""What holds for all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

from support.leak_checks import no_task_is_left, nothing_is_left

__all__ = ["no_task_is_left", "nothing_is_left"]

# How long an example takes tells of the machine, not of the code: a busy one must not fail a test.
settings.register_profile(
    "tidewire", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tidewire")


@pytest.fixture(autouse=True)
def _a_client_leaves_nothing(request):
    """Every test of the client fails on what it leaves behind."""
    # Scenarios are played in the background, many at once: others run on when one has ended.
    if request.path.name.startswith("test_client") and request.path.parent.name != "conformance":
        request.getfixturevalue("nothing_is_left")
        if "anyio_backend" in request.fixturenames:
            request.getfixturevalue("no_task_is_left")


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
