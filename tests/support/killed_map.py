"""Program that maps numbers with a resume file, prints each value, and kills itself at a given point.

python -m support.killed_map URL FILE COUNT OPTIONS, where OPTIONS is a JSON object: `yields` or `posts` is the number of
values, or of responses to submits, after which the program kills itself. Other members are arguments of `map`.
"""

import json
import os
import signal
import sys
from typing import Any

from tidewire import Client, Hooks
from tidewire.hooks import RequestEvent


def run_map(url: str, file: str, count: int, *, yields: int = 0, posts: int = 0, **arguments: Any) -> None:
    """Map the numbers below `count`, and print each value on a line."""
    responses = 0

    def kill_after_post(event: RequestEvent) -> None:
        nonlocal responses
        responses += event.method == "POST"
        if responses == posts > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    inputs = ({"number": number} for number in range(count))
    with Client(url, hooks=Hooks(on_request=kill_after_post)) as client:
        for at, value in enumerate(client.map("journaled", inputs, resume_file=file, **arguments), 1):
            print(value, flush=True)
            if at == yields:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run_map(sys.argv[1], sys.argv[2], int(sys.argv[3]), **json.loads(sys.argv[4]))
