"""Section 5.6: the checks of texts, and when they are owed."""

from typing import Any

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.state_history import Histories, Step
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

CHECK_AFTER = 64
"""TW-DIF-051."""


@check("TW-DIF-051", whole_run=True)
async def checks_come_when_they_are_owed(s: Session) -> None:
    """Where a text is truncated, where its item ends, at `done`, and by the 64th change since the last check."""
    for exchange, steps in s.histories().streams:
        if exchange.cursor == "0-0":
            _judge_debts(s, steps)


@check("TW-DIF-051", slow=True)
async def the_64th_change_is_proved(s: Session) -> None:
    """A text that only grows, by more than 64 events, is proved on the way."""
    steps = [step for n in range(100) for step in ({"append": f"{n} é "}, {"sleep_ms": 8})]
    work = s.scripted(*steps)
    _, history = await s.ended(work)
    if len(history.of_type("message")) < CHECK_AFTER + 2:
        s.no_occasion("its changes were merged into fewer than 64")
    _judge_debts(s, Histories([history]).streams[0][1])


def _judge_debts(s: Session, steps: list[Step]) -> None:
    owed: dict[str, int] = {}
    for step in steps:
        if step.block.type == "snapshot":
            owed.clear()
            continue
        data = step.block.json
        ops = _ops(data, step.before.columns if step.before else ())
        for name, path in ops:
            if name == "s":
                owed = {each: n for each, n in owed.items() if not each.startswith(path)}
        changed = {
            path
            for name, path in ops
            if name in "at" and isinstance(apply_diffs.find(_value(step.after), path), str)
        }
        for path in changed:
            owed[path] = owed.get(path, 0) + 1
        proved = {check[0] for check in (data.get("check", ()) if isinstance(data, dict) else ())}
        due = {path for name, path in ops if name == "t" and path in changed}
        due |= {path for path, count in owed.items() if count >= CHECK_AFTER or step.block.type == "done"}
        due |= {path for path in owed if _item_ended(step, path)}
        for path in due:
            s.expect(
                "TW-DIF-051",
                path in proved,
                f"a check of {path}",
                sorted(proved),
                at=step.exchange,
                block=step.block,
            )
        for path in proved:
            owed.pop(path, None)


def _ops(data: Any, columns: tuple[str, ...]) -> list[tuple[str, str]]:
    if isinstance(data, str):
        return [("a", columns[0])] if columns else []
    found = data.get("ops", []) if isinstance(data, dict) else data
    pairs = [[("a", column) for column in columns] if op[0] == "r" else [(op[0], op[1])] for op in found]
    return [pair for row in pairs for pair in row]


def _value(state: apply_diffs.State | None) -> Any:
    return None if state is None else state.value


def _item_ended(step: Step, path: str) -> bool:
    if step.before is None or step.after is None:
        return False
    place = "/".join(path.split("/")[:3]) + "/status"
    old, new = apply_diffs.find(step.before.value, place), apply_diffs.find(step.after.value, place)
    return bool(path.startswith("/items/") and old != new and new in apply_diffs.ITEM_ENDS)
