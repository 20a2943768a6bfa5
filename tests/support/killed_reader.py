"""Program that reads a job from a stored checkpoint, stores each update, and kills itself before or after storing one.

python -m support.killed_reader URL FILE UPDATES before|after
"""

import json
import os
import signal
import sys
from pathlib import Path

from tidewire import Checkpoint, Client


def store(path: Path, text: str, checkpoint: Checkpoint) -> None:
    """Store text and checkpoint atomically."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"text": text, "checkpoint": checkpoint.to_json()}), encoding="utf-8")
    temporary.replace(path)


def continue_reading(url: str, path: Path, updates: int, when: str) -> None:
    """Continue from the stored checkpoint, and kill this process before or after storing the given update."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    text = saved["text"]
    with Client(url) as client:
        job = client.job(checkpoint=Checkpoint.from_json(saved["checkpoint"]))
        for at, update in enumerate(job, 1):
            text = text[: len(text) - update.deleted] + update.text
            if at == updates and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            store(path, text, job.checkpoint())
            if at == updates:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    continue_reading(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
