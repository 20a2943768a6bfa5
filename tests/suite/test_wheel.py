"""The suite installed from a wheel in a fresh environment outside the checkout, without torch and the server."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.foreign_programs import standard_library_server

ROOT = Path(__file__).parents[2]
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
INPUT = 'words={"text": "né 😀 and on and on", "delay_ms": 30}'


def run(*command, code=0, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment with the wheel and pytest installed."""
    folder = tmp_path_factory.mktemp("wheel")
    try:
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", folder, ROOT)
    except AssertionError as error:
        if "Could not find a version" in str(error) or "Failed to establish" in str(error):
            pytest.skip("no package index to build a wheel with")
        raise
    [wheel] = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "fresh")
    python = folder / "fresh/bin/python"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{wheel}[conformance]",
        "pytest",
    )
    return python


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_checks_a_third_party_server_by_each_command(python, tmp_path):
    installed = run(python, "-m", "pip", "list", env=OUTSIDE, cwd=tmp_path)
    for other in ("torch", "starlette", "uvicorn", "numpy"):
        assert other not in installed
    print_folder = "from tidewire_conformance import specification as s; print(s.folder())"
    assert str(python.parents[1]) in run(python, "-c", print_folder, env=OUTSIDE, cwd=tmp_path)
    print_traceability = "from importlib.resources import files; print((files('tidewire_conformance') / 'traceability.json').read_text())"
    assert json.loads(run(python, "-c", print_traceability, env=OUTSIDE, cwd=tmp_path))["TW-RES-019"][
        "checks"
    ]
    commands = [
        [python.with_name("tidewire"), "conformance"],
        [python, "-m", "tidewire_conformance"],
    ]
    with standard_library_server() as url:
        for number, entry_command in enumerate(commands):
            words = [url, "--only", "resume", "--only", "framing", "--example", INPUT, "--verbose"]
            words += ["--json", f"{number}.json", "--junit", f"{number}.xml", "--page", f"{number}.html"]
            words += ["--badge", f"{number}.svg"]
            # The server accepts any `Accept` header for a stream and so violates one requirement.
            output = run(*entry_command, *words, env=OUTSIDE, cwd=tmp_path, code=1)
            assert re.match(r"stream \(\d+ checks not tried\) · \d+/\d+ MUST · \d+/\d+ SHOULD\n", output)
            found = json.loads((tmp_path / f"{number}.json").read_text())
            assert [each["id"] for each in found["sentences"] if each["outcome"] == "fail"] == ["TW-FRM-008"]
        command = [python, "-m", "pytest", "-p", "tidewire_conformance.pytest_plugin", "-rA", "-q"]
        options = [f"--tidewire-url={url}", "--tidewire-example", INPUT, "-m", "tidewire_resume"]
        output = run(*command, *options, env=OUTSIDE, cwd=tmp_path)
    assert "PASSED tidewire::resume::running_job_resumes_after_each_disconnect" in output


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_plays_its_scenarios(python, tmp_path):
    client = f"{python} -m tidewire.conformance_adapter"
    words = ["conformance", "--client", client, "--only", "framing"]
    output = run(python.with_name("tidewire"), *words, env=OUTSIDE, cwd=tmp_path)
    assert re.match(r"core · (\d+)/\1 MUST", output)
