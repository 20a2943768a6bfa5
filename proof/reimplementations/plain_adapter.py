"""Adapter that runs the plain client, or a faulty client, in the process of the scenario player."""

import json

from proof.reimplementations.plain_client import TRAITS, PlainClient
from proof.reimplementations.plain_client import run as run_plain
from tidewire_conformance.clients.scenarios import AdapterDiedError, AdapterHungError


class PlainAdapter:
    """Runs a client class in this process. Implements the scenario player's protocol `Adapter`."""

    traits = frozenset(TRAITS)

    def __init__(self, client=PlainClient):
        self.client = client
        self.name = client.__name__

    def run(self, command, on_report, seconds):
        def report_copy(report):
            # Copy each report, as a pipe would, because a faulty client may modify a value after it has reported the value.
            on_report(json.loads(json.dumps(report)))

        try:
            run_plain(self.client, command, report_copy, seconds)
        except TimeoutError:
            raise AdapterHungError from None
        except Exception as error:
            raise AdapterDiedError(f"the client raised {error!r}") from error
