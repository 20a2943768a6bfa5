"""Implementation of `tidewire conformance --client CMD`: select the scenarios, run the client, and grade the result."""

import shlex
from collections.abc import Sequence

from tidewire_conformance.clients.scenarios import ProgramAdapter, Scenario, load_all
from tidewire_conformance.clients.scenarios.event_stream_scenarios import load_event_stream_scenarios
from tidewire_conformance.clients.scenarios.play_all_scenarios import ScenarioPlan, run
from tidewire_conformance.clients.scenarios.scenario_to_verdict import name_of
from tidewire_conformance.clients.scenarios.server_variants import VARIANTS, variant_scenarios
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.parse_option_values import EmptySelectionError, select
from tidewire_conformance.registry import is_named
from tidewire_conformance.runner import Watch


def choose(only: list[str], skip: list[str], variants: list[str], profile: str = "") -> list[Scenario]:
    """Select the scenarios to play.

    Args:
        only: Areas, requirement ids or names of the scenarios to play. A name may contain `*`. By default, all
            scenarios are played.
        skip: Scenarios to leave out, in the same form as `only`.
        variants: Names of server variants. Each of these variants plays all scenarios with which it is compatible. The
            name `all` selects every variant, and `none` selects no variant. By default, each variant plays a few
            scenarios.
        profile: `sse` for the scenarios for any client that reads event streams, or an empty string.

    Raises:
        EmptySelectionError: A pattern matches no scenario, a variant does not exist, or no scenario is left.
    """
    plain = load_event_stream_scenarios() if profile else load_all()
    unknown = [name for name in variants if name not in {*VARIANTS, "all", "none"}]
    if unknown:
        raise EmptySelectionError(f"unknown variant {', '.join(unknown)}; choose from {', '.join(VARIANTS)}")
    varied = () if profile else variant_scenarios(plain, variants)
    found = select([*plain, *varied], _is_named_by, only, skip, "scenario")
    if not found:
        raise EmptySelectionError("no scenario is left after --skip; --list prints all scenarios")
    return found


def _is_named_by(scenario: Scenario, patterns: Sequence[str]) -> bool:
    return is_named(name_of(scenario), scenario.requirements, patterns)


def judge_client(
    plan: ScenarioPlan, scenarios: list[Scenario], known: dict[str, str], watch: Watch
) -> Report:
    """Start the client program, play the scenarios with it and grade the result.

    Raises:
        AdapterError: The client program cannot be started, or does not write an introduction.
        ValueError: The command line has unbalanced quotes.
    """
    with ProgramAdapter(shlex.split(plan.command)) as adapter:
        found = run(plan, scenarios, adapter, watch)
    return grade(found, known)
