"""What a client did wrong, by the record of a conversation: its requests with their times, and what it reported."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

from tidewire_conformance.clients.player.conversation import ClientRun, Conversation, RecordedRequest
from tidewire_conformance.clients.player.reported_values_and_texts import (
    ClientOutput,
    printable,
    same,
    text_of,
)
from tidewire_conformance.clients.player.scenario import JOB, JOB_2, Members, Scenario

_SECRET = 12
"""Characters from which on a token is no word that may stand in a report for another reason."""

_GRAIN = 0.002
"""Seconds by which clocks and timers may differ."""

_ALIKE = 1.1
"""Waits of which the longest is not so many times as long as the shortest were not drawn: the nine shortest of thirteen that
were are as near to each other once in ten million times."""

_KEY_LENGTH = 20
"""Visible ASCII characters that 128 random bits take at least."""

_DRAWN_ANEW = 12
"""Places in which two keys differ at least that were drawn: of 20 characters one or two are alike by chance."""

_LANE_NAMES = {"streams": "event stream", "submits": "submit", "cancels": "cancel", "unknown": "request"}


@dataclass(frozen=True)
class Finding:
    """One thing that was not as it has to be."""

    kind: str
    """What it is about: cursor, path, header, wait, drawn, repeat, count, foreign, open, pace, hung, died, promptness,
    end, problem, value, again, text, void, order, never, kept, items, incomplete, secret."""
    rules: tuple[str, ...]
    """The sentences that are broken."""
    expected: str
    got: str


def judge(scenario: Scenario, conversation: Conversation) -> list[Finding]:
    """Compare a conversation with what its scenario expects; nothing to find: the client is right."""
    rules = scenario.requirements
    found = [
        *_requests(scenario, conversation),
        *_drawn(scenario, conversation),
        *_counts(scenario, conversation),
        *_runs(scenario, conversation),
        *_secrets(conversation.runs),
    ]
    told = ClientOutput.of(run.saw() for run in conversation.runs)
    found += _never(scenario, told)
    found += _kept(conversation.runs, rules)
    if not any(run.hung or run.died for run in conversation.runs):
        found += _values(scenario, conversation.runs[-1], told)
        found += _texts(scenario, told)
    return [replace(each, expected=printable(each.expected), got=printable(each.got)) for each in found]


# ---- what it asked ---------------------------------------------------------------------------------------------


def _requests(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    before: dict[str, RecordedRequest] = {}
    for talk in conversation.talks:
        asked = (talk.exchange or {}).get("asked", {})
        rules = tuple(asked.get("rules", scenario.requirements))
        name = f"{_LANE_NAMES.get(talk.lane, talk.lane)} {talk.number + 1}"
        if talk.foreign and "authorization" in talk.headers:
            yield Finding("foreign", ("TW-SEC-012",), "no credentials to another origin", "Authorization")
        if talk.lane == "streams":
            yield from _stream_request(talk, asked, rules, name, conversation)
        if talk.lane == "submits" and "text/event-stream" in talk.headers.get("accept", ""):
            yield from _coding(talk, name)
        key = talk.headers.get("idempotency-key")
        if talk.lane == "submits" and key is not None and len(key) < _KEY_LENGTH:
            expected = f"{name}: an Idempotency-Key of at least {_KEY_LENGTH} characters, for 128 random bits"
            yield Finding("header", ("TW-JOB-036",), expected, key)
        for header, value in asked.get("headers", {}).items():
            got = talk.headers.get(header.lower())
            if got != value:
                yield Finding("header", rules, f"{name}: {header}: {value}", f"{header}: {got}")
        earlier = before.get(talk.lane)
        if earlier is None and talk.lane == "streams":
            earlier = before.get("submits")
        if earlier is not None:
            yield from _after(talk, earlier, asked, rules, name, conversation.room)
        if talk.in_vain is not None:
            yield Finding(
                "promptness", rules, f"while {name} was open: {talk.in_vain}", "nothing of the kind"
            )
        yield from _pace(talk, rules, name, conversation.room)
        if (talk.exchange or {}).get("closes") and (talk.closed is None or talk.swallowed):
            got = (
                "it read all of an endless line"
                if talk.swallowed
                else "it was open when the client had ended"
            )
            yield Finding("open", rules, f"the client closes the connection of {name}", got)
        before[talk.lane] = talk


def _stream_request(
    talk: RecordedRequest, asked: Members, rules: tuple[str, ...], name: str, conversation: Conversation
) -> Iterator[Finding]:
    if "text/event-stream" not in talk.headers.get("accept", ""):
        got = f"Accept: {talk.headers.get('accept')}"
        yield Finding("header", ("TW-CLI-008",), f"{name}: Accept: text/event-stream", got)
    yield from _coding(talk, name)
    path = asked.get("path", f"/v1/jobs/{JOB}/events").replace("{job}", JOB).replace("{job2}", JOB_2)
    without_cursor = talk.target.partition("?after=")[0].partition("&after=")[0]
    # A page may ask for problems within the stream.
    if path not in {talk.target, without_cursor, without_cursor.removesuffix("?errors=inband")}:
        yield Finding("path", rules, f"{name}: GET {path}", f"GET {talk.target}")
    if "cursor" in asked:
        wanted = asked["cursor"] if isinstance(asked["cursor"], list) else [asked["cursor"]]
        allowed = {talk.held if cursor == "held" else cursor for cursor in wanted}
        if talk.number == 0 and (conversation.lane("attaching") or conversation.lane("submits")):
            # The job was read before, in its own right or as the answer to a submit, and stood there.
            allowed.add("1-1")
        if talk.cursor not in allowed:
            expected = " or ".join(str(cursor or "no cursor") for cursor in allowed)
            yield Finding("cursor", rules, f"{name}: {expected}", talk.cursor or "no cursor")


def _coding(talk: RecordedRequest, name: str) -> Iterator[Finding]:
    if (coding := talk.headers.get("accept-encoding")) != "identity":
        got = f"Accept-Encoding: {coding}"
        yield Finding("header", ("TW-SEC-023",), f"{name}: Accept-Encoding: identity", got)


def _pace(talk: RecordedRequest, rules: tuple[str, ...], name: str, room: float) -> Iterator[Finding]:
    """What is read in proportion to its length takes as much longer as it is longer, on any machine."""
    pace = (talk.exchange or {}).get("pace")
    long, short = talk.lasted("long"), talk.lasted("short")
    if pace is None or not long or not short:
        return
    most = max(pace["or_ms"] / 1000 * room, pace["times"] * max(short))
    if max(long) > most:
        expected = f"{name}: the long one within {most:.2f} s, {pace['times']} times a short one"
        got = f"{max(long):.2f} s, where a short one took {max(short):.3f} s"
        yield Finding("pace", tuple(pace.get("rules", rules)), expected, got)


def _after(
    talk: RecordedRequest,
    earlier: RecordedRequest,
    asked: Members,
    rules: tuple[str, ...],
    name: str,
    room: float,
) -> Iterator[Finding]:
    waited = talk.at - (earlier.said or earlier.at)
    bounds = asked.get("wait_ms", {})
    # Negative where it asked before the answer had ended.
    if "least" in bounds and waited + _GRAIN < bounds["least"] / 1000:
        expected = f"{name}: at least {bounds['least']} ms after what was said before"
        yield Finding("wait", rules, expected, f"{waited * 1000:.0f} ms")
    if "most" in bounds and waited > (most := bounds["most"] * room) / 1000:
        expected = f"{name}: at most {most:.0f} ms after what was said before"
        yield Finding("wait", rules, expected, f"{waited * 1000:.0f} ms")
    if asked.get("repeats"):
        key, key_before = (one.headers.get("idempotency-key") for one in (talk, earlier))
        if key is None or key != key_before:
            yield Finding(
                "repeat", rules, f"{name}: Idempotency-Key: {key_before}", f"Idempotency-Key: {key}"
            )
        if talk.body != earlier.body:
            yield Finding("repeat", rules, f"{name}: {earlier.body!r}", repr(talk.body))
    if asked.get("repeats") is False:
        key, key_before = (one.headers.get("idempotency-key", "") for one in (talk, earlier))
        if key and _differ(key, key_before) < _DRAWN_ANEW:
            yield Finding("header", rules, f"{name}: an Idempotency-Key that was drawn anew", key)


def _differ(one: str, other: str) -> int:
    """In how many places: few for a key that is counted up, or made of the time."""
    return sum(mine != theirs for mine, theirs in zip_longest(one, other))


def _drawn(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    """Waits that are drawn are not alike: a quarter of them may have met a machine that was busy, and is left out."""
    if not scenario.expect.get("drawn"):
        return
    talks = conversation.lane("streams")
    waits = sorted(talk.at - (before.said or before.at) for before, talk in pairwise(talks))
    alike = waits[: len(waits) * 3 // 4]
    if len(alike) > 1 and alike[-1] < _ALIKE * alike[0]:
        told = ", ".join(f"{wait * 1000:.0f}" for wait in waits)
        expected = "waits that are drawn at random, from half to one and a half times their base"
        yield Finding("drawn", scenario.requirements, expected, f"waits in ms: {told}")


def _counts(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    rules = scenario.requirements
    for lane, name in _LANE_NAMES.items():
        script = scenario.lanes.get(lane, ())
        got = len(conversation.lane(lane))
        least = sum(not exchange.get("repeat") for exchange in script)
        bounds: Mapping[str, int] = {"least": least, "most": least}
        if script and script[-1].get("repeat"):
            bounds = {"least": least}
        if lane == "streams":
            bounds = scenario.expect.get("streams", bounds)
        wrong = got < bounds.get("least", 0) or got > bounds.get("most", got)
        if wrong:
            about = ("TW-CLI-049",) if lane == "cancels" and not script else rules
            expected = " and ".join(f"at {word} {number}" for word, number in bounds.items())
            yield Finding("count", about, f"requests of the kind {name}: {expected}", str(got))
    if any(action["do"] == "discover" for action in scenario.actions) and not conversation.lane("discovery"):
        yield Finding("count", rules, "a request for discovery", "none")
    strangers = [talk for talk in conversation.talks if talk.foreign]
    if strangers and not scenario.expect.get("foreign"):
        yield Finding("foreign", rules, "no request to another origin", f"{len(strangers)} of them")


# ---- how it ended ----------------------------------------------------------------------------------------------


def _runs(scenario: Scenario, conversation: Conversation) -> Iterator[Finding]:
    rules = tuple(scenario.expect.get("rules", scenario.requirements))
    for number, run in enumerate(conversation.runs):
        last = number == len(scenario.actions) - 1
        action = scenario.actions[number]
        wanted = scenario.expect["end"] if last else [action.get("end", "stopped")]
        expected = " or ".join(wanted)
        if run.hung:
            yield Finding("hung", rules, f"an end: {expected}", "none in time")
        elif run.died:
            yield Finding("died", rules, f"an end: {expected}", run.died)
        elif run.end is not None and run.end["end"] not in wanted:
            detail = run.end.get("detail", "")
            yield Finding(
                "end", rules, expected, f"{run.end['end']} ({detail})" if detail else run.end["end"]
            )
        elif run.end is not None and last:
            yield from _end(scenario.expect, run.end, rules)


def _secrets(runs: Iterable[ClientRun]) -> Iterator[Finding]:
    for run in runs:
        tokens = [token for token in run.command.get("credentials", ()) if len(token) >= _SECRET]
        if any(token in json.dumps([report for _, report in run.reports]) for token in tokens):
            yield Finding("secret", ("TW-SEC-013",), "no credentials in what is told of an end", "a token")


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
        yield Finding("incomplete", rules, f"the value {mark} marked as incomplete", "the contrary")
    if "items" in expect:
        got = [{"status": item.get("status"), "code": item.get("code")} for item in end.get("items", ())]
        wanted = [{"status": item["status"], "code": item.get("code")} for item in expect["items"]]
        if got != wanted:
            yield Finding("items", rules, f"items: {wanted}", str(got))


# ---- what it handed over ---------------------------------------------------------------------------------------


def _values(scenario: Scenario, run: ClientRun, told: ClientOutput) -> Iterator[Finding]:
    expect, rules = scenario.expect, scenario.requirements
    wanted = [expect["value"]] if "value" in expect else expect.get("values", [])
    for index, value in enumerate(wanted):
        seen = told.values.get(index, [])
        if seen and not same(seen[-1], value):
            yield Finding(
                "value", rules, f"the last value of item {index}: {_short(value)}", _short(seen[-1])
            )
        elif not seen and value is not None:
            yield Finding("value", rules, f"a value of item {index}: {_short(value)}", "none")
    end = run.end or {}
    if "value" in expect and "value" in end and not same(end["value"], expect["value"]):
        yield Finding("value", rules, f"at the end: {_short(expect['value'])}", _short(end["value"]))
    reports = sum(map(len, told.values.values()))
    if "told" in expect and reports > expect["told"]["most"]:
        most = expect["told"]["most"]
        expected = f"at most {most} values are handed over, one for each change"
        yield Finding("again", rules, expected, str(reports))
    if "states" in expect:
        yield from _order(expect["states"], told.values.get(0, []), rules)


def _never(scenario: Scenario, told: ClientOutput) -> Iterator[Finding]:
    for text in scenario.expect.get("never", ()):
        if any(text in json.dumps(value, ensure_ascii=False) for value in told.everything()):
            yield Finding(
                "never", scenario.requirements, f"nothing that holds {text!r} is handed over", "it was"
            )


def _order(states: Iterable[Any], seen: Iterable[Any], rules: tuple[str, ...]) -> Iterator[Finding]:
    """What was seen follows the states: some may be passed over, none comes again after another one."""
    left = list(states)
    for value in seen:
        while left and not same(left[0], value):
            left.pop(0)
        if not left:
            expected = f"values in this order, each once: {_short([*states])}"
            yield Finding("order", rules, expected, _short([*seen]))
            return


def _texts(scenario: Scenario, told: ClientOutput) -> Iterator[Finding]:
    expect, rules = scenario.expect, scenario.requirements
    if "text" not in expect:
        return
    text, void = told.text(0)
    if text != expect["text"]:
        yield Finding("text", rules, f"text handed over: {_short(expect['text'])}", _short(text))
    wanted = expect.get("void", 0)
    if void != wanted:
        yield Finding("void", rules, f"code points said to be void: {wanted}", str(void))
    last = told.values.get(0, [None])[-1]
    if text_of(last) is not None and text_of(last) != text:
        yield Finding("text", rules, f"text handed over is that of the value: {_short(last)}", _short(text))


def _kept(runs: Iterable[ClientRun], rules: tuple[str, ...]) -> Iterator[Finding]:
    for run in runs:
        kept = (run.end or {}).get("kept")
        if kept is None:
            continue
        then = [report["value"] for report in run.saw()]
        if not same(kept, then):
            expected = f"values that were handed over stay as they were: {_short(then)}"
            yield Finding("kept", ("TW-DIF-033", *rules), expected, _short(kept))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:140]} … {text[-140:]}"
