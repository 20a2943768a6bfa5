"""Judgment of a client that only reads event streams, in the scenarios of the profile `sse`.

The events that the client reports are compared with those of the scenario. The last event id and the reconnection time
are judged by the reports if the client shows them, and by the next request if the client reconnects.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tidewire_conformance.clients.scenarios.conversation import ClientRun, Conversation, RecordedRequest
from tidewire_conformance.clients.scenarios.finding import Finding
from tidewire_conformance.clients.scenarios.scenario import Members, Scenario

PROMPTNESS = ("TW-SSE-023",)
ACCEPT = "TW-SSE-015"
"""Judged in one scenario only, so that a missing header does not hide what else a client does."""
_RETRY, _WITHOUT_DATA = "TW-SSE-031", "TW-SSE-027"
_CLOCK_TOLERANCE = 0.002
"""Tolerance, in seconds, for differences between clocks and timers."""


def judge_event_streams(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    """Compare the recorded conversation with the expectations of a scenario whose actions open event streams."""
    for number, run in enumerate(conversation.runs):
        requests = conversation.of_run(number)
        yield from _end(scenario, run, requests)
        yield from _requests(scenario, requests)
        wrong = [*_events(scenario, run)]
        yield from wrong
        yield from _shown_at_the_end(scenario, run, requests)
        late = [request.waited_for for request in requests if request.waited_for is not None]
        if late and not wrong:
            expected = f"after the byte that completes the event, and before the next byte: {late[0]}"
            yield Finding("late", PROMPTNESS, expected, "the client delivered the event after a later byte")


def _events(scenario: Scenario, run: ClientRun) -> Iterator[Finding]:
    """Compare the members of each event that the client shows."""
    expected = scenario.expect.get("events", [])
    got = [_comparable(event) for event in run.events]
    if len(got) != len(expected) or any(
        event[name] != wanted[name]
        for event, wanted in zip(got, expected, strict=True)
        for name in event.keys() & wanted.keys()
    ):
        # An additional event in a scenario about `retry` is one for a block without data.
        is_retry = scenario.requirements[0] == _RETRY and len(got) > len(expected)
        rules = (_WITHOUT_DATA,) if is_retry else scenario.requirements
        yield Finding("events", rules, f"events: {_short(expected)}", _short(got))


def _comparable(report: Members) -> dict[str, Any]:
    names = {"type": "type", "data": "data", "last_event_id": "id"}
    return {name: report[member] for member, name in names.items() if member in report}


def _end(scenario: Scenario, run: ClientRun, requests: list[RecordedRequest]) -> Iterator[Finding]:
    wanted = scenario.expect["end"]
    expected = " or ".join(wanted)
    if run.hung:
        yield Finding("hung", scenario.requirements, f"an end: {expected}", "no end in time")
    elif run.died or run.end is None:
        yield Finding("died", scenario.requirements, f"an end: {expected}", run.died)
    elif run.end["end"] not in wanted:
        yield Finding("end", scenario.requirements, expected, run.end["end"])
    elif run.end["end"] == "failed" and requests and all(_is_valid_stream(each) for each in requests):
        detail = run.end.get("detail", "")
        yield Finding(
            "end", scenario.requirements, "no error, because the stream is valid", f"failed {detail}"
        )


def _is_valid_stream(request: RecordedRequest) -> bool:
    exchange = request.exchange or {}
    media_type = exchange.get("headers", {}).get("Content-Type", "text/event-stream").partition(";")[0]
    is_whole = exchange.get("then", "eof") == "eof"
    return (
        "events" in exchange
        and exchange.get("status", 200) == 200
        and media_type.lower() == "text/event-stream"
        and is_whole
    )


def _requests(scenario: Scenario, requests: list[RecordedRequest]) -> Iterator[Finding]:
    script = scenario.scripts.get("streams", ())
    bounds = scenario.expect.get("streams", {"least": len(script)})
    if not bounds["least"] <= len(requests) <= bounds.get("most", len(requests)):
        expected = " and ".join(f"at {word} {number}" for word, number in bounds.items())
        yield Finding("count", scenario.requirements, f"number of requests: {expected}", str(len(requests)))
    for number, request in enumerate(requests, 1):
        accept = request.headers.get("accept", "")
        if ACCEPT in scenario.requirements and "text/event-stream" not in accept:
            yield Finding(
                "header", (ACCEPT,), f"request {number}: Accept: text/event-stream", f"Accept: {accept}"
            )
        asked = (request.exchange or {}).get("asked", {})
        rules = tuple(asked.get("rules", scenario.requirements))
        if "last_event_id" in asked and request.last_event_id != asked["last_event_id"]:
            wanted, got = (
                "no header" if value is None else repr(value)
                for value in (asked["last_event_id"], request.last_event_id)
            )
            yield Finding("id", rules, f"request {number}: Last-Event-ID: {wanted}", got)
    for before, request in pairwise(requests):
        least = (request.exchange or {}).get("asked", {}).get("wait_ms", {}).get("least", 0)
        elapsed = request.at - (before.last_sent_at or before.at)
        if elapsed + _CLOCK_TOLERANCE < least / 1000:
            expected = f"at least {least} ms between the end of a response and the next request"
            yield Finding("wait", scenario.requirements, expected, f"{elapsed * 1000:.0f} ms")


def _shown_at_the_end(
    scenario: Scenario, run: ClientRun, requests: list[RecordedRequest]
) -> Iterator[Finding]:
    expect, end = scenario.expect, run.end or {}
    if "last_event_id" in expect:
        shown = [end["last_event_id"]] if "last_event_id" in end else []
        # A server receives the header without the white space around its value.
        header = [request.last_event_id or "" for request in requests[len(scenario.scripts["streams"]) :]]
        wanted = expect["last_event_id"]
        wrong = [value for value in shown if value != wanted]
        wrong += [value for value in header if value != wanted.strip(" \t")]
        if wrong:
            yield Finding("id", scenario.requirements, f"the last event id {wanted!r}", repr(wrong[0]))
    wanted_ms = expect.get("retry_ms")
    if wanted_ms is not None and "retry_ms" in end and end["retry_ms"] != wanted_ms:
        got = f"{end['retry_ms']} ms"
        yield Finding("retry", scenario.requirements, f"a reconnection time of {wanted_ms} ms", got)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:140]} … {text[-140:]}"
