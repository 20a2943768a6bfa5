"""`tidewire conformance --client CMD`: which scenarios, with which client, and a report of the same kind."""

import shlex

from tidewire_conformance.clients.client_mode.scenario_runner import ScenarioPlan, Watch, run
from tidewire_conformance.clients.client_mode.scenario_variants import VARIANTS, twins
from tidewire_conformance.clients.client_mode.scenario_verdicts import name_of
from tidewire_conformance.clients.player import ProgramAdapter, Scenario, load_all
from tidewire_conformance.judging.grade import Report, grade
from tidewire_conformance.registry import is_named


class NoSuchNameError(ValueError):
    """A pattern names no scenario, or no variant."""


def choose(only: list[str], skip: list[str], variants: list[str]) -> list[Scenario]:
    """The scenarios to play.

    Args:
        only: Areas, sentences or names (with *) of those to play; all by default.
        skip: Those to leave out.
        variants: Names of unusual servers, or `all`, to each of which every scenario that can is played as well;
            `none` for no unusual server. By default each of them plays a few scenarios.

    Raises:
        NoSuchNameError: A name is that of nothing, or nothing is left.
    """
    plain = load_all()
    unknown = [name for name in variants if name not in {*VARIANTS, "all", "none"}]
    if unknown:
        raise NoSuchNameError(f"there is no variant {', '.join(unknown)}: there are {', '.join(VARIANTS)}")
    found = [*plain, *twins(plain, variants)]
    lost = [
        pattern
        for pattern in [*only, *skip]
        if not any(is_named(name_of(each), each.requirements, [pattern]) for each in found)
    ]
    if lost:
        raise NoSuchNameError(f"no scenario has the name {', '.join(lost)}: --list tells them")
    chosen = [
        each
        for each in found
        if (not only or is_named(name_of(each), each.requirements, only))
        and not is_named(name_of(each), each.requirements, skip)
    ]
    if not chosen:
        raise NoSuchNameError("nothing is left to play: --list tells what there is")
    return chosen


def judge_client(
    plan: ScenarioPlan, scenarios: list[Scenario], known: dict[str, str], watch: Watch
) -> Report:
    """Start the client, and play to it.

    Raises:
        AdapterError: It cannot be started, or does not introduce itself.
        ValueError: The command is no command.
    """
    with ProgramAdapter(shlex.split(plan.command)) as adapter:
        found = run(plan, scenarios, adapter, watch)
    return grade(found, found.trials, known)
