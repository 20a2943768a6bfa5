"""The demo, run as the Makefile runs it, and its recording in the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "docs/examples/demo.py"


@pytest.mark.heavy
@pytest.mark.timeout(180)
def test_the_demo_cuts_connections_inside_events_and_loses_nothing():
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost, nothing arrived twice" in done.stdout
    counts = {
        name: int(n)
        for name, n in re.findall(r"^  (\w.*?)(?: \(server\))? {2,}(\d+)$", done.stdout, re.MULTILINE)
    }
    assert counts["connections cut inside an event"] >= 2
    assert counts["generations started"] == 1
    assert counts["GETs with a cursor"] >= 2
    assert done.stdout.count("cut here") == counts["connections cut inside an event"]
    assert "\x1b[" not in done.stdout, "colors belong to a terminal"
    assert "What to try next" in done.stdout
    script = re.search(r"^  source (\S+)", done.stdout, re.MULTILINE)
    assert script is not None
    assert Path(script[1]).is_file()


def test_the_readme_activates_the_environment_after_make():
    _, _, afterwards = (DEMO.parents[2] / "README.md").read_text().partition("$ make demo")
    assert afterwards.index("$ source .venv/bin/activate") < afterwards.index("$ tidewire serve")


def check(svg):
    text = re.sub(r"&#160;", " ", re.sub(r"<[^>]+>", "", svg))
    assert text.count("cut here") >= 2
    assert "nothing was lost, nothing arrived twice" in text
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"], "a picture loads nothing"


def test_the_picture_in_the_readme_records_the_demo():
    check(DEMO.parents[1].joinpath("demo.svg").read_text())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_picture_can_be_recorded_again(tmp_path):
    picture = tmp_path / "demo.svg"
    command = [sys.executable, DEMO.with_name("record_demo.py"), picture]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    check(picture.read_text())
