"""The suite proved: wrong servers are noticed for the reason that is stated, unusual ones are left in peace."""

import inspect

import pytest

from conformance.suite.killing import is_killed, red, report_of, survey
from conformance.suite.mutants import MUTANTS
from conformance.suite.stage import Nursery
from tidewire_conformance import registry, specification

LONGEST_HOOK = 15
"""Lines of a mutant beside its name and its docstring."""

DOZEN = [
    "no_terminal_event", "two_terminal_events", "id_missing_on_some_logged_events", "replays_the_event_of_the_cursor",
    "skips_the_event_after_the_cursor", "unknown_cursor_starts_from_now", "wrong_crc", "lengths_in_utf16_units",
    "cancel_kills_a_sibling", "the_same_key_runs_twice", "anybody_may_read", "candidates_ascending",
]  # fmt: skip
"""Those that are tried here; `make conformance` tries all."""

AREAS = ["framing", "resume", "state"]
UNUSUAL = ["ops_in_place_of_bare_strings"]


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.mark.parametrize("name", DOZEN)
def test_a_wrong_server_is_noticed(nursery, name):
    assert is_killed(MUTANTS[name], survey(nursery, MUTANTS[name]))


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_server_is_left_in_peace(nursery, name):
    with nursery.staged(name) as url:
        assert red(report_of(url, [each for each in registry.checks() if each.is_named_by(AREAS)])) == []


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


UNPROVED = {
    "batch.an_endpoint_without_batches_takes_none",
    "batch.shared_members_complete_each_input",
    "batch.too_many_inputs_are_refused",
    "browser.a_preflight_allows_what_a_page_needs",
    "browser.a_stream_token_opens_its_stream",
    "browser.problems_come_in_band_only_where_asked_for",
    "browser.the_cursor_0_1_is_answered_with_204",
    "discovery.endpoints_describe_themselves",
    "discovery.text_is_not_taken_back_where_it_cannot_be",
    "durable.an_expired_job_is_gone",
    "durable.any_replica_answers_for_any_job",
    "durable.what_was_sent_survives_a_restart",
    "errors.both_framings_of_a_body_are_taken",
    "errors.what_a_client_sends_stays_data",
    "errors.who_has_to_wait_is_told_how_long",
    "framing.a_change_that_is_too_long_for_an_event_comes_in_several",
    "framing.a_state_that_grows_too_large_fails_the_job",
    "framing.a_stream_that_is_not_accepted_is_refused",
    "framing.events_are_no_longer_than_discovery_says",
    "framing.goaway_says_its_wait_twice",
    "idempotency.a_key_has_visible_characters",
    "idempotency.a_repeated_submit_finds_its_job_once_it_has_ended",
    "idempotency.submits_at_once_start_one_job",
    "idempotency.the_key_of_a_purged_job_is_not_free",
    "jobs.a_cancel_after_the_end_changes_nothing",
    "jobs.a_read_can_be_followed_from_its_cursor",
    "jobs.links_lead_to_what_they_name",
    "jobs.places_are_counted_from_1",
    "jobs.progress_is_told_again_on_each_connection",
    "logprobs.raw_is_before_and_processed_after_what_was_asked_for",
    "logprobs.samples_are_items",
    "logprobs.the_distribution_is_that_of_the_whole_vocabulary",
    "logprobs.the_first_token_of_the_prompt_has_no_logprob",
    "ownership.a_credential_in_the_url_opens_nothing",
}
"""Checks that no wrong server proves yet; a check that is new comes with one."""
