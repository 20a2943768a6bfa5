"""The suite against `tidewire serve` as a user starts it: one process, no configuration, the bundled model."""

import contextlib
import os
import subprocess
import sys

import pytest

SERVE = [sys.executable, "-m", "tidewire", "serve", "--port", "0"]
START_SECONDS = 120


@contextlib.contextmanager
def bundled_server():
    """Start the server without a file and without settings, on a free port, and yield its URL."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWIRE_")}
    with subprocess.Popen(
        SERVE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            first = process.stdout.readline()
            assert " at http://" in first, f"the server did not start: {first!r}"
            yield first.split(" at ")[1].split()[0]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url():
    with bundled_server() as url:
        yield url


def assert_passes(url, *options, seconds):
    command = [sys.executable, "-m", "tidewire_conformance", url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(START_SECONDS + 100)
def test_the_checks_of_its_endpoint_pass(url):
    areas = ("discovery", "generation", "logprobs")
    assert_passes(url, *(word for area in areas for word in ("--only", area)), seconds=90)


@pytest.mark.slow
@pytest.mark.timeout(START_SECONDS + 100)
def test_the_checks_of_logprobs_pass_ten_times(url):
    assert_passes(url, "--only", "logprobs", "--repeat", "10", seconds=90)


@pytest.mark.slow
@pytest.mark.timeout(START_SECONDS + 10 * 180)
def test_all_checks_pass_ten_times(url):
    for _ in range(10):
        assert_passes(url, seconds=180)
