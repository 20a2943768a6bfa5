"""From a scenario as it was played to a verdict of the suite: which sentences it shows broken, and by what record.

what the player found                                  | what is said
-------------------------------------------------------+-------------------------------------------------------
a finding                                              | each sentence that it names is broken
no finding that names a sentence of the scenario       | the sentences of the scenario hold
nothing wrong with what every request has to be like   | those sentences hold, where there was such a request
the client cannot do what the scenario needs           | skipped, not declared
the client reported what is no report                  | error: it is the program between that is wrong
the client ended, or came to no end                    | findings, and so a failure
"""

from collections.abc import Iterable, Iterator

from tidewire_conformance import specification
from tidewire_conformance.clients.player.conversation import Conversation
from tidewire_conformance.clients.player.failure_transcript import transcript
from tidewire_conformance.clients.player.play_scenario import ScenarioVerdict as Played
from tidewire_conformance.clients.player.scenario import Scenario
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict


def name_of(scenario: Scenario) -> str:
    """What a scenario is called in a report: its area, then its name."""
    return f"{scenario.area}.{scenario.name}" if scenario.area else scenario.name


def verdict_of(played: Played, again: str = "") -> Verdict:
    """The verdict on one scenario.

    Args:
        played: What came of it.
        again: A command that plays it once more.
    """
    scenario = played.scenario
    verdict = Verdict(name_of(scenario), scenario.requirements, scenario.about, played.outcome, played.note)
    if played.outcome is Outcome.SKIPPED:
        verdict.why = SkipReason.NOT_DECLARED
        return verdict
    if played.outcome is Outcome.ERROR:
        return verdict
    record = tuple(_record(played.conversation, again)) if played.findings else ()
    verdict.assertions = [
        Assertion(sentence, False, finding.expected, finding.got, transcript=record)
        for finding in played.findings
        for sentence in dict.fromkeys(finding.rules)
        if sentence in specification.requirements()
    ]
    broken = {each.requirement for each in verdict.assertions}
    held = set() if broken & {*scenario.requirements} else {*scenario.requirements}
    held |= _always(played.conversation) - broken
    verdict.assertions += [Assertion(sentence, holds=True) for sentence in sorted(held)]
    others = {each.requirement for each in verdict.assertions} - {*scenario.requirements}
    verdict.requirements = (*scenario.requirements, *sorted(others))
    verdict.outcome = Outcome.PASS  # what was asserted decides
    return verdict


def _always(conversation: Conversation) -> set[str]:
    """Sentences on what every request has to be like, where there was such a request."""
    found: set[str] = set()
    if any(talk.lane == "streams" for talk in conversation.talks):
        found |= {"TW-CLI-008", "TW-SEC-023"}
    if any("idempotency-key" in talk.headers for talk in conversation.lane("submits")):
        found.add("TW-JOB-036")
    if any("authorization" in talk.headers for talk in conversation.talks):
        found.add("TW-SEC-012")
    if any("kept" in (run.end or {}) for run in conversation.runs):
        found.add("TW-DIF-033")
    return found


def _record(conversation: Conversation, again: str) -> Iterator[str]:
    yield from transcript(conversation)
    if again:
        yield f"  {'':>9} again: {again}"


def profiles(scenarios: Iterable[Scenario]) -> dict[str, str]:
    """The profile of a client that each sentence counts to.

    A client that follows a job over one connection has the profile core. One that never loses or doubles anything,
    whatever connections and servers do, is durable as well: to that counts what scenarios of cuts, waits, ids and
    breaches are the first to be about.
    """
    found: dict[str, str] = {}
    # What a scenario is for counts more than what else it shows.
    ordered = sorted(scenarios, key=lambda scenario: scenario.area in DURABLE)
    for scenario in ordered:
        found.setdefault(scenario.requirements[0], "durable" if scenario.area in DURABLE else "core")
    for scenario in ordered:
        for sentence in scenario.requirements[1:]:
            found.setdefault(sentence, "durable" if scenario.area in DURABLE else "core")
    return found


DURABLE = frozenset({"cuts", "waiting", "ids", "resync"})
"""Files of scenarios about what goes wrong on the way."""
