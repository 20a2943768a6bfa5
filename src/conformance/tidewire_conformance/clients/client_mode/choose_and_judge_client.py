"""Implementation of `tidewire conformance --client CMD`: select scenarios, run the client, grade the result."""

import shlex

from tidewire_conformance.clients.client_mode.scenario_runner import ScenarioPlan, Watch, run
from tidewire_conformance.clients.client_mode.scenario_variants import VARIANTS, variant_scenarios
from tidewire_conformance.clients.client_mode.scenario_verdicts import name_of
from tidewire_conformance.clients.player import ProgramAdapter, Scenario, load_all
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.registry import is_named


class NoSuchNameError(ValueError):
    """A pattern does not match any scenario or server variant."""


def choose(only: list[str], skip: list[str], variants: list[str]) -> list[Scenario]:
    """Select the scenarios to play.

    Args:
        only: Areas, requirements or names of the scenarios to play, with `*` as a wildcard; all by default.
        skip: Patterns of scenarios to leave out, in the same form.
        variants: Names of server variants. Each named variant plays every scenario that is compatible with it. `all`
            selects every variant, `none` disables them. By default each variant plays a few scenarios.

    Raises:
        NoSuchNameError: A pattern or variant is unknown, or the selection is empty.
    """
    plain = load_all()
    unknown = [name for name in variants if name not in {*VARIANTS, "all", "none"}]
    if unknown:
        raise NoSuchNameError(f"unknown variant {', '.join(unknown)}; choose from {', '.join(VARIANTS)}")
    found = [*plain, *variant_scenarios(plain, variants)]
    unmatched = [
        pattern
        for pattern in [*only, *skip]
        if not any(is_named(name_of(each), each.requirements, [pattern]) for each in found)
    ]
    if unmatched:
        raise NoSuchNameError(f"no scenario matches {', '.join(unmatched)}; use --list to see all scenarios")
    chosen = [
        each
        for each in found
        if (not only or is_named(name_of(each), each.requirements, only))
        and not is_named(name_of(each), each.requirements, skip)
    ]
    if not chosen:
        raise NoSuchNameError("no scenario is left after --skip; use --list to see all scenarios")
    return chosen


def judge_client(
    plan: ScenarioPlan, scenarios: list[Scenario], known: dict[str, str], watch: Watch
) -> Report:
    """Start the client, play the scenarios and grade the result.

    Raises:
        AdapterError: The client cannot be started, or does not send an introduction.
        ValueError: The command line has unbalanced quotes.
    """
    with ProgramAdapter(shlex.split(plan.command)) as adapter:
        found = run(plan, scenarios, adapter, watch)
    return grade(found, found.trials, known)
