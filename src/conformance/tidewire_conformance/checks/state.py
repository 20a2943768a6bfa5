"""Checks for chapter 5 and section 1.6: the state after each logged event, and the statuses of items and jobs."""

from collections.abc import Iterator
from typing import Any

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.state_history import Histories, Step, job_bodies, job_of, key
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Evidence, Session
from tidewire_conformance.wire import json_violations

TRANSITIONS = {
    ("queued", "running"), ("queued", "failed"), ("queued", "cancelled"),
    ("running", "succeeded"), ("running", "failed"), ("running", "cancelled"),
}  # fmt: skip
"""Permitted changes of an item's status, from the table of section 1.6. A snapshot may combine several of these
changes.
"""
MAX_VALUE_DEPTH = 56


@check(
    "TW-DIF-012", "TW-DIF-073", "TW-DIF-074", "TW-DIF-046", "TW-DIF-047", "TW-DIF-048", "TW-DIF-049", "TW-DIF-050",
    "TW-DIF-055", "TW-RES-030", "TW-RES-040", whole_run=True,
)  # fmt: skip
async def diffs_apply_and_checks_hold(s: Session) -> None:
    """Each diff applies to the state before it. The lengths, CRC-32 values and digests in the events match the state."""
    for step in s.histories().steps:
        if step.error is not None:
            s.at(step.exchange, step.block).expect(
                step.error.requirement, False, "an event that applies to the state before it", str(step.error)
            )
            applies = step.error.requirement not in {"TW-DIF-073", "TW-DIF-074"}
            s.at(step.exchange, step.block).expect(
                "TW-DIF-012", applies, "a diff that applies", str(step.error)
            )
        elif step.after is not None and step.before is not None:
            s.expect((*_satisfied(step),), True, "an event that applies to the state before it")


def _satisfied(step: Step) -> Iterator[str]:
    data = step.block.json
    if step.block.type == "done":
        yield from ("TW-DIF-055", "TW-DIF-049")
    if step.block.type != "message":
        return
    yield from ("TW-DIF-012", "TW-DIF-073", "TW-DIF-074", "TW-RES-030", "TW-RES-040")
    if isinstance(data, dict) and data.get("check"):
        yield from ("TW-DIF-046", "TW-DIF-047", "TW-DIF-048", "TW-DIF-050")


@check("TW-DIF-001", "TW-DIF-002", "TW-DIF-003", "TW-DIF-005", "TW-OVR-007", whole_run=True)
async def states_are_valid(s: Session) -> None:
    """After each logged event, the state fits its schema, keeps its number of items, and has errors only in failed
    items.
    """
    counts: dict[str, int] = {}
    judged: dict[tuple[str, str | None, str], Any] = {}
    for step in s.histories().steps:
        if not s.at(step.exchange, step.block).empty(
            "TW-DIF-001", step.violation, "a state that fits its schema"
        ):
            continue
        state = step.after.value if step.after is not None else None
        place = step.job, step.block.id, step.block.type
        if state is None or judged.get(place) == state:
            continue
        judged[place] = state
        items = state["items"]
        first = counts.setdefault(step.job, len(items))
        s.at(step.exchange, step.block).equal("TW-DIF-002", len(items), first, f"{first} items")
        if step.block.type != "done":
            status = state["status"]
            runs = status not in apply_diffs.JOB_ENDS
            s.at(step.exchange, step.block).expect("TW-DIF-003", runs, "a status that is not final", status)
        for item in items:
            sound = (item["status"] == "failed") == ("error" in item)
            wanted = "the member error in failed items only"
            s.at(step.exchange, step.block).expect("TW-DIF-005", sound, wanted, item)
            deep = json_violations.depth(item.get("value"))
            s.at(step.exchange, step.block).expect(
                "TW-OVR-007", deep <= MAX_VALUE_DEPTH, f"a value nested at most {MAX_VALUE_DEPTH} deep", deep
            )


@check("TW-RES-007", "TW-DIF-043", "TW-DIF-042", "TW-JOB-039", whole_run=True, after="generation")
async def each_id_has_one_state(s: Session) -> None:
    """Diffs, merged diffs, snapshots and reads of a job all lead to the same state at the same event id."""
    found: dict[tuple[str, str], Any] = {}
    for step in s.histories().steps:
        if step.after is None:
            continue
        held = found.setdefault((step.job, step.block.id or ""), step.after.value)
        requirement = "TW-DIF-043" if step.block.is_merged else "TW-RES-007"
        wanted = "at", step.block.id, "the same state as in other responses:", held
        s.at(step.exchange, step.block).equal(requirement, step.after.value, held, wanted)
    for exchange in s.wire.record:
        for body in job_bodies(exchange):
            held = found.get((str(body["id"]), str(body.get("cursor"))))
            if "state" in body and held is not None:
                wanted = "at", body.get("cursor"), "the same state as in the stream:", held
                s.at(exchange).equal("TW-JOB-039", body["state"], held, wanted)


@check("TW-OVR-018", "TW-OVR-019", "TW-OVR-020", "TW-OVR-021", whole_run=True)
async def item_status_transitions_are_valid(s: Session) -> None:
    """The status of an item changes as section 1.6 permits, an ended item never changes, and the statuses of all items
    determine the final status of the job.
    """
    for step in s.histories().steps:
        if step.before is None or step.after is None:
            continue
        before, after = step.before.value, step.after.value
        for old_status, new_status in _transitions(step):
            wanted, got = "a transition of the table in section 1.6", f"{old_status} → {new_status}"
            valid = (old_status, new_status) in TRANSITIONS
            s.at(step.exchange, step.block).expect("TW-OVR-018", valid, wanted, got)
        for old, new in zip(before["items"], after["items"], strict=False):
            if old["status"] in apply_diffs.ITEM_ENDS:
                s.at(step.exchange, step.block).expect(
                    "TW-OVR-019", old == new, ("an unchanged item after its end:", old), new
                )
        if step.block.type == "done":
            ends = [item["status"] for item in after["items"]]
            wanted = apply_diffs.end_of(ends)
            s.at(step.exchange, step.block).expect("TW-OVR-021", wanted, "only ended items at done", ends)
            if wanted:  # otherwise no status of the job is right
                s.at(step.exchange, step.block).equal(
                    "TW-OVR-020", after["status"], wanted, (wanted, "for", ends)
                )


def _transitions(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the old and the new status of each item whose status an operation of an event changes.

    One logged event may contain several changes (TW-DIF-040). Snapshots are skipped, and so are diffs that replace several
    events, because both may omit intermediate statuses.
    """
    if step.before is None or step.block.type != "message" or step.block.is_merged:
        return
    before = _statuses(step.before.value)
    for value in apply_diffs.values_after_ops(step.before, step.block.json):
        after = _statuses(value)
        for old, new in zip(before, after, strict=False):
            if old != new and old is not None and new is not None:
                yield old, new
        before = after


def _statuses(state: Any) -> list[str | None]:
    """Return the status of each item. In the middle of a diff, a state need not be valid, and a status may be missing."""
    items = state.get("items") if isinstance(state, dict) else None
    found = items if isinstance(items, list) else []
    return [str(each["status"]) if isinstance(each, dict) and "status" in each else None for each in found]


@check("TW-DIF-034", "TW-DIF-035", whole_run=True)
async def columns_are_constant_within_an_epoch(s: Session) -> None:
    """Each snapshot and each job resource has `columns`, which stay the same within an epoch."""
    known: dict[tuple[str, int], Any] = {}

    def judge(job: str, cursor: str | None, document: dict[str, Any], where: Evidence) -> None:
        if not where.expect("TW-DIF-034", isinstance(document.get("columns"), list), "columns", document):
            return
        epoch = (key(cursor) or (0, 0))[0]
        first = known.setdefault((job, epoch), document["columns"])
        where.equal("TW-DIF-035", document["columns"], first, ("the same columns as before,", first))

    for exchange in s.wire.record:
        for body in job_bodies(exchange):
            judge(str(body["id"]), body.get("cursor"), body, s.at(exchange))
        for block in exchange.logged:
            if block.type == "snapshot" and isinstance(block.json, dict):
                judge(job_of(exchange), block.id, block.json, s.at(exchange, block))


@check("TW-DIF-057", "TW-DIF-058", "TW-DIF-059", whole_run=True)
async def stable_text_does_not_change(s: Session) -> None:
    """The part of a text that is stable according to the member `stable` never changes within an epoch.

    The lengths in `stable` never decrease, and are never greater than the lengths of the texts.
    """
    seen = False
    for step in s.histories().steps:
        if step.after is None or step.block.type == "done":
            continue
        same = step.before is not None and not (
            step.block.type == "snapshot" and step.block.member("reason") != "compacted"
        )
        before = step.before.value["items"] if same and step.before else [{}] * len(step.after.value["items"])
        for old, new in zip(before, step.after.value["items"], strict=False):
            seen = seen or bool(new.get("stable") or old.get("stable"))
            _judge_stable(s, step, old, new)
    if not seen:
        s.skip_no_occasion("no item in this run had `stable`")


def _judge_stable(s: Session, step: Step, old: dict[str, Any], new: dict[str, Any]) -> None:
    where = s.at(step.exchange, step.block)
    for path, number in new.get("stable", {}).items():
        text = apply_diffs.find(new.get("value"), path)
        sound = isinstance(text, str) and number <= len(text)
        where.expect("TW-DIF-058", sound, ("at most the length of", text), number)
    for path, number in old.get("stable", {}).items():
        kept = str(apply_diffs.find(old.get("value"), path))[:number]
        text = apply_diffs.find(new.get("value"), path)
        sound = isinstance(text, str) and text.startswith(kept)
        where.expect("TW-DIF-057", sound, ("a text that begins with", kept), text)
        known = new.get("stable", {}).get(path)
        where.expect("TW-DIF-059", known is not None and known >= number, f"at least {number}", known)


@check("TW-DIF-031", "TW-DIF-073", "TW-DIF-032", "TW-OVR-005")
async def text_lengths_count_code_points(s: Session) -> None:
    """A diff that truncates a text by one removes one code point, even one outside the BMP. It never splits a surrogate
    pair.
    """
    kept = "e\u0301🎉👩\u200d"
    steps: list[dict[str, Any]] = [
        {"append": kept + "🚀"},
        {"truncate": 1},
        {"append": "é🎉"},
        {"truncate": 1},
    ]
    sample = s.script_sample(*steps)
    job, history = await s.run_to_end(sample, sound=False)
    wanted = kept + "é"
    got = s.items(await s.read(job))[0]["value"]
    s.at(history).expect("TW-DIF-031", got == wanted, json_text(wanted), json_text(got))
    folded = Histories([history]).streams[0][1][-1].after
    value = folded.value["items"][0]["value"] if folded else None
    s.at(history).expect(
        "TW-DIF-031",
        value == wanted,
        f"{json_text(wanted)} after applying the diffs in code points",
        json_text(value),
    )
    s.at(history).expect("TW-DIF-073", folded is not None, "truncations that apply")
    faults = [fault for block in history.events for fault in block.reading.faults]
    s.at(history).expect("TW-DIF-032", not faults, "whole code points", [each.detail for each in faults])
    s.at(history).expect("TW-OVR-005", not faults, "no lone surrogate", [each.detail for each in faults])


@check("TW-DIF-012", "TW-DIF-073", "TW-RES-020", "TW-DIF-055")
async def diffs_reconstruct_the_value(s: Session) -> None:
    """Diffs between values of every JSON type lead to the value that the job emitted last."""
    # Each edited value contains a long unchanged text, so that the server sends small edits. If the server replaced the
    # whole value, errors in earlier diffs would not show.
    long = "a text that stays " * 20
    values: list[Any] = [
        "text 😀",
        ["x", {"a": 1.5}],
        [{"a": 1.5}, "x", True],
        {"a": [], "b": "", "c": {"~": [[1], {}]}},
        {"a": [1, 2, 3], "b": "Hel", "long": long},
        {"a": [1, 9, 2, 3], "b": "Hello", "long": long},
        # Member names that must be escaped in paths, together with members that do not change.
        {"a": [1, 9], "b": "Held", "c": {"d/e": 1, "~": [[1]], "~1": [0], "long": long}, "long": long},
        # Member names that sort differently by code points and by UTF-16, and numbers that can be written in several ways.
        {
            "a": [1, 9, 2],
            "b": "Held",
            "c": {"d/e": None, "~": [[]], "~1": [1], "long": long},
            "long": long,
            "\ufb33": 1,
            "😀": [1e-7, 1e21, 0.5, -0.0, 1.0, 1e20, 2**53 - 1, 5e-324, 333333333.3333333],
        },
    ]
    steps = [step for value in values for step in ({"emit": value}, {"sleep_ms": 15})]
    sample = s.script_sample(*steps, initial={}, columns=[])
    job, history = await s.run_to_end(sample, sound=False)
    folded = Histories([history]).streams[0][1][-1]
    got = (
        folded.after.value["items"][0]["value"]
        if folded.after
        else f"a diff that does not apply: {folded.error}"
    )
    s.at(history).equal(("TW-DIF-012", "TW-DIF-073", "TW-RES-020"), got, values[-1])
    read = s.items(await s.read(job))[0]["value"]
    wanted = f"diffs and a digest that match the value in the job resource: {json_text(read)}"
    s.at(history).expect(
        "TW-DIF-055", folded.error is None and read == got, wanted, str(folded.error or json_text(got))
    )
