"""A script that stores what it made of a job together with its checkpoint, killed at any update and started again.

All its lives together have made what one life without an accident makes. Each life is a process of its own, which
ends by SIGKILL: before or after it has stored an update, by turns.
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
    # Every append is an event of its own.
    with served(retry=0.002, merge_window=0) as url:
        yield url


def beginning(client: Client, job_id: str) -> Checkpoint:
    """A checkpoint before the first event after a job's opening snapshot, as a reader has it that was there."""
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
    """Both at once, or neither."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"text": text, "checkpoint": checkpoint.to_json()}), encoding="utf-8")
    beside.replace(path)


def live(url: str, path: Path, updates: int, *, stored: bool) -> None:
    """Go on where the store says, and be killed at an update: before or after it is stored."""
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
    """One life; whether it was killed, and did not come to the job's end."""
    child = os.fork()
    if not child:
        code = 1
        try:
            live(url, path, updates, stored=stored)
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
def test_a_script_killed_at_any_update_makes_the_text_of_a_clean_run(url, endpoint, tmp_path):
    path = tmp_path / "stored.json"
    with Client(url) as client:
        job = client.submit(endpoint, **JOBS[endpoint])
        assert job.result() == FINAL[endpoint]
        first = beginning(client, job.id)
        updates = sum(1 for _ in client.job(checkpoint=first))
    store(path, "", first)
    lives = 0
    while killed(url, path, 1 + lives % 2, stored=lives % 3 != 0):
        lives += 1
        assert lives <= 3 * updates, "it does not come forward"
    assert lives >= updates // 2 > 5
    assert json.loads(path.read_text(encoding="utf-8"))["text"] == FINAL[endpoint]
