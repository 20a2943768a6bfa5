"""Checks for section 5.6: the events in which the server must send the length and the CRC-32 of a text."""

from typing import Any

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.state_history import Histories, Step
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

CHECK_AFTER = 64
"""Number of changes of a text after which an event must contain the text's length and CRC-32 (TW-DIF-051)."""


@check("TW-DIF-051", whole_run=True)
async def required_text_checks_are_sent(s: Session) -> None:
    """The server sends the length and the CRC-32 of a text if it truncates the text, if the item or the job ends, and
    at the latest at the 64th change of the text.
    """
    for exchange, steps in s.histories().streams:
        if exchange.cursor == "0-0":
            _judge_due_checks(s, steps)


@check("TW-DIF-051", seconds=2)
async def text_check_is_sent_by_the_64th_change(s: Session) -> None:
    """If a text grows in more than 64 events, the server sends the text's length and CRC-32 before the item ends."""
    steps = [step for n in range(100) for step in ({"append": f"{n} é "}, {"sleep_ms": 8})]
    sample = s.script_sample(*steps)
    _, history = await s.run_to_end(sample, sound=False)
    if len(history.of_type("message")) < CHECK_AFTER + 2:
        s.skip_no_occasion("the server merged the changes into fewer than 64 events")
    _judge_due_checks(s, Histories([history]).streams[0][1])
    if not s.assertions:
        s.skip_no_occasion("no check was due, because the events changed no text")


def _judge_due_checks(s: Session, steps: list[Step]) -> None:
    unchecked: dict[str, int] = {}
    for step in steps:
        if step.block.type == "snapshot" or step.before is None or step.after is None:
            unchecked.clear()  # Another check reports an event that does not apply to the state before it.
            continue
        data = step.block.json
        ops = _ops(data, step.before.columns)
        for name, path in ops:
            if name == "s":
                unchecked = {each: n for each, n in unchecked.items() if not each.startswith(path)}
        paths = {path for name, path in ops if name in "at"}
        changed = {path for path in paths if isinstance(apply_diffs.find(step.after.value, path), str)}
        for path in changed:
            unchecked[path] = unchecked.get(path, 0) + 1
        checked = {check[0] for check in (data.get("check", ()) if isinstance(data, dict) else ())}
        due = {path for name, path in ops if name == "t" and path in changed}
        due |= {
            path for path, count in unchecked.items() if count >= CHECK_AFTER or step.block.type == "done"
        }
        due |= {path for path in unchecked if _item_ended(step, path)}
        for path in due:
            s.at(step.exchange, step.block).expect(
                "TW-DIF-051", path in checked, f"the length and CRC-32 of {path}", sorted(checked)
            )
        for path in checked:
            unchecked.pop(path, None)


def _ops(data: Any, columns: tuple[str, ...]) -> list[tuple[str, str]]:
    if isinstance(data, str):
        return [("a", columns[0])] if columns else []
    found = data.get("ops", []) if isinstance(data, dict) else data
    pairs = [[("a", column) for column in columns] if op[0] == "r" else [(op[0], op[1])] for op in found]
    return [pair for row in pairs for pair in row]


def _item_ended(step: Step, path: str) -> bool:
    if step.before is None or step.after is None:
        return False
    place = "/".join(path.split("/")[:3]) + "/status"
    old, new = apply_diffs.find(step.before.value, place), apply_diffs.find(step.after.value, place)
    return bool(path.startswith("/items/") and old != new and new in apply_diffs.ITEM_ENDS)
