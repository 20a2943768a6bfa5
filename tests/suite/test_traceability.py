"""A sentence, a check, a mutant: the triangle is closed, and what tells of it is what the registries say."""

import pytest

from conformance.suite import triangle
from conformance.suite.unjudged import REASONS
from tidewire_conformance import specification


@pytest.fixture(scope="module")
def corners():
    return triangle.corners()


def test_each_sentence_is_judged_or_a_reason_is_written(corners):
    assert [corner.sentence.id for corner in corners if not corner.is_closed] == []


def test_a_reason_is_written_only_where_nothing_judges(corners):
    """For a sentence that binds both sides, a reason stands for the side that nothing judges."""
    for corner in corners:
        if corner.sentence.id in REASONS and corner.checks:
            assert corner.sentence.role == "both", f"{corner.sentence.id} is judged: take its reason out"
            sides = {name.startswith("client:") for name in corner.checks}
            assert len(sides) == 1, f"{corner.sentence.id} is judged on both sides: take its reason out"
    assert REASONS.keys() <= specification.sentences().keys()
    assert not REASONS.keys() & specification.unseen().keys(), "one reason each"


def test_a_sentence_is_judged_of_each_side_that_it_binds(corners):
    for corner in corners:
        sentence = corner.sentence
        if corner.reason or sentence.level == "MAY":
            continue
        sides = {"client" if name.startswith("client:") else "server" for name in corner.checks}
        assert sides >= ({"client", "server"} if sentence.role == "both" else {sentence.role}), sentence.id


def test_no_check_judges_a_side_that_its_sentence_does_not_bind(corners):
    other = {"server": "client", "client": "server"}
    for corner in corners:
        sides = {"client" if name.startswith("client:") else "server" for name in corner.checks}
        assert other.get(corner.sentence.role) not in sides, corner.sentence.id


def test_each_must_that_is_judged_can_be_seen_to_fail(corners):
    binding = [corner for corner in corners if corner.sentence.binds and corner.checks]
    assert [corner.sentence.id for corner in binding if not corner.is_proved] == []


def test_requirements_and_the_page_of_them_are_what_the_registries_say(corners):
    again = "run python tests/conformance/suite/triangle.py"
    old = triangle.REQUIREMENTS.read_text(encoding="utf-8")
    assert triangle.requirements_json(corners, old) == old, again
    assert triangle.page(corners) == triangle.PAGE.read_text(encoding="utf-8"), again
