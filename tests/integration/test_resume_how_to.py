"""The program in docs/how-to/resume.md writes little, and continues after a crash at any moment."""

import itertools
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidewire.testing import FakeServer

PAGE = Path(__file__).parents[2] / "docs/how-to/resume.md"
PIECES = [f"{at} né😀 " for at in range(600)]


@pytest.fixture
def program():
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    with FakeServer() as server:
        server.endpoint("story").streams(PIECES)
        yield code.replace("http://127.0.0.1:8000", server.url)


class CrashError(Exception):
    pass


def run(program, monkeypatch, *, step, crash_at=None):
    """Run the program, and return the number of times that it saved.

    On its clock, `step` seconds pass with each reading. It crashes after it has saved `crash_at` times.
    """
    saves = 0

    def replace(source, target):
        nonlocal saves
        Path(source).rename(target)
        saves += 1
        if saves == crash_at:
            raise CrashError

    monkeypatch.setattr(os, "replace", replace)
    names = {"time": SimpleNamespace(monotonic=itertools.count(0, step).__next__)}
    exec(program.replace("import time\n", ""), names)
    assert names["text"] == "".join(PIECES)
    return saves


def test_the_program_saves_once_per_second_and_not_after_each_update(program, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # 600 updates take 6 seconds on this clock.
    assert run(program, monkeypatch, step=0.01) <= 2 + 6


@pytest.mark.parametrize("crash_at", [1, 2, 5])
def test_the_program_continues_after_a_crash(program, monkeypatch, tmp_path, crash_at):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CrashError):
        run(program, monkeypatch, step=0.1, crash_at=crash_at)
    assert run(program, monkeypatch, step=0.1) >= 1
