"""The suite out of a wheel, in a fresh environment outside the checkout, without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop.strangers import standard_library_server

ROOT = Path(__file__).parents[3]


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_judges_a_foreign_server(tmp_path):
    try:
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", tmp_path, ROOT)
    except AssertionError as error:
        if "Could not find a version" in str(error) or "Failed to establish" in str(error):
            pytest.skip("no package index to build a wheel with")
        raise
    [wheel] = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "fresh")
    python = tmp_path / "fresh/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    assert "torch" not in run(python, "-m", "pip", "list", env=outside, cwd=tmp_path)
    where = run(
        python,
        "-c",
        "from tidewire_conformance import specification as s; print(s.folder())",
        env=outside,
        cwd=tmp_path,
    )
    assert str(tmp_path) in where
    with standard_library_server() as url:
        command = [
            tmp_path / "fresh/bin/tidewire",
            "conformance",
            url,
            "--only",
            "resume",
            "--only",
            "framing",
        ]
        told = run(*command, env=outside, cwd=tmp_path)
    assert " MUST · " in told
