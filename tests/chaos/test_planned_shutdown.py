"""The loop of the README against servers in memory that receive SIGTERM at random moments. `CHAOS_SEED` repeats a run.

A server that has accepted a job must deliver the whole text, or fail the job with `worker_lost`, before it exits. Nothing
listens on the port afterwards, so a script without an answer would wait in vain.
"""

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from support.faulty_proxy import FaultyProxy
from support.random_seed import SEED
from support.readme_loop import ReadmeLoop
from support.reference_server import eventually
from support.serve_command import served
from support.server_address import address_of
from tidewire import RetryPolicy
from tidewire.errors import JobFailedError, TidewireError

SCRIPTS: Final = 15
"""Number of scripts per server. Each has one job."""
WORDS = """
import asyncio
from collections.abc import AsyncIterator
from tidewire_server import Append, Server

server = Server()


@server.endpoint(concurrency_limit=5)
async def words(n: int) -> AsyncIterator[Append[str]]:
    for i in range(n):
        yield Append(f"{i} ")
        await asyncio.sleep(0.01)
"""


def outcome_of(script: ReadmeLoop, n: int) -> str:
    """Kind of the script's outcome. Anything but the kinds in the docstring of this module is a fault."""
    whole, outcome = "".join(f"{i} " for i in range(n)), script.ended()
    if not script.accepted:
        assert isinstance(outcome, TidewireError)
        return "refused"
    if isinstance(outcome, JobFailedError):
        assert (outcome.code, outcome.retryable) == ("worker_lost", True)
        assert whole.startswith(script.text)
        return "worker_lost"
    assert outcome == script.text == whole
    return "whole"


def stop_a_server(folder: Path, draw: random.Random, limit: str, *, cut: bool) -> list[str]:
    """Run one server until it has received SIGTERM and has exited, and return the outcomes of its scripts."""
    lengths = [draw.randrange(1, 60) for _ in range(SCRIPTS)]
    with served(folder, "words.py", "--shutdown-timeout", limit) as (process, peer):
        upstream = address_of(peer.url)
        with FaultyProxy(upstream, 0, weights={"none": 1}) as network:
            url, patience = network.url if cut else peer.url, RetryPolicy(patience=10.0 if cut else 1.0)
            scripts = [ReadmeLoop(url, "words", retry=patience, n=n) for n in lengths]
            eventually(lambda: any(script.accepted for script in scripts))
            scripts[0].join(draw.uniform(0.0, 0.7))
            process.send_signal(signal.SIGTERM)
            if cut:
                network.break_all()
            _, err = process.communicate(timeout=60)
            assert (process.returncode, "Traceback" in err) == (0, False), err
            return [outcome_of(*pair) for pair in zip(scripts, lengths, strict=True)]


def campaign(folder: Path, limits: list[str], *, cut: bool) -> Counter[str]:
    """Stop one server for each time limit of a shutdown, in seconds, and count the outcomes."""
    (folder / "words.py").write_text(WORDS)
    draw = random.Random(SEED)
    return Counter(kind for limit in limits for kind in stop_a_server(folder, draw, limit, cut=cut))


@pytest.mark.heavy
@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut at the signal"])
def test_no_accepted_job_is_lost(tmp_path, cut):
    assert campaign(tmp_path, ["20"] if cut else ["0.3", "20"], cut=cut)["whole"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut at the signal"])
def test_no_accepted_job_of_three_hundred_is_lost(tmp_path, cut):
    # A script that is cut returns within 2.25 s, so the time limit of its server must be longer.
    assert campaign(tmp_path, ["20"] * 20 if cut else ["0.3", "20"] * 10, cut=cut)["whole"]
