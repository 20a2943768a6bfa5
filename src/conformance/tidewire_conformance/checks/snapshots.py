"""Checks for section 4.2: the contents of snapshots."""

from tidewire_conformance.checks.resume import differing
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session


@check("TW-RES-007", "TW-RES-016")
async def a_snapshot_holds_all_that_the_diffs_gave(s: Session) -> None:
    """A snapshot holds the same errors, notes, usage, `stable` and `batch` as the log of the job, for each endpoint."""
    fails = {
        "script": [{"append": "so far"}, {"note": "a note"}, {"usage": {"steps": 2}}, {"fail": "no further"}]
    }
    works = {work.endpoint: work for work in s.server.seen}
    if scripted := s.server.script():
        works[""] = scripted.with_input(fails)
    for work in works.values():
        job, history = await s.ended(work)
        answer = await s.stream(job)
        if not s.expect("TW-RES-016", [b.type for b in answer.logged[:1]] == ["snapshot"], "a snapshot as the first logged event",
                        f"{answer.status} {[b.type for b in answer.logged]}", at=answer):  # fmt: skip
            continue
        lost = differing(history, answer)
        s.expect("TW-RES-007", not lost, f"the states of the history of {work.endpoint}", f"different states at {lost}",
                 at=answer, block=answer.logged[0])  # fmt: skip
    if not works:
        s.untested("no example of an endpoint ended")
