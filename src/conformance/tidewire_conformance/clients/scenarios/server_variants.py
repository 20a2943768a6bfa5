"""Server variants: servers that behave in an unusual but correct way.

A variant changes how the server of a scenario behaves, but it does not change the expected end, values, cursors or
request counts. A client has to pass both the original scenario and the changed one. If a client fails only the changed
scenario, it violates the requirement of the variant. Scenarios about exact bytes or delays have no variants, because a
different server would change what they test.

In the original scenarios, no space follows the colon of a field. In the variant `space-after-colon`, a space follows,
so both forms are tested. The servers of the original scenarios declare only the optional capabilities that the scenario
needs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidewire_conformance.clients.scenarios.render_stream_steps import (
    DEFAULT_RETRY_MS,
    compact,
    event_text,
    hello_data,
)
from tidewire_conformance.clients.scenarios.scenario import Members, Scenario
from tidewire_conformance.judging.apply_diffs import InvalidDiffError, State, apply

Step = Members
_STEPS = {"data", "hello", "pause_ms", "until_saw", "until_asked"}
_FRAMING_MEMBERS = {"cut_after", "line_end", "framing", "chunk", "text"}
_EXCLUDED_AREAS = frozenset({"waiting", "resync"})
"""Areas of scenarios about delays and protocol errors. A variant would change what these scenarios test."""
DEFAULT_SCENARIOS: Final = ("reset-after-an-event", "rollback", "code-points", "batch")
"""Scenarios that each variant plays by default.

They are about a cut connection, retracted text, characters of several bytes, and a job with several items.
"""


@dataclass(frozen=True)
class Variant:
    """Unusual but correct way for the server of a scenario to behave."""

    about: str
    requirements: tuple[str, ...]
    """Ids of the requirements that a client violates if it passes a scenario on the usual server but fails it on this
    variant.
    """
    change: Callable[[Scenario], Scenario]
    """Function that changes a scenario.

    The function raises `ValueError` if the variant is not compatible with the scenario.
    """


# ---- framing of streams ------------------------------------------------------------------------------------------


def _streams(change: Callable[[Members], Members]) -> Callable[[Scenario], Scenario]:
    def changed(scenario: Scenario) -> Scenario:
        streams = tuple(
            change(exchange) if "events" in exchange else exchange for exchange in scenario.scripts["streams"]
        )
        return replace(scenario, scripts={**scenario.scripts, "streams": streams})

    return changed


def _exchanges_with(**members: Any) -> Callable[[Scenario], Scenario]:
    return _streams(lambda exchange: {**exchange, **members})


def _with_http_1_0(exchange: Members) -> Members:
    # A scenario may set Transfer-Encoding itself, and a client would then decode a body that has no chunks.
    headers = {
        name: value
        for name, value in exchange.get("headers", {}).items()
        if name.lower() != "transfer-encoding"
    }
    return {**exchange, "framing": "http/1.0", "headers": headers}


def _with_byte_order_mark(exchange: Members) -> Members:
    return {**exchange, "events": [{"bytes": "\ufeff"}, *exchange["events"]]}


def _each_step(change: Callable[[Step], Iterable[Step]]) -> Callable[[Scenario], Scenario]:
    return _streams(
        lambda exchange: {**exchange, "events": [new for step in exchange["events"] for new in change(step)]}
    )


def _is_event(step: Step) -> bool:
    return "data" in step or "hello" in step


def _with_comments(step: Step) -> Iterator[Step]:
    yield step
    if _is_event(step) and step.get("event") != "done":
        yield {"bytes": ": id:9-9\n:data:no\n\n:\n\n"}


def _with_unknown_events(step: Step) -> Iterator[Step]:
    yield step
    if _is_event(step) and step.get("event") not in {"done", "goaway", "problem"}:
        yield {"event": "example.weather", "data": {"rain": [True]}}


def _with_space_after_colon(step: Step) -> Iterator[Step]:
    if not _is_event(step):
        yield step
        return
    kind = "hello" if "hello" in step else step.get("event")
    retry = step.get("retry", DEFAULT_RETRY_MS if "hello" in step else None)
    yield {"bytes": event_text(step.get("id"), kind, retry, compact(_data(step)), separator=": ")}


def _data(step: Step) -> Any:
    return hello_data(step["hello"]) if "hello" in step else step["data"]


# ---- formatting of JSON ------------------------------------------------------------------------------------------


def _reversed_members(value: Any) -> Any:
    match value:
        case dict():
            return {name: _reversed_members(value[name]) for name in reversed(value)}
        case list():
            return [_reversed_members(one) for one in value]
        case _:
            return value


def _rewritten_json(step: Step) -> Iterator[Step]:
    if not _is_event(step):
        yield step
        return
    rest = {name: value for name, value in step.items() if name not in {"data", "hello"}}
    if "hello" in step:
        rest = {"event": "hello", "retry": step.get("retry", DEFAULT_RETRY_MS)}
    # Put only tabs and spaces between the tokens, because a line end would end the data field.
    text = json.dumps(_reversed_members(_data(step)), separators=(" ,\t", " :  "), ensure_ascii=True)
    yield {**rest, "text": f" {text} "}


def _extended(value: Any) -> Any:
    return {**value, "x_since_later": {"a": [None]}} if isinstance(value, dict) else value


def _with_unknown_members(scenario: Scenario) -> Scenario:
    def more(step: Step) -> Iterator[Step]:
        if "hello" in step:
            yield {**step, "hello": _extended(step["hello"])}
        elif "data" in step:
            data = _extended(step["data"])
            if step.get("event") == "snapshot":
                # Do not add members to items, because the digest in `done` covers the items.
                data["state"] = _extended(data["state"])
            yield {**step, "data": data}
        else:
            yield step

    changed = _each_step(more)(scenario)
    scripts = {
        kind: tuple(
            {name: _extended(value) if name in {"job", "problem"} else value for name, value in each.items()}
            for each in exchanges
        )
        for kind, exchanges in changed.scripts.items()
    }
    return replace(changed, scripts=scripts, discovery=_extended(scenario.discovery))


# ---- the same states in other events -----------------------------------------------------------------------------


def _each_diff(change: Callable[[Step, State, State], Step]) -> Callable[[Scenario], Scenario]:
    """Return a function that changes each diff event of a scenario.

    The argument `change` receives the event and the states before and after it.
    """

    def changed(scenario: Scenario) -> Scenario:
        states: dict[str, State] = {}

        def follow(exchange: Members) -> Members:
            state: State | None = None
            steps = []
            for step in exchange["events"]:
                new = step
                if step.get("event") == "snapshot":
                    state = State(step["data"]["state"], tuple(step["data"]["columns"]))
                elif "id" in step and "event" not in step:
                    before = state or states.get(_before(step))
                    if before is None:
                        raise ValueError("the base state of a diff is unknown")
                    state = apply(before, step["data"])
                    new = change(step, before, state)
                if "id" in step and state is not None:
                    states[step["id"]] = state
                steps.append(new)
            return {**exchange, "events": steps}

        return _streams(follow)(scenario)

    return changed


def _before(step: Step) -> str:
    epoch, _, seq = step["id"].partition("-")
    data = step["data"]
    return f"{epoch}-{data.get('on', int(seq) - 1) if isinstance(data, dict) else int(seq) - 1}"


def _with_full_operations(step: Step, before: State, _after: State) -> Step:
    data = step["data"]
    return step if isinstance(data, dict) else {**step, "data": {"ops": _ops(data, before.columns)}}


def _as_snapshot(step: Step, _before: State, after: State) -> Step:
    data = {"state": after.value, "columns": [*after.columns], "reason": "compacted"}
    return {"id": step["id"], "event": "snapshot", "data": data}


def _with_merged_diffs(scenario: Scenario) -> Scenario:
    """Merge consecutive diffs of each stream into one."""
    if any({"stop_at", "cancel_at"} & action.keys() for action in scenario.actions):
        raise ValueError("the scenario waits for an intermediate value")
    if scenario.area == "ids":
        raise ValueError("the scenario tests the ids of single events")
    if "void" in scenario.expect:
        raise ValueError("the scenario tests retracted text, which a merged diff would hide")

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


def _ops(data: Any, columns: Sequence[str]) -> list[Any]:
    if isinstance(data, str):
        return [["a", columns[0], data]]
    found: list[Any] = data["ops"] if isinstance(data, dict) else data
    return found


# ---- responses ---------------------------------------------------------------------------------------------------


def _busy_once(scenario: Scenario) -> Scenario:
    if "submits" in scenario.scripts or len(scenario.actions) > 1 or "then_job" in scenario.actions[0]:
        raise ValueError("the scenario does not start with a single request for a stream")
    first = {
        "status": 429,
        "headers": {"Retry-After": "1"},
        "problem": {"code": "rate_limited", "retryable": True, "retry_after_ms": 1000},
        "asked": {"cursor": None},
    }
    bounds = {name: count + 1 for name, count in scenario.expect.get("streams", {}).items()}
    expect = {**scenario.expect, "streams": bounds} if bounds else scenario.expect
    streams = (first, *scenario.scripts["streams"])
    return replace(scenario, scripts={**scenario.scripts, "streams": streams}, expect=expect)


EXACTLY_ONCE = "TW-CLI-052"
"""Id of the requirement to deliver each change exactly once and in order.

Variants use this id if no more specific requirement covers the behavior of the server.
"""

VARIANTS: Final[Mapping[str, Variant]] = {
    "crlf": Variant("lines that end in CR LF", ("TW-FRM-084",), _exchanges_with(line_end="crlf")),
    "cr": Variant("lines that end in CR", ("TW-FRM-084",), _exchanges_with(line_end="cr")),
    "one-byte-chunks": Variant("each byte in a separate chunk", ("TW-FRM-084",), _exchanges_with(chunk=1)),
    "comments": Variant("comments between events", ("TW-FRM-084",), _each_step(_with_comments)),
    "unknown-members": Variant("unknown members in all objects", ("TW-OVR-009",), _with_unknown_members),
    "unknown-events": Variant("unknown ephemeral events", ("TW-FRM-045",), _each_step(_with_unknown_events)),
    "rewritten-json": Variant("members in reversed order, and extra white space", (EXACTLY_ONCE, "TW-OVR-001"), _each_step(_rewritten_json)),
    "http-1": Variant("HTTP/1.0 responses whose body ends with the connection", (EXACTLY_ONCE,), _streams(_with_http_1_0)),
    "byte-order-mark": Variant("a byte order mark before each stream", ("TW-FRM-084",), _streams(_with_byte_order_mark)),
    "space-after-colon": Variant("a space after the colon", ("TW-FRM-084",), _each_step(_with_space_after_colon)),
    "full-pointers": Variant("operations with JSON pointers in place of a string", (EXACTLY_ONCE, "TW-DIF-073"), _each_diff(_with_full_operations)),
    "merged": Variant("consecutive diffs merged into one", (EXACTLY_ONCE, "TW-RES-030"), _with_merged_diffs),
    "snapshots": Variant("a snapshot in place of every diff", (EXACTLY_ONCE, "TW-DIF-061"), _each_diff(_as_snapshot)),
    "busy": Variant("429 with Retry-After as the first response", ("TW-CLI-040",), _busy_once),
    "late": Variant("every response delayed by 300 ms", (EXACTLY_ONCE,), lambda scenario: replace(scenario, late=0.3)),
}  # fmt: skip


def variant_scenarios(scenarios: Iterable[Scenario], names: Iterable[str] = ()) -> Iterator[Scenario]:
    """Yield changed scenarios that are derived from the original ones.

    Args:
        scenarios: Original scenarios.
        names: Names of variants. Each of these variants is combined with all scenarios with which it is compatible. The
            name `all` selects every variant, and `none` selects no variant. By default, each variant is combined with
            a few scenarios.
    """
    asked = set(names)
    varied = [scenario for scenario in scenarios if _can_vary(scenario)]
    for name, variant in VARIANTS.items():
        if asked and not asked & {name, "all"}:
            continue
        for scenario in varied:
            if (asked or scenario.name in DEFAULT_SCENARIOS) and (
                changed := _variant_scenario(scenario, name, variant)
            ) is not None:
                yield changed


def _can_vary(scenario: Scenario) -> bool:
    if (
        scenario.area in _EXCLUDED_AREAS
        or "streams" not in scenario.scripts
        or scenario.log
        or scenario.patience > 10
    ):
        return False
    exchanges = scenario.scripts["streams"]
    steps = [step for exchange in exchanges for step in exchange.get("events", ())]
    return (
        bool(steps)
        and not any(_FRAMING_MEMBERS & exchange.keys() for exchange in exchanges)
        and all(_STEPS & step.keys() and not {"lie", "many", "pad"} & step.keys() for step in steps)
    )


def _variant_scenario(scenario: Scenario, name: str, variant: Variant) -> Scenario | None:
    try:
        changed = variant.change(scenario)
    except (ValueError, InvalidDiffError):
        return None
    if (changed.scripts, changed.discovery, changed.late) == (
        scenario.scripts,
        scenario.discovery,
        scenario.late,
    ):
        return None
    scripts = {kind: tuple(map(_without_rules, exchanges)) for kind, exchanges in changed.scripts.items()}
    expect = {member: value for member, value in changed.expect.items() if member != "rules"}
    about = f"{variant.about[0].upper()}{variant.about[1:]}. {scenario.about}"
    return replace(
        changed, area=name, scripts=scripts, expect=expect, requirements=variant.requirements, about=about
    )


def _without_rules(exchange: Members) -> Members:
    if "asked" not in exchange:
        return exchange
    asked = {name: value for name, value in exchange["asked"].items() if name not in {"rules", "wait_ms"}}
    return {**exchange, "asked": asked}
