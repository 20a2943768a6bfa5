"""The example of yielded values, run as its reader runs it: server process, client, the last value, the bytes."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs/examples/streaming_diffs.py"


def test_both_end_as_their_functions_did_and_little_travels():
    done = subprocess.run([sys.executable, EXAMPLE, "800"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(
        r"^(\w+) +800 steps: +(\S+) updates, +(\S+) bytes; whole values: +(\S+)", done.stdout, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["write", "chat"]
    for _, updates, took, whole in (
        [int(n.replace(",", "")) if n[0].isdigit() else n for n in row] for row in rows
    ):
        assert 0 < updates <= 900
        # A text of 3 kB, at most one event for each step, and never a whole history again.
        assert 3_000 < took < 80 * 900
        assert whole > 10 * took
