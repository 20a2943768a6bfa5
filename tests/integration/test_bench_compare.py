"""`bench/compare.py` runs the measurements, prints verdicts and removes its temporary worktrees."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.reference_server import eventually

REPOSITORY = Path(__file__).parents[2]
COMPARE = [sys.executable, str(REPOSITORY / "bench/compare.py")]


def worktrees(folder):
    """The git worktrees in `folder`, the temporary folder of the command, with a line for each of their properties.

    Worktrees elsewhere may belong to another comparison that runs at the same time.
    """
    listed = ["git", "-C", str(REPOSITORY), "worktree", "list", "--porcelain"]
    found = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\n\n")
    return [each.splitlines() for each in found if each.startswith(f"worktree {folder}/")]


def is_checked_out(folder):
    """Whether there is a worktree, and git has written all of its files. Until then, git keeps it locked."""
    return any(not any(line.startswith("locked") for line in each) for each in worktrees(folder))


@pytest.mark.slow
def test_comparing_the_working_tree_with_itself_reports_all_metrics(tmp_path):
    report = tmp_path / "report.json"
    command = [*COMPARE, ".", ".", "--runs", "1", "--quick", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    report_data = json.loads(report.read_text(encoding="utf-8"))
    rows = {row["metric"]: row for row in report_data["rows"]}
    assert {"decoder", "apply", "append", "first value", "tokens"} <= set(rows)
    for name, row in rows.items():
        assert min(row["old"], row["new"]) > 0, name
        assert row["verdict"] in {"within 5 %", "within the spread", "slower", "faster"}
        assert f"\n{name} " in done.stdout
    assert report_data["old"] == report_data["new"] == {"revision": ".", "commit": "."}


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="this is not a git checkout")
def test_an_interrupt_removes_the_worktree_of_a_revision(tmp_path):
    command = [*COMPARE, "HEAD", ".", "--runs", "50", "--quick"]
    with subprocess.Popen(
        command,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        eventually(lambda: is_checked_out(tmp_path), within=30)
        assert len(worktrees(tmp_path)) == 1
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (
        130,
        "\ncompare: interrupted; the temporary worktrees were removed\n",
    )
    assert (worktrees(tmp_path), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("arguments", [["no-such-revision", "."], [".", ".", "--runs", "0"], ["."]])
def test_wrong_usage_exits_with_2_and_a_message(arguments):
    done = subprocess.run([*COMPARE, *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert "no-such-revision" in done.stderr or "usage:" in done.stderr


VERDICTS = """
import sys; sys.path.insert(0, sys.argv[1])
from compare import verdict
old = [1.0, 1.0, 1.1]
print([verdict("decoder", old, [new]) for new in (1.04, 0.96, 1.08, 1.2, 0.8)])
print([verdict("tokens", old, [new]) for new in (1.04, 1.08, 1.2, 0.8)])
"""


def test_verdict_considers_the_better_direction_and_the_spread():
    command = [sys.executable, "-c", VERDICTS, str(REPOSITORY / "bench")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == [
        "['within 5 %', 'within 5 %', 'within the spread', 'slower', 'faster']",
        "['within 5 %', 'within the spread', 'faster', 'slower']",
    ]
