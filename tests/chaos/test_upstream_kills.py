"""The front and its engines are killed at random while texts grow: every character arrives exactly once."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.reference_server import eventually
from support.scripted_engine import MARK, ScriptedEngine, expected, scripted_engine
from support.server_process import ServerProcess
from tidewire import Client

TOKENS, CALLERS, JOBS = 300, 6, 3


def call(url: str, number: int, found: dict[tuple[int, int], Any]) -> None:
    with Client(url) as client:
        for job_number in range(JOBS):
            chat = {"messages": [{"role": "user", "content": "?"}]}
            source = chat if (number + job_number) % 2 else {"prompt": MARK}
            job = client.submit("generate", **source, max_tokens=TOKENS, temperature=0)
            text = "".join(job.iter_text())
            value = job.result()
            found[number, job_number] = (text, value["text"], value["usage"]["completion_tokens"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_every_character_arrives_once_while_front_and_engines_are_killed(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    found: dict[tuple[int, int], Any] = {}
    with scripted_engine(pause=0.004) as first, scripted_engine(pause=0.004) as second:
        settings = {"log": f"sqlite:///{tmp_path / 'log.db'}", "retry": 0.01, "max_attempts": 1000}
        urls = {"urls": [first.url, second.url]}
        with ServerProcess(tmp_path, "support.upstream_front:upstream_front", **settings, **urls) as front:
            eventually(lambda: httpx2.get(f"{front.url}/readyz").status_code == 200, within=30)
            callers = [
                threading.Thread(target=call, args=(front.url, number, found)) for number in range(CALLERS)
            ]
            for caller in callers:
                caller.start()
            for _ in range(15):
                time.sleep(chance.random() * 1.2)
                killed: ServerProcess | ScriptedEngine = chance.choice([front, front, first, second])
                killed.kill()
                killed.start()
            for caller in callers:
                caller.join(timeout=200)
    assert found == {
        (number, job): (expected(TOKENS), expected(TOKENS), TOKENS)
        for number in range(CALLERS)
        for job in range(JOBS)
    }
