"""Scenario player, which runs the scenarios in `spec/scenarios/client` with a client that implements `Adapter`.

An example prints the failures of a client:

with ProgramAdapter(["node", "my-client.js"]) as adapter:
    for scenario in load_all():
        verdict = play(scenario, adapter)
        if verdict.outcome is not Outcome.PASS:
            print(describe(verdict))
"""

from tidewire_conformance.clients.scenarios.client_adapter import (
    Adapter,
    AdapterDiedError,
    AdapterError,
    AdapterHungError,
    ProgramAdapter,
    ReportCallback,
)
from tidewire_conformance.clients.scenarios.failure_transcript import describe
from tidewire_conformance.clients.scenarios.scenario import Finding, Scenario, ScenarioError, load, load_all
from tidewire_conformance.clients.scenarios.scenario_player import ScenarioVerdict, play
from tidewire_conformance.judging.verdict import Outcome

__all__ = [
    "Adapter",
    "AdapterDiedError",
    "AdapterError",
    "AdapterHungError",
    "Finding",
    "Outcome",
    "ProgramAdapter",
    "ReportCallback",
    "Scenario",
    "ScenarioError",
    "ScenarioVerdict",
    "describe",
    "load",
    "load_all",
    "play",
]
