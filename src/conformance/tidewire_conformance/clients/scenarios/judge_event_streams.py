"""Judgment of a client that only reads event streams, in the scenarios of the profile `sse`.

The events that the client reports are compared with those of the scenario. The last event id and the reconnection time
are judged by the reports if the client shows them, and by the next request if the client reconnects.

A finding names only requirements that the client demonstrably violates. A consequence of another violation, such as an
event that is missing because the client never requested the stream again, is not a separate finding.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from tidewire_conformance.clients.scenarios.conversation import ClientRun, Conversation, RecordedRequest
from tidewire_conformance.clients.scenarios.scenario import Finding, Members, Scenario

PROMPTNESS = ("TW-SSE-023",)
ACCEPT = "TW-SSE-015"
"""Requirement to send the header `Accept`. Only its own scenario judges it, so that a client without the header does not fail all scenarios."""
_ONLY_ABOUT_RETRY = ("TW-SSE-031",)
_RECONNECTION = ("TW-SSE-033",)
_CHUNKS = "TW-SSE-022"
_WITHOUT_DATA = "TW-SSE-027"
_TYPE = frozenset({"TW-SSE-028"})
_KEPT_ID = "TW-SSE-029"
_ID = frozenset({_KEPT_ID, "TW-SSE-030"})
CLOCK_TOLERANCE = 0.002
"""Tolerance, in seconds, for differences between clocks and timers."""


def judge_event_streams(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    """Compare the recorded conversation with the expectations of a scenario whose actions open event streams."""
    for number, run in enumerate(conversation.runs):
        requests = conversation.of_run(number)
        yield from _requests(scenario, requests)
        if missing := _missing_request(scenario, requests):
            yield missing
            continue
        whole = conversation.runs[0] if scenario.actions[number].get("chunk") == 1 else None
        wrong = [*_events(scenario, run, whole)]
        yield from _end(scenario, run, requests, events_are_right=not wrong)
        yield from wrong
        if wrong:
            continue
        yield from _shown_at_the_end(scenario, run, requests)
        late = [request.waited_for for request in requests if request.waited_for is not None]
        if late:
            expected = f"after the byte that completes the event, and before the next byte: {late[0]}"
            yield Finding("late", PROMPTNESS, expected, "the client delivered the event after a later byte")


def _events(scenario: Scenario, run: ClientRun, whole: ClientRun | None) -> Iterator[Finding]:
    """Compare the members of each event that the client shows.

    Args:
        scenario: Scenario with the expected events.
        run: Run to judge.
        whole: Run with the same stream as one chunk, if `run` received the stream byte by byte.
    """
    expected = scenario.expect.get("events", [])
    got = [_comparable(event) for event in run.events]
    if _differing(expected, got) == set():
        return
    rules = _violated(scenario.requirements, expected, got)
    if whole is not None:
        got_whole = [_comparable(event) for event in whole.events]
        if _differing(expected, got_whole) == set():
            rules = (_CHUNKS,)
        elif got_whole == got:
            rules = tuple(rule for rule in rules if rule != _CHUNKS)
    else:
        rules = tuple(rule for rule in rules if rule != _CHUNKS) or rules
    if rules:
        yield Finding("events", rules, f"events: {_short(expected)}", _short(got))


def _violated(
    requirements: tuple[str, ...], expected: Sequence[Members], got: Sequence[Members]
) -> tuple[str, ...]:
    """Return those requirements of a scenario that can explain the difference between two lists of events."""
    if _differing(expected, _without_empty(got, expected)) == set():
        # Each block with only `retry` would be such an event. Other scenarios judge this.
        return () if requirements == _ONLY_ABOUT_RETRY else (_WITHOUT_DATA,)
    if _WITHOUT_DATA in requirements and _differing(_without_empty(expected, got), got) == set():
        return (_WITHOUT_DATA,)
    differing = _differing(expected, got)
    if differing == {"id"} and all(
        event["id"] in ("", wanted["id"]) for event, wanted in zip(got, expected, strict=True)
    ):
        return (_KEPT_ID,)
    explained = {"id": _ID, "type": _TYPE}
    if len(differing) == 1 and (
        likely := explained.get(next(iter(differing)), frozenset()) & {*requirements}
    ):
        return tuple(sorted(likely))
    others = [rule for rule in requirements if rule not in {_WITHOUT_DATA, *PROMPTNESS, *_ID, *_TYPE}]
    return tuple(others) or requirements


def _differing(expected: Sequence[Members], got: Sequence[Members]) -> set[str]:
    """Return the names of the members that differ, or `{"count"}` if the numbers of events differ."""
    if len(got) != len(expected):
        return {"count"}
    return {
        name
        for event, wanted in zip(got, expected, strict=True)
        for name in event.keys() & wanted.keys()
        if event[name] != wanted[name]
    }


def _without_empty(events: Sequence[Members], others: Sequence[Members]) -> Sequence[Members]:
    """Remove the events with empty data that the other list does not have at the same place."""
    kept: list[Members] = []
    for event in events:
        wanted = others[len(kept)]["data"] if len(kept) < len(others) else None
        if event["data"] != "" or wanted == "":
            kept.append(event)
    return kept


def _comparable(report: Members) -> dict[str, Any]:
    names = {"type": "type", "data": "data", "last_event_id": "id"}
    return {name: report[member] for member, name in names.items() if member in report}


def _end(
    scenario: Scenario, run: ClientRun, requests: list[RecordedRequest], *, events_are_right: bool
) -> Iterator[Finding]:
    wanted = scenario.expect["end"]
    expected = " or ".join(wanted)
    if events_are_right and not scenario.expect.get("last_event_id", "").isascii() and not run.died:
        # A client that cannot send this id with its next request fails after the events. A scenario about
        # reconnection judges this.
        return
    if run.hung:
        yield Finding("hung", scenario.requirements, f"an end: {expected}", "no end in time")
    elif run.died or run.end is None:
        yield Finding("died", scenario.requirements, f"an end: {expected}", run.died)
    elif run.end["end"] not in wanted:
        yield Finding("end", scenario.requirements, expected, run.end["end"])
    elif (
        events_are_right
        and run.end["end"] == "failed"
        and requests
        and all(_is_valid_stream(each) for each in requests)
    ):
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


def _missing_request(scenario: Scenario, requests: list[RecordedRequest]) -> Finding | None:
    script = scenario.scripts.get("streams", ())
    least = scenario.expect.get("streams", {"least": len(script)})["least"]
    if len(requests) >= least:
        return None
    is_lost = bool(requests) and (requests[-1].exchange or {}).get("then") == "close"
    rules = _RECONNECTION if is_lost else scenario.requirements
    return Finding("count", rules, f"number of requests: at least {least}", str(len(requests)))


def _requests(scenario: Scenario, requests: list[RecordedRequest]) -> Iterator[Finding]:
    most = scenario.expect.get("streams", {}).get("most", len(requests))
    if len(requests) > most:
        yield Finding(
            "count", scenario.requirements, f"number of requests: at most {most}", str(len(requests))
        )
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
        asked = (request.exchange or {}).get("asked", {})
        least = asked.get("wait_ms", {}).get("least", 0)
        elapsed = request.at - (before.last_sent_at or before.at)
        if elapsed + CLOCK_TOLERANCE < least / 1000:
            expected = f"at least {least} ms between the end of a response and the next request"
            yield Finding(
                "wait", tuple(asked.get("rules", scenario.requirements)), expected, f"{elapsed * 1000:.0f} ms"
            )
            return  # a client that ignores each `retry` field does not wait later either


def _shown_at_the_end(
    scenario: Scenario, run: ClientRun, requests: list[RecordedRequest]
) -> Iterator[Finding]:
    expect, end = scenario.expect, run.end or {}
    if "last_event_id" in expect:
        shown = [end["last_event_id"]] if "last_event_id" in end else []
        # A server receives the header without the white space around its value.
        header = [request.last_event_id or "" for request in requests[len(scenario.scripts["streams"]) :]]
        wanted = expect["last_event_id"]
        if not wanted.isascii():
            header = []  # a scenario about reconnection judges how such an id is sent
        wrong = [value for value in shown if value != wanted]
        wrong += [value for value in header if value != wanted.strip(" \t")]
        if wrong:
            likely = tuple(rule for rule in scenario.requirements if rule in _ID)
            rules = likely or scenario.requirements
            yield Finding("id", rules, f"the last event id {wanted!r}", repr(wrong[0]))
    wanted_ms = expect.get("retry_ms")
    if wanted_ms is not None and "retry_ms" in end and end["retry_ms"] != wanted_ms:
        got = f"{end['retry_ms']} ms"
        yield Finding("retry", scenario.requirements, f"a reconnection time of {wanted_ms} ms", got)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:140]} … {text[-140:]}"
