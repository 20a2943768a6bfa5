"""Judgment of a client by the requests that it sent, their times, and the reports that it wrote."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import dropwhile, pairwise, zip_longest
from typing import Any

from tidewire_conformance.clients.scenarios.client_output import ClientOutput, printable, same, text_of
from tidewire_conformance.clients.scenarios.conversation import ClientRun, Conversation, RecordedRequest
from tidewire_conformance.clients.scenarios.judge_event_streams import CLOCK_TOLERANCE, judge_event_streams
from tidewire_conformance.clients.scenarios.scenario import JOB, JOB_2, Finding, Members, Scenario

_MIN_SECRET_LENGTH = 12
"""Minimum length of a token that counts as leaked if a report contains it.

A shorter token could occur in a report by chance.
"""

_MIN_SPREAD = 1.1
"""Minimum ratio of the longest to the shortest wait. Below this ratio, the waits count as not random.

For the nine shortest of thirteen random waits, the probability of a smaller ratio is one in ten million.
"""

_MIN_KEY_LENGTH = 20
"""Minimum length, in visible ASCII characters, of an idempotency key with 128 random bits."""

_MIN_KEY_DIFFERENCES = 12
"""Minimum number of positions in which two random keys of 20 characters differ.

Only one or two of the 20 characters are equal by chance.
"""

_KIND_NAMES = {"streams": "event stream", "submits": "submit", "cancels": "cancel", "unknown": "request"}


def judge(scenario: Scenario, conversation: Conversation) -> list[Finding]:
    """Compare a recorded conversation with the expectations of its scenario.

    The result is an empty list if the client is correct.
    """
    if scenario.is_of_any_client:
        found = [*judge_event_streams(scenario, conversation)]
        return [replace(each, expected=printable(each.expected), got=printable(each.got)) for each in found]
    rules = scenario.requirements
    found = [
        *_requests(scenario, conversation),
        *_randomness(scenario, conversation),
        *_counts(scenario, conversation),
        *_runs(scenario, conversation),
        *_leaked_secrets(conversation.runs),
    ]
    output = ClientOutput.of(run.values() for run in conversation.runs)
    found += _forbidden_texts(scenario, output)
    found += _retained_values(conversation.runs, rules)
    if not any(run.hung or run.died for run in conversation.runs):
        found += _values(scenario, conversation.runs[-1], output)
        found += _texts(scenario, output)
    return [replace(each, expected=printable(each.expected), got=printable(each.got)) for each in found]


# ---- requests --------------------------------------------------------------------------------------------------


def _requests(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    before: dict[str, RecordedRequest] = {}
    for request in conversation.requests:
        asked = (request.exchange or {}).get("asked", {})
        rules = tuple(asked.get("rules", scenario.requirements))
        name = f"{_KIND_NAMES.get(request.kind, request.kind)} {request.number + 1}"
        if request.foreign and "authorization" in request.headers:
            yield Finding("foreign", ("TW-SEC-012",), "no credentials to another origin", "Authorization")
        if request.kind == "streams":
            yield from _stream_request(request, asked, rules, name, conversation)
        if request.kind == "submits" and "text/event-stream" in request.headers.get("accept", ""):
            yield from _header(request, name, "Accept-Encoding", "identity", ("TW-SEC-023",))
        key = request.headers.get("idempotency-key")
        if request.kind == "submits" and key is not None and len(key) < _MIN_KEY_LENGTH:
            expected = (
                f"{name}: an Idempotency-Key of at least {_MIN_KEY_LENGTH} characters, for 128 random bits"
            )
            yield Finding("header", ("TW-JOB-036",), expected, key)
        for header, value in asked.get("headers", {}).items():
            yield from _header(request, name, header, value, rules)
        earlier = before.get(request.kind)
        if earlier is None and request.kind == "streams":
            earlier = before.get("submits")
        if earlier is not None:
            yield from _timing_and_repetition(request, earlier, asked, rules, name, conversation.bound_factor)
        if request.waited_for is not None:
            yield Finding(
                "promptness",
                rules,
                f"while {name} was open: {request.waited_for}",
                "the client did not do this",
            )
        yield from _reading_pace(request, rules, name, conversation.bound_factor)
        if (request.exchange or {}).get("closes") and (request.closed is None or request.flood_read):
            got = (
                "the client read all of an endless line"
                if request.flood_read
                else "the connection was still open after the client had reported the end of its command"
            )
            yield Finding("open", rules, f"the client closes the connection of {name}", got)
        before[request.kind] = request


def _stream_request(
    request: RecordedRequest, asked: Members, rules: tuple[str, ...], name: str, conversation: Conversation
) -> Iterator[Finding]:
    if "text/event-stream" not in request.headers.get("accept", ""):
        got = f"Accept: {request.headers.get('accept')}"
        yield Finding("header", ("TW-CLI-008",), f"{name}: Accept: text/event-stream", got)
    yield from _header(request, name, "Accept-Encoding", "identity", ("TW-SEC-023",))
    path = asked.get("path", f"/v1/jobs/{JOB}/events").replace("{job}", JOB).replace("{job2}", JOB_2)
    without_cursor = request.target.partition("?after=")[0].partition("&after=")[0]
    # A browser client may request errors as events in the stream, with `errors=inband`.
    if path not in {request.target, without_cursor, without_cursor.removesuffix("?errors=inband")}:
        yield Finding("path", rules, f"{name}: GET {path}", f"GET {request.target}")
    if "cursor" in asked:
        wanted = asked["cursor"] if isinstance(asked["cursor"], list) else [asked["cursor"]]
        allowed = {request.last_id if cursor == "held" else cursor for cursor in wanted}
        is_first = request.number == 0 or (request.last_id is None and None in allowed)
        has_job = bool(conversation.of_kind("attaching") or conversation.of_kind("submits"))
        if JOB_2 in path:
            # A read of the job counts only before the first request for its stream.
            earlier = [one.path for one in conversation.requests if one.at < request.at]
            has_job, is_first = f"/v1/jobs/{JOB_2}" in earlier, request.path not in earlier
        if is_first and has_job:
            # The client already has the job resource, whose cursor is 1-1, from a GET or from the response to its POST.
            allowed.add("1-1")
        if request.cursor not in allowed:
            expected = " or ".join(str(cursor or "no cursor") for cursor in allowed)
            unsent = "" if request.cursor else "TW-CLI-007"
            yield Finding("cursor", rules, f"{name}: {expected}", request.cursor or "no cursor", unsent)


def _header(
    request: RecordedRequest, name: str, header: str, value: str, rules: tuple[str, ...]
) -> Iterator[Finding]:
    got = request.headers.get(header.lower())
    if got != value:
        yield Finding("header", rules, f"{name}: {header}: {value}", f"{header}: {got}")


def _reading_pace(
    request: RecordedRequest, rules: tuple[str, ...], name: str, bound_factor: float
) -> Iterator[Finding]:
    """Check that the reading time is at most proportional to the length of the stream.

    The time for a long part of the stream is compared with the time for a short part of the same stream, so that the
    speed of the machine does not matter.
    """
    pace = (request.exchange or {}).get("pace")
    long, short = request.durations("long"), request.durations("short")
    if pace is None or not long or not short:
        return
    most = max(pace["or_ms"] / 1000 * bound_factor, pace["times"] * max(short))
    if max(long) > most:
        expected = f"{name}: the client reads the long part within {most:.2f} s, which is {pace['times']} times the time for the short part"
        got = f"{max(long):.2f} s for the long part, {max(short):.3f} s for the short part"
        yield Finding("pace", tuple(pace.get("rules", rules)), expected, got)


def _timing_and_repetition(
    request: RecordedRequest,
    earlier: RecordedRequest,
    asked: Members,
    rules: tuple[str, ...],
    name: str,
    bound_factor: float,
) -> Iterator[Finding]:
    elapsed = request.at - (earlier.last_sent_at or earlier.at)
    bounds = asked.get("wait_ms", {})
    # The delay is negative if the request arrived before the previous response ended.
    if "least" in bounds and elapsed + CLOCK_TOLERANCE < bounds["least"] / 1000:
        expected = f"{name}: at least {bounds['least']} ms after the previous response"
        yield Finding("wait", rules, expected, f"{elapsed * 1000:.0f} ms")
    if "most" in bounds and elapsed > (most := bounds["most"] * bound_factor) / 1000:
        expected = f"{name}: at most {most:.0f} ms after the previous response"
        yield Finding("wait", rules, expected, f"{elapsed * 1000:.0f} ms")
    if asked.get("repeats"):
        key, key_before = (one.headers.get("idempotency-key") for one in (request, earlier))
        # A submission that was refused with a problem did not run, so it may be repeated without a key.
        is_refused = "problem" in (earlier.exchange or {})
        if key != key_before or (key is None and not is_refused):
            about = rules if is_refused else ("TW-CLI-041", *rules)
            first = f": {key_before}" if key_before else ", which has none"
            expected = f"{name}: the Idempotency-Key of submit {earlier.number + 1}{first}"
            yield Finding("repeat", about, expected, f"Idempotency-Key: {key}")
        if request.body != earlier.body:
            yield Finding("repeat", rules, f"{name}: {earlier.body!r}", repr(request.body))
    if asked.get("repeats") is False:
        key, key_before = (one.headers.get("idempotency-key", "") for one in (request, earlier))
        if key and _differences(key, key_before) < _MIN_KEY_DIFFERENCES:
            yield Finding("header", rules, f"{name}: a new random Idempotency-Key", key)


def _differences(one: str, other: str) -> int:
    """Count the positions in which two keys differ.

    If a client uses a counter or a timestamp as the key, its keys differ in only a few positions.
    """
    return sum(a != b for a, b in zip_longest(one, other))


def _randomness(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    """Check that the waits between requests are random.

    The longest quarter of the waits is ignored, because a busy machine may have lengthened these waits.
    """
    if not scenario.expect.get("drawn"):
        return
    requests = conversation.of_kind("streams")
    waits = sorted(request.at - (before.last_sent_at or before.at) for before, request in pairwise(requests))
    alike = waits[: len(waits) * 3 // 4]
    if len(alike) > 1 and alike[-1] < _MIN_SPREAD * alike[0]:
        listed = ", ".join(f"{wait * 1000:.0f}" for wait in waits)
        expected = "random waits between 0.5 and 1.5 times the base delay"
        yield Finding("drawn", scenario.requirements, expected, f"waits in ms: {listed}")


def _counts(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    rules = scenario.requirements
    for kind, name in _KIND_NAMES.items():
        script = scenario.scripts.get(kind, ())
        got = len(conversation.of_kind(kind))
        least = sum(not exchange.get("repeat") for exchange in script)
        bounds: Mapping[str, int] = {"least": least, "most": least}
        if script and script[-1].get("repeat"):
            bounds = {"least": least}
        if kind == "streams":
            bounds = scenario.expect.get("streams", bounds)
        too_few = got < bounds.get("least", 0)
        if too_few or got > bounds.get("most", got):
            about = ("TW-CLI-049",) if kind == "cancels" and not script else rules
            expected = " and ".join(f"at {word} {number}" for word, number in bounds.items())
            unsent = "TW-CLI-009" if too_few and kind == "streams" else ""
            yield Finding("count", about, f"number of {name} requests: {expected}", str(got), unsent)
    if any(action["do"] == "discover" for action in scenario.actions) and not conversation.of_kind(
        "discoveries"
    ):
        yield Finding("count", rules, "a discovery request", "none")
    cross_origin = [request for request in conversation.requests if request.foreign]
    if cross_origin and not scenario.expect.get("foreign"):
        yield Finding("foreign", rules, "no request to another origin", f"{len(cross_origin)} requests")


# ---- end of each command ---------------------------------------------------------------------------------------


def _runs(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    rules = tuple(scenario.expect.get("rules", scenario.requirements))
    for number, run in enumerate(conversation.runs):
        last = number == len(scenario.actions) - 1
        action = scenario.actions[number]
        wanted = scenario.expect["end"] if last else [action.get("end", "stopped")]
        expected = " or ".join(wanted)
        if run.hung:
            yield Finding("hung", rules, f"an end: {expected}", "no end in time")
        elif run.died:
            yield Finding("died", rules, f"an end: {expected}", run.died)
        elif run.end is not None and run.end["end"] not in wanted:
            detail = run.end.get("detail", "")
            yield Finding(
                "end", rules, expected, f"{run.end['end']} ({detail})" if detail else run.end["end"]
            )
        elif run.end is not None and last:
            yield from _end(scenario.expect, run.end, rules)


def _leaked_secrets(runs: Iterable[ClientRun]) -> Iterator[Finding]:
    for run in runs:
        tokens = [token for token in run.command.get("credentials", ()) if len(token) >= _MIN_SECRET_LENGTH]
        if any(token in json.dumps([report for _, report in run.reports]) for token in tokens):
            yield Finding("secret", ("TW-SEC-013",), "no credentials in reports", "a token")


def _end(expect: Members, end: Members, rules: tuple[str, ...]) -> Iterator[Finding]:
    problem = end.get("problem") or {}
    if "status" in expect and expect["status"] not in {end.get("status"), problem.get("status")}:
        yield Finding("problem", rules, f"the status {expect['status']}", str(end.get("status")))
    if "code" in expect and problem.get("code") != expect["code"]:
        yield Finding("problem", rules, f"the code {expect['code']}", str(problem.get("code")))
    for name, value in expect.get("problem", {}).items():
        if not same(problem.get(name), value):
            yield Finding("problem", rules, f"the problem's {name}: {value!r}", repr(problem.get(name)))
    if "incomplete" in expect and bool(end.get("incomplete")) != expect["incomplete"]:
        mark = "is" if expect["incomplete"] else "is not"
        yield Finding("incomplete", rules, f"the value {mark} marked as incomplete", "the opposite")
    if "items" in expect:
        got = [{"status": item.get("status"), "code": item.get("code")} for item in end.get("items", ())]
        wanted = [{"status": item["status"], "code": item.get("code")} for item in expect["items"]]
        if got != wanted:
            yield Finding("items", rules, f"items: {wanted}", str(got))


# ---- delivered values ------------------------------------------------------------------------------------------


def _values(scenario: Scenario, run: ClientRun, output: ClientOutput) -> Iterator[Finding]:
    expect, rules = scenario.expect, scenario.requirements
    wanted = [expect["value"]] if "value" in expect else expect.get("values", [])
    for index, value in enumerate(wanted):
        seen = output.values.get(index, [])
        if seen and not same(seen[-1], value):
            yield Finding(
                "value", rules, f"the last value of item {index}: {_short(value)}", _short(seen[-1])
            )
        elif not seen and value is not None:
            yield Finding("value", rules, f"a value of item {index}: {_short(value)}", "none")
    end = run.end or {}
    if "value" in expect and "value" in end and not same(end["value"], expect["value"]):
        yield Finding("value", rules, f"at the end: {_short(expect['value'])}", _short(end["value"]))
    reports = sum(len(_from_first_value(values)) for values in output.values.values())
    if "told" in expect and reports > expect["told"]["most"]:
        most = expect["told"]["most"]
        expected = f"at most {most} delivered values, one for each change"
        yield Finding("again", rules, expected, str(reports))
    if "states" in expect:
        yield from _order(expect["states"], _from_first_value(output.values.get(0, [])), rules)


def _from_first_value(values: list[Any]) -> list[Any]:
    """Leave out the nulls before the first value. A client may deliver null for an item that has no value yet."""
    return [*dropwhile(lambda value: value is None, values)]


def _forbidden_texts(scenario: Scenario, output: ClientOutput) -> Iterator[Finding]:
    for text in scenario.expect.get("never", ()):
        if any(text in json.dumps(value, ensure_ascii=False) for value in output.everything()):
            yield Finding(
                "never",
                scenario.requirements,
                f"no delivered value contains {text!r}",
                "a delivered value contains this text",
            )


def _order(states: Iterable[Any], seen: Iterable[Any], rules: tuple[str, ...]) -> Iterator[Finding]:
    """Check that the delivered values follow the order of the states.

    The client may skip a state, but it must not return to an earlier one.
    """
    left = list(states)
    for value in seen:
        while left and not same(left[0], value):
            left.pop(0)
        if not left:
            expected = f"values in this order, each at most once: {_short([*states])}"
            yield Finding("order", rules, expected, _short([*seen]))
            return


def _texts(scenario: Scenario, output: ClientOutput) -> Iterator[Finding]:
    expect, rules = scenario.expect, scenario.requirements
    if "text" not in expect:
        return
    text, retracted = output.text(0)
    if text != expect["text"]:
        yield Finding("text", rules, f"delivered text: {_short(expect['text'])}", _short(text))
    wanted = expect.get("void", 0)
    if retracted != wanted:
        yield Finding("retracted", rules, f"code points reported as retracted: {wanted}", str(retracted))
    last = output.values.get(0, [None])[-1]
    if text_of(last) is not None and text_of(last) != text:
        yield Finding("text", rules, f"delivered text equal to the value: {_short(last)}", _short(text))


def _retained_values(runs: Iterable[ClientRun], rules: tuple[str, ...]) -> Iterator[Finding]:
    for run in runs:
        kept = (run.end or {}).get("kept")
        if kept is None:
            continue
        then = [report["value"] for report in run.values()]
        if not same(kept, then):
            expected = f"values that do not change after they were delivered: {_short(then)}"
            yield Finding("kept", ("TW-DIF-033", *rules), expected, _short(kept))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:140]} … {text[-140:]}"
