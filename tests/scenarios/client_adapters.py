"""Adapters from the scenario player to programs: the clients of this project, and the JavaScript client."""

import shlex
import sys
import threading
from pathlib import Path

from proof.reimplementations.plain_client import TRAITS
from tidewire_conformance.clients.scenarios import ProgramAdapter

OWN = (sys.executable, "-m", "tidewire.under_test")
JAVASCRIPT = ("node", str(Path(__file__).parents[1] / "interop/javascript/client_adapter.mjs"))


class LazyAdapter:
    """A program that starts when it plays its first scenario."""

    traits = frozenset(TRAITS)

    def __init__(self, name, argv):
        self.name, self._argv = name, argv
        self._program = None
        self._lock = threading.Lock()

    def run(self, command, report_event, seconds):
        with self._lock:
            self._program = self._program or ProgramAdapter(self._argv)
        assert self._program.traits >= self.traits, shlex.join(self._argv)
        self._program.run(command, report_event, seconds)

    def close(self):
        if self._program is not None:
            self._program.close()


PROJECT_CLIENTS = [
    LazyAdapter("AsyncClient on asyncio", OWN),
    LazyAdapter("AsyncClient on trio", (*OWN, "--backend", "trio")),
    LazyAdapter("Client", (*OWN, "--blocking")),
]
JAVASCRIPT_CLIENT = LazyAdapter("JavaScript", JAVASCRIPT)
