"""Properties of the grade of a run, tested with generated runs, and its badge."""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewire_conformance import specification
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Assertion, Outcome, SkipReason, Verdict
from tidewire_conformance.report import badge
from tidewire_conformance.runner import Plan, merge, settle

PROFILES = ["stream", "core", "durable", "batch"]
CHOICE = [
    *[each.id for each in specification.requirements().values() if each.profile == "stream" and each.binds][:2],
    *[each.id for each in specification.requirements().values() if each.profile == "core" and each.binds][:4],
    *[each.id for each in specification.requirements().values() if each.profile == "durable" and each.binds][:2],
    *[each.id for each in specification.requirements().values() if each.profile == "batch"][:2],
    *[each.id for each in specification.requirements().values() if each.level == "SHOULD" and each.profile == "core"][:2],
]  # fmt: skip
UNCOUNTED = {SkipReason.NOT_DECLARED, SkipReason.NO_OCCASION}


@dataclass
class DrawnRun:
    verdicts: list
    cut_short: str = ""
    plan: Plan = field(default_factory=lambda: Plan("http://127.0.0.1:1"))
    seconds: float = 0.1
    requests: int = 1
    profiles = PROFILES
    subject = {"url": "http://127.0.0.1:1", "server": "drawn"}  # noqa: RUF012 - nobody changes it

    def profile_of(self, sentence):
        return sentence.profile


@st.composite
def verdicts(draw, number):
    sentences = draw(st.lists(st.sampled_from(CHOICE), min_size=1, max_size=3, unique=True))
    verdict = Verdict(f"area.check{number}", tuple(sentences), "drawn")
    for sentence in draw(st.lists(st.sampled_from(sentences), max_size=4)):
        verdict.assertions.append(Assertion(sentence, draw(st.booleans()), "this", "that"))
    ended = draw(st.sampled_from(["well", "well", "skipped", "unclear", "error"]))
    if ended == "skipped":
        verdict.outcome, verdict.why, verdict.note = (
            Outcome.SKIPPED,
            draw(st.sampled_from(SkipReason)),
            "drawn",
        )
    elif ended != "well":
        verdict.outcome = Outcome.INCONCLUSIVE if ended == "unclear" else Outcome.ERROR
    settle(verdict)
    return verdict


@st.composite
def reports(draw):
    found = [draw(verdicts(number)) for number in range(draw(st.integers(0, 5)))]
    known = dict.fromkeys(draw(st.sets(st.sampled_from(CHOICE), max_size=2)), "known")
    run = DrawnRun(found, draw(st.sampled_from(["", "", "the run was interrupted"])))
    return grade(run, known, draw(st.sampled_from(["", "", "2 of 9 checks"])))


def report_of(*found, **options):
    return grade(DrawnRun([*found]), **options)


def assertions_of(report, sentence):
    """The outcomes that checks asserted for a requirement."""
    return [each.holds for verdict in report.run.verdicts for each in verdict.assertions if each.requirement == sentence]  # fmt: skip


@settings(max_examples=40)
@given(reports())
def test_a_requirement_holds_only_if_every_assertion_holds(report):
    for name, standing in report.results.items():
        assert not standing.holds or (assertions_of(report, name) and all(assertions_of(report, name)))
        assert not standing.holds or standing.counts
        if False in assertions_of(report, name):
            assert standing.outcome in {Outcome.FAIL, Outcome.WARN}, "nothing hides what was found"
            assert standing.counts
            assert standing.broken


@settings(max_examples=40)
@given(reports())
def test_a_requirement_is_not_counted_only_if_no_check_could_judge_it(report):
    for name, standing in report.results.items():
        if not standing.counts:
            assert not assertions_of(report, name)
            for verdict in standing.verdicts:
                assert verdict.outcome is not Outcome.FAIL, "what failed may have kept it from being judged"
                assert verdict.why in UNCOUNTED or verdict.outcome in {Outcome.PASS, Outcome.WARN}


@settings(max_examples=40)
@given(reports())
def test_a_profile_is_met_only_by_all_of_its_requirements(report):
    for each in report.grades:
        counted = [
            one for one in report.results.values() if one.requirement.is_in(each.profile) and one.counts
        ]
        must = [one for one in counted if one.requirement.binds]
        assert each.is_whole == (bool(must) and all(one.holds for one in must))
        assert (each.held, each.total) == (sum(one.holds for one in must), len(must))
    met = {each.profile for each in report.grades if each.is_whole}
    first, *others = report.headline.partition(" · ")[0].split("+")
    assert first in met | {"no profile"} or re.fullmatch(r"(core|stream) \(\d+ checks? not tried\)", first)
    assert {*others} <= met
    assert report.is_whole == (first in met)


@settings(max_examples=40)
@given(reports())
def test_the_grade_names_no_profile_with_a_failure(report):
    for profile in ("core", "stream"):
        broken = [one for one in report.failures if one.requirement.is_in(profile) and one.requirement.binds]
        assert not broken or not report.headline.startswith(profile)


@settings(max_examples=40)
@given(reports())
def test_the_exit_code_and_the_badge_never_hide_a_failure(report):
    verdict_with = any(verdict.assertions for verdict in report.run.verdicts)
    new = [each for each in report.failures if each.requirement.id not in report.known]
    text, color = badge.summary(report)
    assert (report.exit_code == 4) == (not verdict_with and not report.errors)
    assert not new or report.exit_code == 1
    assert not report.run.cut_short or report.exit_code != 0
    if color == badge.GREEN:
        assert report.exit_code == 0
        assert not report.failures
        assert not report.part
        assert report.is_whole
        assert text == report.headline.rpartition(" MUST")[0]
    drawn = ET.fromstring(badge.badge(text, color))
    assert drawn.get("aria-label") == f"tidewire: {text}"


def verdict_with(check, sentences, *pairs):
    verdict = Verdict(check, sentences, "x", assertions=[Assertion(name, holds) for name, holds in pairs])
    settle(verdict)
    return verdict


def test_a_requirement_blocked_by_another_failure_counts_and_does_not_hold():
    first, second, *_ = CHOICE
    report = report_of(verdict_with("area.one", (first, second), (first, False)))
    assert (report.results[second].why, report.results[second].counts) == (SkipReason.BLOCKED, True)
    assert "area.one failed at another requirement" in report.results[second].note
    assert report.unjudged == [report.results[second]]
    assert (report.grades[0].held, report.grades[0].total) == (0, 2)
    elsewhere = verdict_with("area.two", (second,), (second, True))
    judged = report_of(verdict_with("area.one", (first, second), (first, False)), elsewhere)
    assert judged.results[second].holds, "another check judged it"


STREAM = next(each for each in CHOICE if specification.requirements()[each].profile == "stream")
CORE = next(each for each in CHOICE if specification.requirements()[each].profile == "core")


def skipped(check, requirement):
    return Verdict(check, (requirement,), "x", Outcome.SKIPPED, "no way to test it", SkipReason.UNTESTED)


@pytest.mark.parametrize(
    ("found", "headline", "summary"),
    [
        ([(STREAM, True), (CORE, True)], "core · 2/2 MUST", ("core · 2/2", badge.GREEN)),
        ([(STREAM, True), (CORE, None)], "core (1 check not tried) · 1/2 MUST", ("core (1 check not tried) · 1/2", badge.YELLOW)),
        ([(STREAM, None), (CORE, True)], "core (1 check not tried) · 1/2 MUST", ("core (1 check not tried) · 1/2", badge.YELLOW)),
        ([(STREAM, True), (CORE, False)], "stream · 1/1 MUST", ("stream · 1/1 · 1 broken", badge.RED)),
        ([(STREAM, False), (CORE, True)], "no profile · 1/2 MUST", ("no profile · 1/2 · 1 broken", badge.RED)),
        ([(STREAM, None), (CORE, None)], "no profile · 0/2 MUST", ("not judged", badge.GRAY)),
    ],
)  # fmt: skip
def test_the_grade_is_the_larger_profile_without_a_failure(found, headline, summary):
    """None is a check that the suite could not try."""
    verdicts = [
        skipped(f"area.{name}", name)
        if holds is None
        else verdict_with(f"area.{name}", (name,), (name, holds))
        for name, holds in found
    ]
    report = report_of(*verdicts)
    assert report.headline == f"{headline} · 0/0 SHOULD"
    assert badge.summary(report) == summary


def test_a_run_that_ended_early_has_no_grade():
    report = grade(DrawnRun([verdict_with("area.one", (CORE,), (CORE, True))], "the run was interrupted"))
    assert report.headline.startswith("no profile · 1/1 MUST")


def test_a_server_can_be_graded_for_the_smaller_profile_only():
    report = report_of(verdict_with("area.one", (STREAM,), (STREAM, True)), profiles=("stream",))
    assert (report.headline, report.exit_code) == ("stream · 1/1 MUST · 0/0 SHOULD", 0)
    assert badge.summary(report) == ("stream · 1/1", badge.GREEN)


def test_a_requirement_without_an_occasion_is_not_counted():
    first, second, *_ = CHOICE
    report = report_of(verdict_with("area.one", (first, second), (first, True)))
    assert (report.results[second].why, report.results[second].counts) == (SkipReason.NO_OCCASION, False)
    assert report.headline == "core · 1/1 MUST · 0/0 SHOULD"
    assert badge.summary(report) == ("core · 1/1", badge.GREEN)


def test_a_failure_in_any_repetition_counts():
    first, second, *_ = CHOICE
    times = [
        verdict_with("area.one", (first, second), (first, False), (second, True)),
        verdict_with("area.one", (first, second), (first, True), (second, False)),
    ]
    report = report_of(merge(times))
    assert {each.requirement.id for each in report.failures} == {first, second}


def test_failures_are_sorted_by_frequency_with_known_ones_last():
    first, second, third, *_ = CHOICE
    found = verdict_with(
        "area.one", (first, second, third),
        (first, False), (second, False), (second, False), (third, False), (third, False), (third, False),
    )  # fmt: skip
    report = report_of(found, known={third: "so it is"})
    assert [each.requirement.id for each in report.failures] == [second, first, third]


def test_a_skipped_repetition_does_not_change_the_outcome():
    sound = verdict_with("area.one", ("TW-DSC-001",), ("TW-DSC-001", True))
    late = Verdict(
        "area.one", ("TW-DSC-001",), "x", Outcome.SKIPPED, "the budget was spent", SkipReason.UNTESTED
    )
    assert merge([sound, late, late]).outcome is Outcome.PASS
    assert merge([late, late]).outcome is Outcome.SKIPPED
