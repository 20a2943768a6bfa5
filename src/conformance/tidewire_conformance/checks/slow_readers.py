"""Checks for sections 5.5 and 5.10: merged diffs for slow readers, and independence of concurrent readers."""

from typing import Any

from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.state_history import Histories, job_of, key
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Session


@check("TW-DIF-044", whole_run=True)
async def merged_diffs_keep_text_checks(s: Session) -> None:
    """A diff that replaces several events contains the length and the CRC-32 of each text for which one of these events
    contained them.
    """
    parts: dict[tuple[str, object], set[str]] = {}
    for exchange in s.wire.record:
        for block in exchange.of_type("message"):
            if not block.is_merged:
                parts[job_of(exchange), key(block.id)] = _checked_texts(block.json)
    for step in s.histories().steps:
        own = key(step.block.id)
        if own is None or step.after is None or not step.block.is_merged:
            continue
        seqs = range(step.block.member("on") + 1, own[1] + 1)
        if not 2 <= len(seqs) <= len(parts):
            continue
        known = [parts.get((step.job, (own[0], seq))) for seq in seqs]
        if None in known:
            continue
        paths = {path for each in known if each for path in each}
        wanted = {path for path in paths if isinstance(apply_diffs.find(step.after.value, path), str)}
        checked = _checked_texts(step.block.json)
        s.at(step.exchange, step.block).expect(
            "TW-DIF-044",
            wanted <= checked,
            f"the length and CRC-32 of {json_text(sorted(wanted))}",
            sorted(checked),
        )


def _checked_texts(data: Any) -> set[str]:
    """Return the paths of the texts whose length and CRC-32 a diff contains."""
    found = data.get("check") if isinstance(data, dict) else None
    checks = found if isinstance(found, list) else []
    return {str(each[0]) for each in checks if isinstance(each, list) and len(each) == 3}


@check("TW-DIF-067", "TW-DIF-066", "TW-DIF-068")
async def slow_reader_does_not_delay_others(s: Session) -> None:
    """A reader that stops reading delays neither the job nor other readers. The server does not disconnect the reader."""
    piece = min(s.server.limits.get("max_event_bytes", 0) // 2, 256 * 1024)
    count = min(2 * 2**20 // piece, s.server.limits.get("max_state_bytes", 0) // piece - 2) if piece else 0
    steps = [step for _ in range(count) for step in ({"bytes": piece}, {"sleep_ms": 12})]
    sample = s.server.script_sample(*steps) if count * piece > 2**20 else None
    if sample is None:
        s.skip_untested("the check needs the endpoint tidewire.script and a max_state_bytes above 1 MiB")
    job = await s.submit(sample)
    async with s.follow(job, read_ahead=4096) as slow:
        await slow.until(lambda now: now.of_type("hello"))
        quick = await s.stream(job)
        done = quick.of_type("done")
        s.at(quick).expect(
            "TW-DIF-067", done, "done, for the reader that keeps reading", [b.type for b in quick.events][-2:]
        )
        late = await slow.to_end(30)
    steps_of = {each.number: found for each, found in Histories([quick, late]).streams}
    ends = [found[-1].after.value if found and found[-1].after else None for found in steps_of.values()]
    s.at(late).expect(
        "TW-DIF-068", late.of_type("done"), "done, for the slow reader", [b.type for b in late.events][-2:]
    )
    same = len(ends) == 2 and ends[0] == ends[1]
    s.at(late).expect("TW-DIF-066", same, "the same final state for both readers", late.ended)
