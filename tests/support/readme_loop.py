"""The loop of the README, as a script that a newcomer runs."""

import threading
from typing import Any

from tidewire import Client, RetryPolicy
from tidewire.errors import TidewireError


class ReadmeLoop(threading.Thread):
    """Thread that submits a job, collects the text of its updates, and requests its result.

    Attributes:
        text: Text of all updates so far.
        accepted: Whether the server has accepted the job.
        outcome: The result, or the error that the script got.
    """

    def __init__(self, url: str, endpoint: str, *, retry: RetryPolicy | None = None, **members: Any) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.endpoint = endpoint
        self.retry = retry or RetryPolicy()
        self.members = members
        self.text = ""
        self.accepted = False
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            with Client(self.url, retry=self.retry) as client:
                job = client.submit(self.endpoint, **self.members)
                self.accepted = True
                for update in job:
                    self.text += update.text
                self.outcome = job.result()
        except TidewireError as error:
            self.outcome = error

    def ended(self) -> Any:
        """Wait until the script has ended, and return its outcome."""
        self.join(40)
        assert not self.is_alive(), f"the script still waits; it has {self.text!r}"
        return self.outcome
