"""The adapter between the suite's scenario player and the plain client, or a faulty one, in this process."""

import json

from proof.reimplementations.plain_client import TRAITS, PlainClient
from proof.reimplementations.plain_client import run as run_plain
from tidewire_conformance.clients.player import AdapterDiedError, AdapterHungError


class PlainAdapter:
    """The plain client, or a faulty one, in this process."""

    traits = frozenset(TRAITS)

    def __init__(self, client=PlainClient):
        self.client = client
        self.name = client.__name__

    def run(self, command, tell, seconds):
        def tell_a_copy(report):
            # As if it went through a pipe: a client that changes what it gave must not change what was heard.
            tell(json.loads(json.dumps(report)))

        try:
            run_plain(self.client, command, tell_a_copy, seconds)
        except TimeoutError:
            raise AdapterHungError from None
        except Exception as error:
            raise AdapterDiedError(f"the client broke down: {error!r}") from error
