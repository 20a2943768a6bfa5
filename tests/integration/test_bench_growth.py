"""Every case of bench/growth.py runs, because a measurement is run rarely, and the code that it calls changes."""

import runpy
import sys
from itertools import chain
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize(
    ("module", "function"),
    [("growth_client_cases", "client_cases"), ("growth_server_cases", "server_cases")],
)
def test_every_case_runs(module, function, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    groups = runpy.run_path(str(BENCH / f"{module}.py"))[function]()
    for case in chain.from_iterable(group.values() for group in groups.values()):
        case(8)()
