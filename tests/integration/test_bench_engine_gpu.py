"""`bench/engine_gpu.py` without a GPU: a tiny run on the CPU, and the message that a GPU is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench/engine_gpu.py"


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tiny_run_on_the_cpu_checks_the_model_and_writes_all_rows(tmp_path):
    output = tmp_path / "result.json"
    done = run("--device", "cpu", "--tiny", "--output", output)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text(encoding="utf-8"))
    assert {(row["kind"], row["batch"]) for row in result["rows"]} == {
        (kind, batch) for kind in ("decode", "prefill") for batch in (1, 4)
    }
    for row in result["rows"]:
        assert row["ms"].keys() == {"n = 0", "n = 5", "typical-p 0.9"}
        assert min(row["ms"].values()) > 0
    assert min(result["throughputs"]["tiny"].values()) > 0
    assert 0 < result["errors"]["tiny"]["tidewire"] < 0.05


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_missing_gpu_is_reported_with_the_command_that_needs_none():
    done = run()
    assert done.returncode == 1
    assert "no GPU" in done.stderr
    assert "--device cpu --tiny" in done.stderr
