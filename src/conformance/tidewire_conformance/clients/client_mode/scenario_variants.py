"""Unusual servers that do nothing wrong: a scenario as one of them would play it, which a client has to pass as well.

A twin is judged by the same end, values, cursors and numbers of requests as its scenario. What breaks in it alone is
the sentence of its variant. Left out are scenarios about exact bytes and waits, where another server is another case.
`a space after the colon` stands for its contrary, too: the scenarios themselves have none there. They also declare no
optional capability, as far as they do not need one.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidewire_conformance.clients.player.render_stream_steps import hello_data
from tidewire_conformance.clients.player.scenario import Members, Scenario
from tidewire_conformance.judging.apply_diffs import Refused, State, apply

Step = Members
_STEPS = {"data", "hello", "pause_ms", "until_saw", "until_asked"}
_SHAPED = {"cut_after", "line_end", "framing", "chunk", "text"}
_UNFIT = frozenset({"waiting", "resync"})
"""Files about waits and breaches: what they are about is not to be varied."""
FEW: Final = ("reset-after-an-event", "rollback", "code-points", "batch")
"""Scenarios that each variant plays by default: a cut, text that is taken back, long characters, several items."""


@dataclass(frozen=True)
class Variant:
    """One unusual server."""

    about: str
    sentences: tuple[str, ...]
    """What a client breaks that passes the scenario, and not this."""
    change: Callable[[Scenario], Scenario]
    """Raises `ValueError` where it does not go with a scenario."""


# ---- streams as they are framed ----------------------------------------------------------------------------------


def _streams(change: Callable[[Members], Members]) -> Callable[[Scenario], Scenario]:
    def changed(scenario: Scenario) -> Scenario:
        streams = tuple(
            change(exchange) if "events" in exchange else exchange for exchange in scenario.lanes["streams"]
        )
        return replace(scenario, lanes={**scenario.lanes, "streams": streams})

    return changed


def _with(**members: Any) -> Callable[[Scenario], Scenario]:
    return _streams(lambda exchange: {**exchange, **members})


def _old_http(exchange: Members) -> Members:
    return {**exchange, "framing": "http/1.0"}


def _marked(exchange: Members) -> Members:
    return {**exchange, "events": [{"bytes": "\ufeff"}, *exchange["events"]]}


def _each(change: Callable[[Step], Iterable[Step]]) -> Callable[[Scenario], Scenario]:
    return _streams(
        lambda exchange: {**exchange, "events": [new for step in exchange["events"] for new in change(step)]}
    )


def _is_event(step: Step) -> bool:
    return "data" in step or "hello" in step


def _commented(step: Step) -> Iterator[Step]:
    yield step
    if _is_event(step) and step.get("event") != "done":
        yield {"bytes": ": id:9-9\n:data:no\n\n:\n\n"}


def _amid_weather(step: Step) -> Iterator[Step]:
    yield step
    if _is_event(step) and step.get("event") not in {"done", "goaway", "problem"}:
        yield {"event": "example.weather", "data": {"rain": [True]}}


def _spaced(step: Step) -> Iterator[Step]:
    if not _is_event(step):
        yield step
        return
    fields = {"id": step.get("id"), "event": "hello" if "hello" in step else step.get("event")}
    retry = step.get("retry", 5 if "hello" in step else None)
    lines = [f"{name}: {value}\n" for name, value in {**fields, "retry": retry}.items() if value is not None]
    yield {"bytes": "".join(lines) + f"data: {_dumps(_data(step))}\n\n"}


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _data(step: Step) -> Any:
    return hello_data(step["hello"]) if "hello" in step else step["data"]


# ---- JSON as it is written ---------------------------------------------------------------------------------------


def _backwards(value: Any) -> Any:
    match value:
        case dict():
            return {name: _backwards(value[name]) for name in reversed(value)}
        case list():
            return [_backwards(one) for one in value]
        case _:
            return value


def _written_otherwise(step: Step) -> Iterator[Step]:
    if not _is_event(step):
        yield step
        return
    rest = {name: value for name, value in step.items() if name not in {"data", "hello"}}
    if "hello" in step:
        rest = {"event": "hello", "retry": step.get("retry", 5)}
        rest = rest if rest["retry"] is not None else {"event": "hello"}
    # A tab and spaces; a line end would end the field.
    text = json.dumps(_backwards(_data(step)), separators=(" ,\t", " :  "), ensure_ascii=True)
    yield {**rest, "text": f" {text} "}


def _with_more(value: Any) -> Any:
    return {**value, "x_since_later": {"a": [None]}} if isinstance(value, dict) else value


def _amid_the_unknown(scenario: Scenario) -> Scenario:
    def more(step: Step) -> Iterator[Step]:
        if "hello" in step:
            yield {**step, "hello": _with_more(step["hello"])}
        elif "data" in step:
            data = _with_more(step["data"])
            if step.get("event") == "snapshot":
                # Not in the items: the digest of `done` is made of all that is in them.
                data["state"] = _with_more(data["state"])
            yield {**step, "data": data}
        else:
            yield step

    changed = _each(more)(scenario)
    lanes = {
        lane: tuple(
            {name: _with_more(value) if name in {"job", "problem"} else value for name, value in each.items()}
            for each in exchanges
        )
        for lane, exchanges in changed.lanes.items()
    }
    return replace(changed, lanes=lanes, discovery=_with_more(scenario.discovery))


# ---- the same history, told otherwise ----------------------------------------------------------------------------


def _histories(change: Callable[[Step, State, State], Step]) -> Callable[[Scenario], Scenario]:
    """Change each diff, where the states before and after it are known."""

    def changed(scenario: Scenario) -> Scenario:
        states: dict[str, State] = {}

        def follow(exchange: Members) -> Members:
            held: State | None = None
            steps = []
            for step in exchange["events"]:
                new = step
                if step.get("event") == "snapshot":
                    held = State(step["data"]["state"], tuple(step["data"]["columns"]))
                elif "id" in step and "event" not in step:
                    before = held or states.get(_before(step))
                    if before is None:
                        raise ValueError("a diff on what is not known")
                    held = apply(before, step["data"])
                    new = change(step, before, held)
                if "id" in step and held is not None:
                    states[step["id"]] = held
                steps.append(new)
            return {**exchange, "events": steps}

        return _streams(follow)(scenario)

    return changed


def _before(step: Step) -> str:
    epoch, _, seq = step["id"].partition("-")
    data = step["data"]
    return f"{epoch}-{data.get('on', int(seq) - 1) if isinstance(data, dict) else int(seq) - 1}"


def _in_full(step: Step, before: State, _after: State) -> Step:
    data = step["data"]
    if isinstance(data, str):
        data = {"ops": [["a", before.columns[0], data]]}
    elif isinstance(data, list):
        data = {"ops": data}
    return {**step, "data": data}


def _as_snapshot(step: Step, _before: State, after: State) -> Step:
    data = {"state": after.value, "columns": [*after.columns], "reason": "compacted"}
    return {"id": step["id"], "event": "snapshot", "data": data}


def _merged(scenario: Scenario) -> Scenario:
    """Two diffs that follow each other as one."""
    if any({"stop_at", "cancel_at"} & action.keys() for action in scenario.actions):
        raise ValueError("its user waits for a value on the way")
    if scenario.area == "ids":
        raise ValueError("it is about single ids")
    if "void" in scenario.expect:
        raise ValueError("what is appended and taken back in one diff never was")

    def merge(exchange: Members) -> Members:
        steps: list[Step] = []
        columns: list[str] = ["/items/0/value"]
        for step in exchange["events"]:
            if step.get("event") == "snapshot":
                columns = step["data"]["columns"]
            last = steps[-1] if steps else {}
            if _is_list(last) and _is_list(step) and _before(step) == last["id"]:
                ops = [*_ops(last["data"], columns), *_ops(step["data"], columns)]
                on = int(_before(last).partition("-")[2])
                checks = step["data"].get("check", []) if isinstance(step["data"], dict) else []
                steps[-1] = {"id": step["id"], "data": {"ops": ops, "on": on, "check": checks}}
            else:
                steps.append(step)
        return {**exchange, "events": steps}

    return _streams(merge)(scenario)


def _is_list(step: Step) -> bool:
    return "id" in step and "event" not in step and "retry" not in step


def _ops(data: Any, columns: list[str]) -> list[Any]:
    if isinstance(data, str):
        return [["a", columns[0], data]]
    found: list[Any] = data["ops"] if isinstance(data, dict) else data
    return found


# ---- answers -----------------------------------------------------------------------------------------------------


def _busy_once(scenario: Scenario) -> Scenario:
    if "submits" in scenario.lanes or len(scenario.actions) > 1 or "then_job" in scenario.actions[0]:
        raise ValueError("its first answer is another one")
    first = {
        "status": 429,
        "headers": {"Retry-After": "1"},
        "problem": {"code": "rate_limited", "retryable": True, "retry_after_ms": 1000},
        "asked": {"cursor": None},
    }
    bounds = {name: count + 1 for name, count in scenario.expect.get("streams", {}).items()}
    expect = {**scenario.expect, "streams": bounds} if bounds else scenario.expect
    streams = (first, *scenario.lanes["streams"])
    return replace(scenario, lanes={**scenario.lanes, "streams": streams}, expect=expect)


def _late(scenario: Scenario) -> Scenario:
    return replace(scenario, late=0.3)


ONCE = "TW-CLI-052"
"""Each change exactly once and in order: what any server is owed whose way is not named by a sentence of its own."""

VARIANTS: Final[Mapping[str, Variant]] = {
    "crlf": Variant("lines end in CR LF", ("TW-FRM-023",), _with(line_end="crlf")),
    "cr": Variant("lines end in CR", ("TW-FRM-023",), _with(line_end="cr")),
    "bytes": Variant("each byte is a chunk", ("TW-FRM-026",), _with(chunk=1)),
    "comments": Variant("comments between events", ("TW-FRM-028",), _each(_commented)),
    "members": Variant("unknown members everywhere", ("TW-OVR-009",), _amid_the_unknown),
    "weather": Variant("unknown ephemeral events", ("TW-FRM-045",), _each(_amid_weather)),
    "json": Variant("members in another order, with spaces", (ONCE, "TW-OVR-001"), _each(_written_otherwise)),
    "http-1": Variant("HTTP/1.0, a body that ends with its connection", (ONCE,), _streams(_old_http)),
    "mark": Variant("a byte order mark before each stream", ("TW-FRM-022",), _streams(_marked)),
    "space": Variant("a space after the colon", ("TW-FRM-027",), _each(_spaced)),
    "pointers": Variant("ops with whole pointers in place of a text", (ONCE, "TW-DIF-029"), _histories(_in_full)),
    "merged": Variant("several diffs as one", (ONCE, "TW-RES-030"), _merged),
    "snapshots": Variant("a snapshot in place of every diff", (ONCE, "TW-DIF-061"), _histories(_as_snapshot)),
    "busy": Variant("one 429 with Retry-After", ("TW-CLI-040",), _busy_once),
    "late": Variant("every answer 300 ms late", (ONCE,), _late),
}  # fmt: skip


def twins(scenarios: Iterable[Scenario], names: Iterable[str] = ()) -> Iterator[Scenario]:
    """The scenarios as unusual servers play them.

    Args:
        scenarios: As they are written.
        names: Of variants, each with every scenario that goes with it; `all` for all of them, `none` for nothing.
            By default a few scenarios with each.
    """
    asked = set(names)
    fit = [scenario for scenario in scenarios if _is_fit(scenario)]
    for name, variant in VARIANTS.items():
        if asked and not asked & {name, "all"}:
            continue
        for scenario in fit:
            if (asked or scenario.name in FEW) and (twin := _twin(scenario, name, variant)) is not None:
                yield twin


def _is_fit(scenario: Scenario) -> bool:
    if scenario.area in _UNFIT or "streams" not in scenario.lanes or scenario.log or scenario.patience > 10:
        return False
    exchanges = scenario.lanes["streams"]
    steps = [step for exchange in exchanges for step in exchange.get("events", ())]
    return (
        bool(steps)
        and not any(_SHAPED & exchange.keys() for exchange in exchanges)
        and all(_STEPS & step.keys() and not {"lie", "many", "pad"} & step.keys() for step in steps)
    )


def _twin(scenario: Scenario, name: str, variant: Variant) -> Scenario | None:
    try:
        twin = variant.change(scenario)
    except (ValueError, Refused):
        return None
    if (twin.lanes, twin.discovery, twin.late) == (scenario.lanes, scenario.discovery, scenario.late):
        return None
    lanes = {lane: tuple(map(_without_rules, exchanges)) for lane, exchanges in twin.lanes.items()}
    expect = {member: value for member, value in twin.expect.items() if member != "rules"}
    about = f"{variant.about[0].upper()}{variant.about[1:]}. {scenario.about}"
    return replace(twin, area=name, lanes=lanes, expect=expect, requirements=variant.sentences, about=about)


def _without_rules(exchange: Members) -> Members:
    if "asked" not in exchange:
        return exchange
    asked = {name: value for name, value in exchange["asked"].items() if name not in {"rules", "wait_ms"}}
    return {**exchange, "asked": asked}
