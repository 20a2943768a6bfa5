"""Text generation whose server is killed, and which another server on the same database continues."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.checked_reader import Reader
from support.killable_server import Killed
from support.postgres_server import needs_postgres

pytestmark = [*needs_postgres, pytest.mark.timeout(240)]

GREEDY = {"prompt": "class Stack:\n    def push(self, item):", "max_tokens": 150, "temperature": 0.0}
SAMPLED = GREEDY | {"seed": 11, "temperature": 0.8, "top_p": 0.95, "top_logprobs": 3}


def value_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["state"]["items"][0]["value"]


@pytest.mark.heavy
def test_another_server_continues_a_text_with_the_same_tokens(database_url: str, tmp_path: Path):
    def server(name: str) -> Killed:
        folder = tmp_path / name
        folder.mkdir()
        return Killed(
            folder, "support.campaign_server:campaign_server", log=database_url, on_restart="continue"
        )

    with server("first") as first, server("second") as second:
        second.kill()
        expected = []
        for given in (GREEDY, SAMPLED):
            job = first.submit("generate", input=given).json()["id"]
            expected.append(value_of(first.ended(job)))
        # The second server is alive when the first one dies, but takes no items before.
        second.start()
        os.kill(second.pid, signal.SIGSTOP)
        jobs = [first.submit("generate", input=given).json()["id"] for given in (GREEDY, SAMPLED)]
        for job in jobs:
            first.until(job, lambda found: found["status"] == "running")
        os.kill(second.pid, signal.SIGCONT)
        readers = [Reader([second], job) for job in jobs]
        for reader in readers:
            reader.start()
        for job in jobs:
            second.until(job, lambda found: len(value_of(found)["token_ids"]) >= 5)
        first.kill()
        found = [second.ended(job) for job in jobs]
        for reader, job, exact in zip(readers, found, expected, strict=True):
            reader.join(60)
            assert reader.faults == []
            assert reader.document.value("/items/0/value") == value_of(job)
            for name in ("text", "token_ids", "finish_reason"):
                assert value_of(job)[name] == exact[name], name
            # The last decimal depends on how many tokens a step computes at once.
            assert value_of(job).get("logprobs") == pytest.approx(exact.get("logprobs"), abs=2e-4)
        assert [job["attempt"] for job in found] == [2, 2]
