"""A script that stores text and checkpoint atomically, and is killed by SIGKILL at any update and restarted.

The stored text of all runs together equals that of a single run without kills. Each run is a child process, killed
alternately before and after it stores an update.
"""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from support.sample_server import sentence, served
from tidewire import Checkpoint, Client
from tidewire.protocol.sse import Decoder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

JOBS = {"talk": {"words": 12}, "hesitate": {"words": 6}}
FINAL = {"talk": sentence(12), "hesitate": "".join(f"{word} " for word in sentence(6).split())}


@pytest.fixture(scope="module")
def url():
    # No merging: each append is a separate event.
    with served(retry=0.002, merge_window=0) as url:
        yield url


def checkpoint_at_start(client: Client, job_id: str) -> Checkpoint:
    """Return the checkpoint of a reader that has read only the first snapshot of the job."""
    with httpx.stream("GET", f"{client.url}/v1/jobs/{job_id}/events", params={"after": "0-0"}) as answer:
        opening = next(event for event in Decoder().feed(answer.read()) if event.type == "snapshot")
    snapshot = json.loads(opening.data)
    return Checkpoint(
        job=job_id,
        url=client.url,
        state=snapshot["state"],
        columns=snapshot["columns"],
        cursor=opening.id,
    )


def store(path: Path, text: str, checkpoint: Checkpoint) -> None:
    """Store text and checkpoint atomically."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"text": text, "checkpoint": checkpoint.to_json()}), encoding="utf-8")
    temporary.replace(path)


def continue_reading(url: str, path: Path, updates: int, *, stored: bool) -> None:
    """Continue from the stored checkpoint, and kill this process before or after storing the given update."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    text = saved["text"]
    with Client(url) as client:
        job = client.job(checkpoint=Checkpoint.from_json(saved["checkpoint"]))
        for at, update in enumerate(job, 1):
            text = text[: len(text) - update.deleted] + update.text
            if at == updates and not stored:
                os.kill(os.getpid(), signal.SIGKILL)
            store(path, text, job.checkpoint())
            if at == updates:
                os.kill(os.getpid(), signal.SIGKILL)


def killed(url: str, path: Path, updates: int, *, stored: bool) -> bool:
    """Run `continue_reading` in a child process; return True if the child was killed, False if the job ended."""
    child = os.fork()
    if not child:
        code = 1
        try:
            continue_reading(url, path, updates, stored=stored)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


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
