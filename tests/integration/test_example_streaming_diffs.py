"""The example `docs/examples/streaming_diffs.py`, run as a reader of the documentation runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs/examples/streaming_diffs.py"


@pytest.mark.heavy
def test_the_example_sends_diffs_much_smaller_than_whole_values():
    done = subprocess.run([sys.executable, EXAMPLE, "800"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(
        r"^(\w+) +800 steps: +(\S+) updates, +(\S+) bytes; whole values: +(\S+)", done.stdout, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["write", "chat"]
    for _, updates, sent_bytes, whole_values_bytes in (
        [int(n.replace(",", "")) if n[0].isdigit() else n for n in row] for row in rows
    ):
        assert 0 < updates <= 900
        # The text has 3 kB. Each step sends at most one event and never the whole history.
        assert 3_000 < sent_bytes < 80 * 900
        assert whole_values_bytes > 10 * sent_bytes
