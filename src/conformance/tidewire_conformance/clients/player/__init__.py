"""Plays the scenarios for clients (`spec/scenarios/client`) with any client that stands behind an `Adapter`.

for verdict in play_all(load_all(), ProgramAdapter(["node", "my-client.js"])):
    if verdict.outcome is not Outcome.PASS:
        print(describe(verdict))
"""

from tidewire_conformance.clients.player.client_adapter import (
    Adapter,
    AdapterDiedError,
    AdapterError,
    AdapterHungError,
    ProgramAdapter,
    Tell,
)
from tidewire_conformance.clients.player.client_judge import Finding
from tidewire_conformance.clients.player.failure_transcript import describe
from tidewire_conformance.clients.player.play_scenario import ScenarioVerdict, play, play_all
from tidewire_conformance.clients.player.scenario import Scenario, ScenarioError, load, load_all
from tidewire_conformance.judging.verdict import Outcome

__all__ = [
    "Adapter",
    "AdapterDiedError",
    "AdapterError",
    "AdapterHungError",
    "Finding",
    "Outcome",
    "ProgramAdapter",
    "Scenario",
    "ScenarioError",
    "ScenarioVerdict",
    "Tell",
    "describe",
    "load",
    "load_all",
    "play",
    "play_all",
]
