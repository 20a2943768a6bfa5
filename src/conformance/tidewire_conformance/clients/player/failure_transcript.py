"""A verdict in words: the sentence that is broken, what was expected, what came, and the bytes with their times."""

from collections.abc import Iterator

from tidewire_conformance import specification
from tidewire_conformance.clients.player.conversation import Conversation, RecordedRequest
from tidewire_conformance.clients.player.play_scenario import ScenarioVerdict
from tidewire_conformance.clients.player.reported_values_and_texts import printable
from tidewire_conformance.judging.verdict import Outcome

_PIECES = 12
"""Pieces of an answer, and reports of a client, that are shown from the start, and from the end."""
_BYTES = 160
"""Bytes of a piece that are shown."""
_ENDINGS = {
    "eof": "(the end of the body, and of the connection)",
    "close": "(closed by the server before the end)",
    "reset": "(reset by the server)",
    "stall": "(nothing more, and kept open)",
    "keep": "(the end of the body; kept open for the next request)",
}
"""How a server ended an answer."""


def describe(verdict: ScenarioVerdict) -> str:
    """What to read where a scenario did not pass."""
    return "\n".join(_lines(verdict))


def _lines(verdict: ScenarioVerdict) -> Iterator[str]:
    scenario = verdict.scenario
    yield f"{verdict.outcome.value}: {scenario.name} ({verdict.client})"
    yield f"  {scenario.about}"
    if verdict.note:
        yield f"  {verdict.note}"
    known = specification.requirements()
    for finding in verdict.findings:
        for rule in finding.rules:
            yield f"  {known[rule].text} [{rule}]" if rule in known else f"  [{rule}]"
        yield f"    expected  {finding.expected}"
        yield f"    got       {finding.got}"
    if verdict.outcome in {Outcome.FAIL, Outcome.WARN, Outcome.ERROR}:
        yield from transcript(verdict.conversation)


def transcript(conversation: Conversation) -> Iterator[str]:
    """What went over the wire and what the client reported, with milliseconds from the start."""
    began = conversation.began
    moments: list[tuple[float, str]] = []
    for number, talk in enumerate(conversation.talks, 1):
        moments += ((at, f"{number:3} {line}") for at, line in _talk(talk))
    for run in conversation.runs:
        left_out = len(run.reports) - 2 * _PIECES
        for number, (at, report) in enumerate(run.reports):
            if left_out <= 0 or not _PIECES <= number < len(run.reports) - _PIECES:
                moments.append((at, f"    * {_short(str(dict(report)))}"))
            elif number == _PIECES:
                moments.append((at, f"    * … {left_out} reports …"))
        if run.hung:
            moments.append((float("inf"), "    * (no end)"))
    for at, line in sorted(moments, key=lambda moment: moment[0]):
        when = "" if at == float("inf") else f"{(at - began) * 1000:.1f}"
        yield f"  {when:>9} {line}"


def _talk(talk: RecordedRequest) -> Iterator[tuple[float, str]]:
    place = " (at the other origin)" if talk.foreign else ""
    yield talk.at, f"> {_short(repr(talk.head)[2:-1])}{place}"
    if talk.body:
        yield talk.at, f"> {_short(repr(talk.body)[2:-1])}"
    pieces = talk.sent
    left_out = len(pieces) - 2 * _PIECES
    if left_out > 0:
        pieces = [*pieces[:_PIECES], (pieces[_PIECES][0], b""), *pieces[-_PIECES:]]
    for at, data in pieces:
        yield at, f"< {_short(repr(data)[2:-1])}" if data else f"< … {left_out} pieces …"
    if talk.ending is not None:
        yield talk.ending[0], f"< {_ENDINGS[talk.ending[1]]}"
    if talk.in_vain is not None:
        yield talk.said or talk.at, f"! waited in vain for {talk.in_vain}"
    if talk.closed is not None:
        yield talk.closed, "> (closed)"


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= 2 * _BYTES else f"{text[:_BYTES]} … {text[-_BYTES:]}"
