"""A script that stores text and checkpoint atomically, and is killed by SIGKILL at any update and restarted.

The stored text of all runs together equals that of a single run without kills. Each run is a child process, killed
alternately before and after it stores an update.
"""

import json
import os
import signal
from pathlib import Path

import httpx2
import pytest

from proof.forked_process import Forked
from support.killed_reader import store
from support.sample_server import sentence, served
from tidewire import Checkpoint, Client
from tidewire.protocol.sse import Decoder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

JOBS = {"talk": {"words": 12}, "hesitate": {"words": 6}}
TESTS = Path(__file__).parent.parent
CHILD_LIMIT = 60.0
FINAL = {"talk": sentence(12), "hesitate": "".join(f"{word} " for word in sentence(6).split())}


@pytest.fixture(scope="module")
def url():
    # No merging: each append is a separate event.
    with served(retry=0.002, merge_window=0) as url:
        yield url


def checkpoint_at_start(client: Client, job_id: str) -> Checkpoint:
    """Return the checkpoint of a reader that has read only the first snapshot of the job."""
    with httpx2.stream("GET", f"{client.url}/v1/jobs/{job_id}/events", params={"after": "0-0"}) as answer:
        opening = next(event for event in Decoder().feed(answer.read()) if event.type == "snapshot")
    snapshot = json.loads(opening.data)
    return Checkpoint(
        job=job_id,
        url=client.url,
        state=snapshot["state"],
        columns=snapshot["columns"],
        cursor=opening.id,
    )


def killed(url: str, path: Path, updates: int, *, stored: bool) -> bool:
    """Run the reader in a child process; return True if the child was killed, False if the job ended.

    The child is forked from a process that has a single thread. A child of this process could wait forever for a lock that
    another thread of the test runner held at the time of the fork.
    """
    arguments = (url, str(path), str(updates), "after" if stored else "before")
    with Forked("support.killed_reader", *arguments, cwd=TESTS) as child:
        _, errors = child.communicate(timeout=CHILD_LIMIT)
    assert child.returncode in {0, -signal.SIGKILL}, errors
    return child.returncode != 0


@pytest.mark.heavy
@pytest.mark.parametrize("endpoint", JOBS)
def test_script_killed_at_any_update_stores_the_text_of_a_clean_run(url, endpoint, tmp_path):
    path = tmp_path / "stored.json"
    with Client(url) as client:
        job = client.submit(endpoint, **JOBS[endpoint])
        assert job.result() == FINAL[endpoint]
        first = checkpoint_at_start(client, job.id)
        updates = sum(1 for _ in client.job(checkpoint=first))
    store(path, "", first)
    kills = 0
    while killed(url, path, 1 + kills % 2, stored=kills % 3 != 0):
        kills += 1
        assert kills <= 3 * updates, "the script makes no progress"
    assert kills >= updates // 2 > 5
    assert json.loads(path.read_text(encoding="utf-8"))["text"] == FINAL[endpoint]
