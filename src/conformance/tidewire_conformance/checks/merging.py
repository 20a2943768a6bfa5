"""Section 5.5: one diff in place of several logged events, for a reader that is behind."""

from typing import Any

from tidewire_conformance import fold
from tidewire_conformance.history import job_of, key
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session


@check("TW-DIF-044", over_all=True)
async def a_merged_diff_proves_what_its_parts_proved(s: Session) -> None:
    """It has a check of each text that one of the events has of which it stands for, as other answers show them."""
    parts: dict[tuple[str, object], set[str]] = {}
    for exchange in s.wire.record:
        for block in exchange.of_type("message"):
            if not _names_base(block.json):
                parts[job_of(exchange), key(block.id)] = _proved(block.json)
    for step in s.histories().steps:
        own = key(step.block.id)
        if (
            own is None
            or step.after is None
            or step.block.type != "message"
            or not _names_base(step.block.json)
        ):
            continue
        known = [parts.get((step.job, (own[0], seq))) for seq in range(step.block.json["on"] + 1, own[1] + 1)]
        if len(known) < 2 or None in known:
            continue
        paths = {path for each in known if each for path in each}
        wanted = {path for path in paths if isinstance(fold.find(step.after.value, path), str)}
        proved = _proved(step.block.json)
        s.expect("TW-DIF-044", wanted <= proved, f"a check of {sorted(wanted)}", sorted(proved), at=step.exchange,
                 block=step.block)  # fmt: skip


def _names_base(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("on"), int)


def _proved(data: Any) -> set[str]:
    """Texts of which a diff has a check."""
    found = data.get("check", ()) if isinstance(data, dict) else ()
    return {str(each[0]) for each in found if isinstance(each, list) and len(each) == 3}
