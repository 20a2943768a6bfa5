"""Stream a text, and continue it when the script is started again, even after `kill -9`.

$ tidewire serve                                                         # in another terminal
$ TIDEWIRE_URL=http://127.0.0.1:8000 python docs/examples/resume.py      # stop it, and start it again
"""

from pathlib import Path

from tidewire import Checkpoint, Client

SAVED, PARTIAL = Path("resume.json"), Path("resume.json.partial")

with Client() as client:
    if SAVED.exists():
        checkpoint = Checkpoint.from_json(SAVED.read_text())
        print(checkpoint.state["items"][0]["value"]["text"], end="", flush=True)
        job = client.job(checkpoint=checkpoint)
    else:
        job = client.submit("generate", prompt="class Queue:", max_tokens=200, temperature=0.9)
    for update in job:
        PARTIAL.write_text(job.checkpoint().to_json())
        PARTIAL.replace(SAVED)  # so that a kill while the file is written leaves the last one
        print(update.text, end="", flush=True)
    print()
    SAVED.unlink()
