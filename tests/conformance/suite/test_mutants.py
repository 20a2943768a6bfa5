"""The suite proved: wrong servers are noticed for the reason that is stated, unusual ones are left in peace."""

import inspect

import pytest

from conformance.suite.killing import is_killed, red, survey
from conformance.suite.mutants import MUTANTS
from conformance.suite.stage import Nursery
from tidewire_conformance import registry, specification

LONGEST_HOOK = 15
"""Lines of a mutant beside its name and its docstring."""

DOZEN = [
    "no_terminal_event", "two_terminal_events", "id_missing_on_some_logged_events", "replays_the_event_of_the_cursor",
    "skips_the_event_after_the_cursor", "unknown_cursor_starts_from_now", "wrong_crc", "lengths_in_utf16_units",
    "cancel_answers_and_runs_on", "the_same_key_runs_twice", "anybody_may_read", "candidates_ascending",
]  # fmt: skip
"""Those that are tried here; `make conformance` tries all."""

UNUSUAL = ["crlf", "ops_in_place_of_bare_strings"]


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.mark.parametrize("name", DOZEN)
def test_a_wrong_server_is_noticed(nursery, name):
    assert is_killed(MUTANTS[name], survey(nursery, MUTANTS[name]))


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_server_is_left_in_peace(nursery, name):
    assert red(survey(nursery, MUTANTS[name])) == []


def test_each_mutant_names_a_check_that_names_its_sentence():
    checks = {check.name: check for check in registry.checks()}
    for mutant in MUTANTS.values():
        assert mutant.about, mutant.name
        if mutant.check:
            assert mutant.sentence in checks[mutant.check].sentences, mutant.name
            assert {*mutant.beside} <= checks.keys(), mutant.name


def test_a_mutant_is_one_small_hook():
    for mutant in MUTANTS.values():
        lines = [line for line in inspect.getsource(mutant.meddle).splitlines() if line.strip()]
        hook = [
            line
            for line in lines
            if not line.lstrip().startswith(("@mutant", "@benign", '"""', "def " + mutant.name))
        ]
        assert len(hook) <= LONGEST_HOOK, mutant.name


def test_each_check_can_fail_or_is_known_to_be_unproved():
    proved = {mutant.check for mutant in MUTANTS.values()}
    unproved = {check.name for check in registry.checks()} - proved
    assert unproved <= UNPROVED, "a check that no mutant proves"
    assert not UNPROVED & proved, "no longer unproved: take it out"
    assert {
        sentence for check in registry.checks() for sentence in check.sentences
    } <= specification.sentences().keys()


UNPROVED: set[str] = set()
