"""Checks for section 4.2: the contents of snapshots."""

from tidewire_conformance.checks.resume import differing
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Session


@check("TW-RES-007", "TW-RES-016")
async def snapshots_match_the_history(s: Session) -> None:
    """At each endpoint, the snapshot of a job has the same errors, notes, usage, `stable` and `batch` as the job's log."""
    fails = {
        "script": [{"append": "so far"}, {"note": "a note"}, {"usage": {"steps": 2}}, {"fail": "no further"}]
    }
    samples = {sample.endpoint: sample for sample in s.server.samples}
    if scripted := s.server.script_sample():
        samples[""] = scripted.with_input(fails)
    for sample in samples.values():
        job, history = await s.run_to_end(sample)
        answer = await s.stream(job)
        got = f"{answer.status} {json_text(answer.logged_types)}"
        sound = answer.logged_types[:1] == ["snapshot"]
        if not s.at(answer).expect("TW-RES-016", sound, "a snapshot as the first logged event", got):
            continue
        lost = differing(history, answer)
        wanted = f"the same states as in the log of the job at {sample.endpoint}"
        s.at(answer, answer.logged[0]).expect(
            "TW-RES-007", not lost, wanted, f"different states at {json_text(lost)}"
        )
    if not samples:
        s.skip_untested("no example of an endpoint ended")
