"""Every requirement is checked and proved, or has a documented reason.

The generated traceability.json matches the registries.
"""

import pytest

from proof import traceability
from proof.unjudged_requirements import REASONS, unseen
from tidewire_conformance import specification


@pytest.fixture(scope="module")
def traces():
    return traceability.traces()


def test_each_requirement_is_checked_or_has_a_reason(traces):
    assert [trace.requirement.id for trace in traces if not trace.is_covered] == []


def test_only_unchecked_requirements_have_a_reason(traces):
    """For a requirement that binds both sides, the reason applies to the side without a check."""
    for trace in traces:
        if trace.requirement.id in REASONS and trace.judges:
            assert trace.requirement.role == "both", f"{trace.requirement.id} is judged: remove its reason"
            assert not (trace.checks and trace.scenarios), (
                f"{trace.requirement.id} is judged on both sides: remove its reason"
            )
    assert REASONS.keys() <= specification.requirements().keys()
    assert not REASONS.keys() & unseen().keys(), "one reason each"


def test_a_requirement_is_checked_for_each_side_that_it_binds(traces):
    for trace in traces:
        one = trace.requirement
        if trace.reason or one.level == "MAY":
            continue
        sides = {side for side, names in (("server", trace.checks), ("client", trace.scenarios)) if names}
        assert sides >= ({"client", "server"} if one.role == "both" else {one.role}), one.id


def test_no_check_tests_a_side_that_its_requirement_does_not_bind(traces):
    for trace in traces:
        assert not (trace.requirement.role == "server" and trace.scenarios), trace.requirement.id
        assert not (trace.requirement.role == "client" and trace.checks), trace.requirement.id


def test_each_checked_must_is_failed_by_a_faulty_implementation(traces):
    binding = [trace for trace in traces if trace.requirement.binds and trace.judges]
    assert [trace.requirement.id for trace in binding if not trace.is_proved] == []


def test_the_traceability_file_and_page_match_the_registries(traces):
    rerun = f"run {traceability.COMMAND}"
    written = traceability.TRACEABILITY.read_text(encoding="utf-8")
    assert traceability.traceability_json(traces) == written, rerun
    assert traceability.page(traces) == traceability.PAGE.read_text(encoding="utf-8"), rerun
