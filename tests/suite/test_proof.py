"""The suite proved: wrong servers are noticed for the reason that is stated, unusual ones are left in peace."""

import inspect
from fnmatch import filter as filter_names

import pytest

from conformance.suite.besides import BESIDES
from conformance.suite.killing import is_killed, red, report_of, survey
from conformance.suite.mutants import MUTANTS
from conformance.suite.stage import Nursery
from tidewire_conformance import registry, specification
from tidewire_conformance.verdict import Outcome

LONGEST_HOOK = 15
"""Lines of a mutant beside its name and its docstring."""

SOME = [
    "no_terminal_event", "two_terminal_events", "id_missing_on_some_logged_events", "replays_the_event_of_the_cursor",
    "skips_the_event_after_the_cursor", "unknown_cursor_starts_from_now", "wrong_crc", "lengths_in_utf16_units",
    "cancel_kills_a_sibling", "the_same_key_runs_twice", "anybody_may_read", "candidates_ascending",
    "an_expired_job_is_unknown", "a_lagging_replica_rewinds",
]  # fmt: skip
"""Those that are tried here; `make conformance` tries all."""

AREAS = ["framing", "ephemeral", "sizes", "resume", "state", "notation", "proofs", "slow_readers"]
UNUSUAL = ["ops_in_place_of_bare_strings"]


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.mark.parametrize("name", SOME)
def test_a_wrong_server_is_noticed(nursery, name):
    assert is_killed(MUTANTS[name], survey(nursery, MUTANTS[name]))


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_server_is_left_in_peace(nursery, name):
    with nursery.staged(name) as url:
        assert red(report_of(url, [each for each in registry.checks() if each.is_named_by(AREAS)])) == []


def broken_of(nursery, name, check):
    """What one check says of a wrong server."""
    with nursery.staged(name) as url:
        (verdict,) = report_of(url, [each for each in registry.checks() if each.name == check]).run.verdicts
    return verdict


def test_a_batch_of_which_the_server_makes_one_item_is_a_fault_of_the_server(nursery):
    verdict = broken_of(nursery, "bodies_are_not_read", "batch.items_end_one_by_one")
    assert verdict.outcome is Outcome.FAIL, verdict.note


def test_what_is_wrong_with_a_digest_stands_in_what_came(nursery):
    verdict = broken_of(nursery, "wrong_digest", "state.diffs_rebuild_the_value")
    (told,) = [each for each in verdict.broken if each.sentence == "TW-DIF-055"]
    assert "the digest is 0123456789abcdef" in told.got
    assert "0123456789abcdef" not in told.expected


def test_each_mutant_names_a_check_that_names_its_sentence():
    checks = {check.name: check for check in registry.checks()}
    for mutant in MUTANTS.values():
        assert mutant.about, mutant.name
        if mutant.check:
            assert mutant.sentence in checks[mutant.check].sentences, mutant.name
            assert {*mutant.beside} <= checks.keys(), mutant.name


def test_a_mutant_stands_in_the_file_of_the_area_that_has_to_notice():
    for mutant in MUTANTS.values():
        area = mutant.check.partition(".")[0] or "unusual"
        assert mutant.meddle.__module__.rpartition(".")[2] == area, mutant.name


def test_a_mutant_is_one_small_hook():
    for mutant in MUTANTS.values():
        _, _, hook = inspect.getsource(mutant.meddle).partition(f'"""{mutant.about}"""\n')
        lines = [line for line in hook.splitlines() if line.strip()]
        assert 0 < len(lines) <= LONGEST_HOOK, mutant.name


def test_each_check_can_fail():
    proved = {mutant.check for mutant in MUTANTS.values()}
    assert {check.name for check in registry.checks()} - proved == set(), "a check that no mutant proves"
    judged = {sentence for check in registry.checks() for sentence in check.sentences}
    assert judged <= specification.sentences().keys()


def test_what_a_fault_breaks_elsewhere_is_said_of_mutants_and_checks_that_there_are():
    names = [check.name for check in registry.checks()]
    for name, (why, *patterns) in BESIDES.items():
        assert name in MUTANTS
        assert why
        assert all(filter_names(names, pattern) for pattern in patterns), name
