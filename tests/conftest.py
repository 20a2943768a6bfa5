"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes tells of the machine, not of the code: a busy one must not fail a test.
settings.register_profile(
    "tidewire", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("tidewire")


def pytest_terminal_summary(terminalreporter) -> None:
    """Say in the last lines how many tests did not run here."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} not run here: their reasons stand above")
