"""The demonstration itself, run as the Makefile runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "docs/examples/demo.py"


@pytest.mark.timeout(180)
def test_the_demo_cuts_inside_events_and_loses_nothing():
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost, nothing came twice" in done.stdout
    counts = {
        name: int(n)
        for name, n in re.findall(r"^  (\w.*?)(?: \(server\))? {2,}(\d+)$", done.stdout, re.MULTILINE)
    }
    assert counts["connections cut inside an event"] >= 2
    assert counts["generations started"] == 1
    assert counts["GETs with a cursor"] >= 2
    assert done.stdout.count("cut here") == counts["connections cut inside an event"]
    assert "\x1b[" not in done.stdout, "colours belong to a terminal"
    assert "What to try next" in done.stdout
