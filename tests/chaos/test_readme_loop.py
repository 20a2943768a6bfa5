"""The loop of the README, exactly as it is there, against a server that is killed with SIGKILL while it generates."""

import contextlib
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.free_port import free_port
from support.killable_server import Killed
from tidewire import Client, RetryPolicy

README = Path(__file__).parents[2] / "README.md"
PROGRAM = next(
    block
    for block in re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    if "for update in job:" in block
)
AFTER = 20
"""Number of printed characters after which the server is killed."""


class Output(io.StringIO):
    """Output that calls a function once, after some characters were written to it."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then: Callable[[], object] | None = then

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._then is not None and self.tell() >= AFTER:
            then, self._then = self._then, None
            then()
        return count


def run_readme(url: str, kill: Callable[[], object]) -> bool:
    """Run the program of the README, and kill the server while the program prints. Check that each character of the text
    was printed once.

    Returns:
        Whether the server was killed before it had generated the whole text.
    """
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(Output(kill)) as output:
        exec(PROGRAM.replace("http://127.0.0.1:8000", url), names)
    text = names["value"]["text"]
    candidates = [line for line in output.getvalue().splitlines() if line][-5:]
    assert output.getvalue() == text + "\n" + "\n".join(candidates)
    assert all(re.fullmatch(r" *\d+ +-\d+\.\d{4}", line) for line in candidates)
    with Client(url) as client:
        return client.job(names["job"].id).read().attempt > 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    with Killed(
        tmp_path_factory.mktemp("server"), function="support.campaign_server:campaign_server"
    ) as server:
        yield server


@pytest.mark.heavy
def test_the_loop_of_the_readme_prints_each_character_once_although_the_server_is_killed(server: Killed):
    assert any(run_readme(server.url, server.again) for _ in range(20))


LONG = {"prompt": "class Stack:\n    def push(self, item):", "max_tokens": 80}
INPUTS: dict[str, dict[str, Any]] = {
    "random": {},
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 11, "temperature": 0.8, "top_p": 0.95, "echo": True},
    "penalized": {"seed": 3, "repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {"300": 1.0}},
    "scored": {"seed": 4, "top_logprobs": 5, "ranks": True, "prompt_logprobs": 2, "token_text": True},
    "stopped": {"seed": 5, "stop": ["no such text", "return self.no"]},
    "structured": {"seed": 6, "json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "samples": {"seed": 7, "n": 3},
    "random samples": {"n": 2},
}


@pytest.mark.heavy
def test_generations_of_every_kind_continue_although_the_server_is_killed(server: Killed):
    with Client(server.url, retry=RetryPolicy(max_delay=0.1)) as client:
        assert client.describe("generate").on_restart == "continue"
        for _ in range(10):
            jobs = {
                name: client.batch_job(client.submit("generate", LONG | members).id)
                for name, members in INPUTS.items()
            }
            texts: dict[str, list[str]] = {
                name: [""] * members.get("n", 1) for name, members in INPUTS.items()
            }
            loops = {name: iter(job) for name, job in jobs.items()}
            for name, loop in loops.items():
                for update in itertools.islice(loop, 6):
                    texts[name][update.index] += update.text
            server.again()
            for name, loop in loops.items():
                for update in loop:
                    texts[name][update.index] += update.text
            values = {name: job.results() for name, job in jobs.items()}
            assert texts == {name: [value["text"] for value in each] for name, each in values.items()}
            killed = [name for name, job in jobs.items() if job.read().attempt > 1]
            if len(killed) == len(jobs):
                break
        assert len(killed) == len(jobs), killed
        for name, job in jobs.items():
            completed = sum(len(value["token_ids"]) for value in values[name])
            assert job.read().done.usage["completion_tokens"] == completed


def serve(port: int, folder: Path) -> "subprocess.Popen[bytes]":
    command = [Path(sys.executable).parent / "tidewire", "serve", "--log", f"sqlite:///{folder}/jobs.db"]
    command += ["--port", str(port), "--port-file", str(folder / "port"), "--device", "cpu"]
    (folder / "port").unlink(missing_ok=True)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + 50
    while not (folder / "port").exists():
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_loop_of_the_readme_survives_when_tidewire_serve_is_killed(tmp_path: Path):
    port = free_port()
    processes = [serve(port, tmp_path)]

    def again() -> None:
        os.kill(processes[-1].pid, signal.SIGKILL)
        processes[-1].wait()
        processes.append(serve(port, tmp_path))

    try:
        assert any(run_readme(f"http://127.0.0.1:{port}", again) for _ in range(5))
    finally:
        processes[-1].kill()
        processes[-1].wait()
