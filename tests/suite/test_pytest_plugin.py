"""The conformance suite as a pytest plugin, run in a separate pytest process against real servers."""

import os
import re
import subprocess
import sys

import pytest

from proof.servers.server_process import ALICE, running_server

BASELINE = """
[[known]]
sentence = "TW-FRM-051"
reason = "no end yet"
[[known]]
sentence = "TW-OVR-018"
reason = "no end yet"
[[known]]
sentence = "TW-OVR-022"
reason = "no end yet"
"""


def run_plugin(folder, url, *arguments):
    command = ["-m", "pytest", "-p", "tidewire_conformance.pytest_plugin", "-p", "no:cacheprovider"]
    command += [
        f"--tidewire-url={url}",
        "--tidewire-header",
        f"Authorization: Bearer {ALICE}",
        "-rA",
        *arguments,
    ]
    return run_python(folder, *command)


def run_python(folder, *command):
    # Loading other installed plugins takes longer than the checks.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=50, env=environment
    )


@pytest.mark.heavy
def test_a_correct_server_passes_together_with_other_tests(tmp_path):
    (tmp_path / "test_mine.py").write_text("def test_ownership_of_mine():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    with running_server() as url:
        done = run_plugin(tmp_path, url, "-k", "ownership or TW-ERR-006", "--tidewire-profile", "core")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^tidewire: \d+ checks of {url}, seed 0$", done.stdout, re.MULTILINE)
    assert "PASSED test_mine.py::test_ownership_of_mine" in done.stdout
    assert re.search(
        r"SKIPPED \[1\] .*ownership\.py:\d+: untested: the check needs --header and --second-header",
        done.stdout,
    )
    assert re.search(r"only a part of the suite was run: \d+ of \d+ checks", done.stdout)


@pytest.mark.heavy
def test_a_faulty_server_fails_with_the_console_output(tmp_path):
    (tmp_path / "known.toml").write_text(BASELINE)
    with running_server("stream_without_done") as url:
        found = run_plugin(
            tmp_path,
            url,
            "-m",
            "tidewire_framing",
            "-k",
            "log_ends_with_exactly_one_done or stream_closes_after_done",
        )
        known = run_plugin(
            tmp_path, url, "-k", "log_ends_with_exactly_one_done", "--tidewire-baseline", "known.toml"
        )
    assert found.returncode == 1, found.stdout + found.stderr
    assert "FAILED tidewire::framing::log_ends_with_exactly_one_done" in found.stdout
    assert "a server MUST write exactly one event `done` into the log of the job" in found.stdout
    assert "expected  exactly one done, as the last event" in found.stdout
    assert 'curl -iN -H "Authorization: $AUTHORIZATION"' in found.stdout
    assert "Traceback" not in found.stdout
    assert ALICE not in found.stdout
    assert known.returncode == 0, known.stdout
    assert re.search(r"XFAIL tidewire::framing::log_ends_with_exactly_one_done - .*no end yet", known.stdout)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--tidewire-url=http://127.0.0.1:9"], 3, "nothing listens there"),
        (["--tidewire-url=http://x", "--tidewire-profile=gold"], 4, "there is no profile gold"),
    ],
)
def test_invalid_options_exit_with_a_message(tmp_path, arguments, code, message):
    done = run_python(tmp_path, "-m", "pytest", "-p", "tidewire_conformance.pytest_plugin", *arguments)
    assert (done.returncode, message in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
