"""Text form of a scenario verdict: the failed requirements, the expected and actual results, and a timed transcript."""

from collections.abc import Iterator

from tidewire_conformance import specification
from tidewire_conformance.clients.scenarios.client_output import printable
from tidewire_conformance.clients.scenarios.conversation import Conversation, RecordedRequest
from tidewire_conformance.clients.scenarios.scenario_player import ScenarioVerdict
from tidewire_conformance.judging.verdict import Outcome

_MAX_PIECES = 12
"""Number of response pieces, or of client reports, that are printed from each end of a long sequence."""
_MAX_BYTES = 160
"""Number of bytes that are printed from each end of a long piece of a response."""
_ENDINGS = {
    "eof": "(end of the body; the server closed the connection)",
    "close": "(closed by the server before the end of the body)",
    "reset": "(reset by the server)",
    "stall": "(the server sends nothing more and keeps the connection open)",
    "keep": "(end of the body; the connection stays open for the next request)",
}
"""Descriptions of the ways in which the server can end a response."""


def describe(verdict: ScenarioVerdict) -> str:
    """Describe a verdict in text. The transcript is included for a failure or an error."""
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
    """Yield lines for the requests, responses and reports.

    Each line begins with the time in milliseconds since the start of the scenario.
    """
    began = conversation.began
    moments: list[tuple[float, str]] = []
    for number, request in enumerate(conversation.requests, 1):
        moments += ((at, f"{number:3} {line}") for at, line in _request_lines(request))
    for run in conversation.runs:
        reports = [(at, _short(str(dict(report)))) for at, report in run.reports]
        moments += ((at, f"    * {text}") for at, text in _abridged(reports, "reports"))
        if run.hung:
            moments.append((float("inf"), "    * (no end)"))
    for at, line in sorted(moments, key=lambda moment: moment[0]):
        when = "" if at == float("inf") else f"{(at - began) * 1000:.1f}"
        yield f"  {when:>9} {line}"


def _request_lines(request: RecordedRequest) -> Iterator[tuple[float, str]]:
    place = " (to the second origin)" if request.foreign else ""
    yield request.at, f"> {_short(repr(request.head)[2:-1])}{place}"
    if request.body:
        yield request.at, f"> {_short(repr(request.body)[2:-1])}"
    pieces = [(at, _short(repr(data)[2:-1])) for at, data in request.sent]
    yield from ((at, f"< {text}") for at, text in _abridged(pieces, "pieces"))
    if request.ending is not None:
        yield request.ending[0], f"< {_ENDINGS[request.ending[1]]}"
    if request.waited_for is not None:
        yield (
            request.last_sent_at or request.at,
            f"! the server waited until its timeout for: {request.waited_for}",
        )
    if request.closed is not None:
        yield request.closed, "> (closed by the client)"


def _abridged(moments: list[tuple[float, str]], kind: str) -> list[tuple[float, str]]:
    """Replace the middle of a long sequence by one line that says how many texts are left out."""
    left_out = len(moments) - 2 * _MAX_PIECES
    if left_out <= 0:
        return moments
    middle = moments[_MAX_PIECES][0], f"… {left_out} {kind} …"
    return [*moments[:_MAX_PIECES], middle, *moments[-_MAX_PIECES:]]


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= 2 * _MAX_BYTES else f"{text[:_MAX_BYTES]} … {text[-_MAX_BYTES:]}"
