"""Conversion of the result of a scenario to a verdict, with the failed requirements and their evidence.

result of the scenario                                 | verdict
-------------------------------------------------------+-------------------------------------------------------
the player found a failure                             | the requirements that the failure names have failed
no failure names a requirement of the scenario         | the requirements of the scenario are met
all requests satisfy the general requirements          | general requirements that applied to a request are met
the client lacks an ability that the scenario needs    | skipped, not declared
the client wrote an invalid report                     | error, because the adapter program is at fault
the client exited, or did not report an end in time    | fail
"""

from collections.abc import Iterable

from tidewire_conformance import specification
from tidewire_conformance.clients.scenarios.conversation import Conversation
from tidewire_conformance.clients.scenarios.failure_transcript import transcript
from tidewire_conformance.clients.scenarios.scenario import Scenario
from tidewire_conformance.clients.scenarios.scenario_player import ScenarioVerdict as Played
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict


def name_of(scenario: Scenario) -> str:
    """Return the name under which reports list a scenario: its area, a dot and its own name."""
    return f"{scenario.area}.{scenario.name}" if scenario.area else scenario.name


def verdict_of(played: Played, rerun_command: str = "") -> Verdict:
    """Convert the result of a scenario to a verdict of the suite.

    Args:
        played: Result of the scenario player.
        rerun_command: Command line that plays the scenario again.
    """
    scenario = played.scenario
    verdict = Verdict(name_of(scenario), scenario.requirements, scenario.about, played.outcome, played.note)
    if played.outcome is Outcome.SKIPPED:
        verdict.why = SkipReason.NOT_DECLARED
        return verdict
    if played.outcome is Outcome.ERROR:
        return verdict
    again = [f"  {'':>9} again: {rerun_command}"] if rerun_command else []
    record = (*transcript(played.conversation), *again) if played.findings else ()
    verdict.assertions = [
        Assertion(requirement, False, finding.expected, finding.got, transcript=record)
        for finding in played.findings
        for requirement in dict.fromkeys(finding.rules)
        if requirement in specification.requirements()
    ]
    broken = {each.requirement for each in verdict.assertions}
    met = set() if broken & {*scenario.requirements} else {*scenario.requirements}
    met |= _checked_in_every_scenario(played.conversation) - broken
    verdict.assertions += [Assertion(requirement, holds=True) for requirement in sorted(met)]
    others = {each.requirement for each in verdict.assertions} - {*scenario.requirements}
    verdict.requirements = (*scenario.requirements, *sorted(others))
    unsent = {finding.unsent for finding in played.findings if finding.unsent}
    if any(finding.kind in {"hung", "died"} for finding in played.findings):
        unsent -= {
            "TW-CLI-009"
        }  # a client that has exited makes no further requests, whatever it would have sent
    verdict.unsent = min(unsent, default="")
    # This value is preliminary. The final outcome is derived from the assertions later.
    verdict.outcome = Outcome.PASS
    return verdict


def _checked_in_every_scenario(conversation: Conversation) -> set[str]:
    """Return the ids of the general requirements, which are checked in every scenario.

    A requirement is left out if the client did nothing to which the requirement applies.
    """
    found: set[str] = set()
    if any(run.command["do"] == "open" for run in conversation.runs):
        return found
    if any(request.kind == "streams" for request in conversation.requests):
        found |= {"TW-CLI-008", "TW-SEC-023"}
    if any("idempotency-key" in request.headers for request in conversation.of_kind("submits")):
        found.add("TW-JOB-036")
    if any("authorization" in request.headers for request in conversation.requests):
        found.add("TW-SEC-012")
    if any("kept" in (run.end or {}) for run in conversation.runs):
        found.add("TW-DIF-033")
    return found


def profiles(scenarios: Iterable[Scenario]) -> dict[str, str]:
    """Map the id of each requirement to a client profile.

    A client that meets the profile `core` can follow a job over one connection. A client that meets the profile
    `durable` delivers each change exactly once despite network and server faults.

    A scenario was written for the first requirement in its list. The profile of a requirement depends on the scenarios
    that were written for the requirement. If there are none, it depends on all scenarios that list the requirement. The
    profile is `durable` if all these scenarios are in `DURABLE_AREAS`, and `core` otherwise. A scenario for any client
    has the profile `sse`.
    """
    found: dict[str, str] = {}
    # A scenario was written for the first requirement in its list, so these requirements get their profile first.
    ordered = sorted(scenarios, key=lambda scenario: scenario.area in DURABLE_AREAS)
    for scenario in ordered:
        found.setdefault(scenario.requirements[0], _profile(scenario))
    for scenario in ordered:
        for requirement in scenario.requirements[1:]:
            found.setdefault(requirement, _profile(scenario))
    return found


def _profile(scenario: Scenario) -> str:
    if scenario.is_of_any_client:
        return "sse"
    return "durable" if scenario.area in DURABLE_AREAS else "core"


DURABLE_AREAS = frozenset({"cuts", "waiting", "ids", "resync"})
"""Areas whose scenarios are about network and server faults."""
